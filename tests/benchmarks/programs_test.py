# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of maintainers: the start of models, the training loop, and detectors."""

import itertools
import re
import types

import numpy as np
import pytest
import tf_keras as keras

from benchmarks import detection, loop, startup
from lambdanet import command_line
from lambdanet.training.benchmark.model_contenders import Network


def _small_model(name, input_size, **options):
    """Returns a model of two layers."""
    images = keras.Input([input_size, input_size, 3])
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, strides=2)(images))
    x = keras.layers.Dense(5)(keras.layers.GlobalAveragePooling2D()(x))
    return keras.Model(images, keras.layers.Activation("linear", dtype="float32")(x), name=name)


def test_startup_is_relative_to_the_baseline(monkeypatch, capsys):
    """On a clock that ticks once per reading, and twice more where a model takes longer."""
    readings = itertools.count()

    def slow_baseline():
        next(readings), next(readings)
        return _small_model("baseline", 224)

    def slow_fit(model, *arguments, **options):
        if model.name == "resnet_50":
            next(readings), next(readings)
        return keras_fit(model, *arguments, **options)

    keras_fit = keras.Model.fit
    monkeypatch.setattr(keras.Model, "fit", slow_fit)
    monkeypatch.setattr(startup, "time", types.SimpleNamespace(perf_counter=lambda: float(next(readings))))
    monkeypatch.setattr(startup, "_build_baseline", slow_baseline)
    monkeypatch.setattr(Network, "create", lambda self: _small_model(self.name, self.size))
    assert command_line.main(startup.COMMAND, ["resnet_50@16", "--repeats=2"]) == 0
    header, baseline, model = (line.split() for line in capsys.readouterr().out.splitlines()[-3:])
    assert header == ["build", "s", "x", "first", "step", "s", "x"]
    assert baseline[:2] == ["tf_keras", "ResNet50"] and model[0] == "resnet_50@16"
    assert list(map(float, baseline[2:])) == [3, 1, 1, 1]
    assert list(map(float, model[1:])) == [1, 0.33, 3, 3]


def test_both_loops_train_equally(monkeypatch, capsys):
    monkeypatch.setattr(
        "lambdanet.training.run.build.zoo.create_model",
        lambda name, input_size, **_: _small_model(name, input_size),
    )
    built, build = [], loop.build.build_model

    def recorded_build(recipe):
        keras.utils.set_random_seed(0)
        built.append(build(recipe))
        return built[-1]

    monkeypatch.setattr(loop.build, "build_model", recorded_build)
    settings = ["input_size=16", "global_batch_size=4", "num_classes=5", "warmup_epochs=0"]
    result = loop.benchmark_loop(set=settings, steps=3, repeats=2)
    for left, right in zip(built[0].get_weights(), built[1].get_weights(), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)
    assert result["train_ms"] > 0 and result["by_hand_ms"] > 0 and result["ratio"] > 0
    assert re.search(
        r"2 turns of 3 steps: [\d.]+ ms per step in train, [\d.]+ by hand; train takes [+-]",
        capsys.readouterr().out,
    )


def test_detectors_take_turns(monkeypatch, capsys):
    """On a clock on which their steps take 3 and 2 seconds. The first turn, not timed, reads no end."""
    clock = iter(itertools.accumulate(itertools.cycle([0, 2, 0, 3])))
    step = types.SimpleNamespace(function=lambda: 0.0, inputs=())
    monkeypatch.setattr("lambdanet.detection.run.train_step.build_train_step", lambda *arguments: step)
    monkeypatch.setattr(detection, "time", types.SimpleNamespace(perf_counter=lambda: float(next(clock))))
    assert command_line.main(detection.COMMAND, ["--experiments=first,second", "--steps=2"]) == 0
    first, second, ratio, peak = capsys.readouterr().out.splitlines()
    assert first == "first      3.000 s per step  (3.000 to 3.000)"
    assert second == "second     2.000 s per step  (2.000 to 2.000)"
    assert ratio == "ratio 1.500  (1.500 to 1.500 over the turns)" and peak.startswith("peak memory")


@pytest.mark.parametrize(
    ("program", "word", "message"),
    [
        (detection, "--steps=0", "steps must be a positive integer, got 0"),
        (loop, "--steps=0", "steps must be a positive integer, got 0"),
        (loop, "--recipe=digts", "unknown recipe 'digts'; did you mean digits"),
        (startup, "resnet_51", "unknown model 'resnet_51'; did you mean resnet_5"),
        (startup, "--repeats=0", "repeats must be a positive integer, got 0"),
    ],
)
def test_wrong_arguments_are_refused(program, word, message, capsys):
    assert command_line.main(program.COMMAND, [word]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1 and printed.out == ""
