# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of maintainers: the start of models, training steps, detectors, and the input."""

import csv
import dataclasses
import io
import itertools
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import xla_flags
from PIL import Image
from programs.small_model import one_convolution

from benchmarks import detection, input, predictions, rates, selection, startup, steps
from benchmarks.turns import cases
from benchmarks.turns.model_contenders import Network
from lambdanet import command_line
from lambdanet.backend import device
from lambdanet.ops import convolution, products
from lambdanet.ops.position_term import Sizes
from lambdanet.training.data import records


def test_startup_is_relative_to_the_baseline(monkeypatch, capsys):
    """On a clock that ticks once per reading, and twice more where a model takes longer."""
    readings = itertools.count()

    def slow_baseline():
        next(readings), next(readings)
        return one_convolution("baseline", 224)

    def slow_fit(model, *arguments, **options):
        if model.name == "resnet_50":
            next(readings), next(readings)
        return keras_fit(model, *arguments, **options)

    keras_fit = keras.Model.fit
    monkeypatch.setattr(keras.Model, "fit", slow_fit)
    monkeypatch.setattr(
        startup,
        "time",
        types.SimpleNamespace(perf_counter=lambda: float(next(readings))),
    )
    monkeypatch.setattr(startup, "_build_baseline", slow_baseline)
    monkeypatch.setattr(
        Network, "create", lambda self: one_convolution(self.name, self.size)
    )
    assert command_line.main(startup.COMMAND, ["resnet_50@16", "--repeats=2"]) == 0
    header, baseline, model = (
        line.split() for line in capsys.readouterr().out.splitlines()[-3:]
    )
    assert header == ["build", "s", "x", "first", "step", "s", "x"]
    assert baseline[:2] == ["Keras", "ResNet50"] and model[0] == "resnet_50@16"
    assert list(map(float, baseline[2:])) == [3, 1, 1, 1]
    assert list(map(float, model[1:])) == [1, 0.33, 3, 3]


@pytest.mark.slow
def test_both_backends_train_equally_in_turns(monkeypatch, capsys):
    """Each from the same weights."""
    settings = (
        "train_split=train[:320] eval_split=test[:8] input_size=8 global_batch_size=16"
    )
    monkeypatch.setattr(steps, "SETTINGS", {"a recipe": settings})
    monkeypatch.setattr(steps, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(steps, "NUM_LOSSES", 3)  # with so few images, rounding grows
    for backend in steps.ENGINES:
        monkeypatch.setitem(
            steps.ENGINES, backend, steps.ENGINES[backend] | {"XLA_FLAGS": xla_flags()}
        )
    rows = steps.benchmark_steps(epochs=1)
    assert [row["engine"] for row in rows] == ["TensorFlow", "JAX"]
    assert [float(row["difference of 3 losses"]) < 1e-4 for row in rows] == [True] * 2
    assert all(
        float(row["step_ms"]) > 0 and float(row["epoch_cpu_s"]) > 0 for row in rows
    )
    ratio = float(rows[1]["step_ms"]) / float(rows[0]["step_ms"])
    assert (
        float(rows[1]["step x"]) == pytest.approx(ratio, rel=0.01)
        and rows[0]["step x"] == "1.000"
    )
    assert capsys.readouterr().out.splitlines()[-1].startswith("a recipe  JAX")


def test_checkout_that_does_not_train_is_an_error(monkeypatch, tmp_path, capsys):
    (tmp_path / "lambdanet").mkdir()
    (tmp_path / "lambdanet" / "__init__.py").touch()
    monkeypatch.setattr(steps, "SETTLE_SECONDS", 0)
    monkeypatch.setattr(steps, "ENGINES", {})
    monkeypatch.setattr(
        steps.build, "build_model", lambda recipe: one_convolution("small", 8)
    )
    assert command_line.main(steps.COMMAND, [f"--before={tmp_path}"]) == 2
    assert "training on before ended with status 1" in capsys.readouterr().err


def test_detectors_take_turns(monkeypatch, capsys):
    """On a clock on which their steps take 3 and 2 seconds. The first turn, not timed, reads no end."""
    clock = iter(itertools.accumulate(itertools.cycle([0, 2, 0, 3])))
    step = types.SimpleNamespace(function=lambda: 0.0, inputs=())
    train_step = types.SimpleNamespace(build_train_step=lambda *arguments: step)
    run = types.SimpleNamespace(train_step=train_step)
    # Which needs another process.
    monkeypatch.setitem(sys.modules, "lambdanet.detection.run", run)
    monkeypatch.setattr(
        detection,
        "time",
        types.SimpleNamespace(perf_counter=lambda: float(next(clock))),
    )
    assert (
        command_line.main(
            detection.COMMAND, ["--experiments=first,second", "--steps=2"]
        )
        == 0
    )
    first, second, ratio, peak = capsys.readouterr().out.splitlines()
    assert first == "first      3.000 s per step  (3.000 to 3.000)"
    assert second == "second     2.000 s per step  (2.000 to 2.000)"
    assert ratio == "ratio 1.500  (1.500 to 1.500 over the turns)" and peak.startswith(
        "peak memory"
    )


@pytest.mark.parametrize(
    ("program", "word", "message"),
    [
        (detection, "--steps=0", "steps must be a positive integer, got 0"),
        (input, "--images=5", "images must be at least the batch size of 128, got 5"),
        (input, "--images=-1", "images must be a positive integer, got -1"),
        (steps, "--epochs=0", "epochs must be a positive integer, got 0"),
        (steps, "--before=/no", "before must be the folder of a checkout, got '/no'"),
        (startup, "resnet_51", "unknown model 'resnet_51'; did you mean resnet_5"),
        (startup, "--repeats=0", "repeats must be a positive integer, got 0"),
    ],
)
def test_wrong_arguments_are_refused(program, word, message, capsys):
    assert command_line.main(program.COMMAND, [word]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_synthetic_pictures_resemble_those_of_imagenet():
    random = np.random.default_rng(0)
    contents = [input.jpeg(random, 375, 500) for _ in range(3)]
    # ImageNet's have 110 kB
    assert 90_000 < np.mean([len(one) for one in contents]) < 140_000
    pixels = np.asarray(Image.open(io.BytesIO(contents[0])), np.float32)
    assert pixels.shape == (375, 500, 3) and 20 < pixels.std() < 80
    near = np.corrcoef(pixels[:, :-1].ravel(), pixels[:, 1:].ravel())[0, 1]
    far = np.corrcoef(pixels[:, :-90].ravel(), pixels[:, 90:].ravel())[0, 1]
    assert near > 0.75 > 0.5 > far


@pytest.fixture
def small(tmp_path):
    """Four TFRecord files of small pictures."""
    random = np.random.default_rng(0)
    for index in range(4):
        with tf.io.TFRecordWriter(
            str(tmp_path / records.shard_name("train", index, 4))
        ) as writer:
            for number in range(16):
                writer.write(records.encode_record(input.jpeg(random, 40, 48), number))
    return tmp_path


def test_command_measures_both_readers(
    small, two_operations, tmp_path, capsys, monkeypatch
):
    turn, means = input.take_turn, []

    def check_batch(batch):
        images, labels = batch
        assert (
            images.shape == (8, 24, 24, 3)
            and images.dtype == tf.float32
            and labels.shape == (8,)
        )
        means.append(abs(float(tf.reduce_mean(images))))

    def take_checked_turn(contender, *rest):
        turn(
            types.SimpleNamespace(
                take=lambda count: map(check_batch, contender.take(count))
            ),
            *rest,
        )

    monkeypatch.setattr(input, "take_turn", take_checked_turn)
    flags = [
        "--image_size=24",
        "--batch_size=8",
        "--images=16",
        "--repeats=1",
        f"--out={tmp_path / 'out'}",
    ]
    assert command_line.main(input.COMMAND, [f"--data_dir={small}", *flags]) == 0
    printed = capsys.readouterr().out
    assert len(means) == 4 * (2 + 2) and max(means) < 1.5  # all of them normalize
    table = csv.DictReader((tmp_path / "out" / "input.csv").read_text().splitlines())
    rows = {row["contender"]: row for row in table}
    assert list(rows) == [
        "ours",
        "model_garden",
        "ours+randaugment",
        "model_garden+randaugment",
    ]
    for name, row in rows.items():
        assert (
            name in printed
            and float(row["images_per_second"]) > 0
            and float(row["cpu_ms_per_image"]) > 0
        )
        assert bool(row["times_as_fast_as_model_garden"]) == name.startswith("ours")


def test_ratio_is_the_median_over_the_rounds():
    ours = input.Throughput("ours", speeds=[10.0, 20.0, 30.0], work=[0.1, 0.1, 0.2])
    theirs = input.Throughput(
        "model_garden", speeds=[5.0, 20.0, 10.0], work=[0.2, 0.2, 0.2]
    )
    row = ours.columns(theirs)
    assert row["images_per_second"] == 20 and row["cpu_ms_per_image"] == 100
    assert (
        row["times_as_fast_as_model_garden"] == 2
        and row["cpu_time_by_model_garden"] == 0.5
    )
    assert theirs.columns(None)["times_as_fast_as_model_garden"] is None


def test_selection_prints_a_row_per_number(capsys):
    assert (
        command_line.main(
            selection.COMMAND,
            ["--predictions=5000,9000", "--per_class=2"],
        )
        == 0
    )
    lines = capsys.readouterr().out.splitlines()[-2:]
    assert [line.split()[0] for line in lines] == ["5000", "9000"]
    assert all(float(cell) > 0 for line in lines for cell in line.split())


@pytest.mark.slow
def test_predictions_are_relative_to_the_model_alone(monkeypatch, capsys):
    monkeypatch.setattr(
        predictions, "_measure_alone", lambda processes: 1000.0 * processes
    )
    monkeypatch.setattr(predictions, "MODEL", "lambda_resnet_tiny")
    monkeypatch.setattr(predictions, "SHARD_SIZE", 2)
    assert command_line.main(predictions.COMMAND, ["--pictures=70"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[-2:]]
    for (_, processes, speed, ratio, with_start, memory), count in zip(
        rows, (1, 2), strict=True
    ):
        assert int(processes) == count and 0 < float(with_start) < float(speed)
        assert float(ratio) == pytest.approx(float(speed) / 1000 / count, abs=2e-3)
        assert float(memory) > 100


def test_rates_are_those_of_a_processor_that_keeps_to_them(capsys):
    """Times that are exactly the estimates by known rates give these rates."""
    true = device.Speed(3e10, 9e8, 4e9, 5e10)
    timings = []
    for case in cases.cases(
        ["14x14x64x2", "28x28x64x2", "40x40x64x1"], ["23"], ["forward"], "float32"
    ):
        size = (case.height, case.width)
        sizes = Sizes(case.batch, size, size, (23, 23), 4, 16, 16, needs_gradient=False)
        forms = [*products.candidates(sizes), *convolution.candidates(sizes)]
        timings += [
            rates.Timing(case, sizes, form, form.seconds(sizes, true)) for form in forms
        ]
    fitted = rates.fit(timings, device.DEVICES["CPU"].inference)
    for rate, expected in zip(
        dataclasses.astuple(fitted)[:4], dataclasses.astuple(true)[:4], strict=True
    ):
        assert rate == pytest.approx(expected, rel=0.05)


@pytest.mark.slow
def test_rates_are_printed_as_a_setting(monkeypatch, capsys, tmp_path):
    file = tmp_path / "rates.csv"
    arguments = ["--maps=7x7x64x1,9x9x64x1", "--repeats=1", f"--out={file}"]
    assert command_line.main(rates.COMMAND, arguments) == 0
    name, _, setting = (
        capsys.readouterr().out.splitlines()[-1].removeprefix("export ").partition("=")
    )
    monkeypatch.setenv(name, setting)
    training, inference = device.cpu_speeds()
    assert min(*dataclasses.astuple(training), *dataclasses.astuple(inference)) > 0
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert {row["pass"] for row in rows} == {"both", "forward"}
    assert min(float(row["milliseconds"]) for row in rows) > 0
