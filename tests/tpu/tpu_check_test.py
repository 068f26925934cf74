# SPDX-License-Identifier: Apache-2.0
"""Tests of `lambdanet tpu-check` with the TPU compiler: small programs and a small model."""

import concurrent.futures
import functools
import importlib.util
import json
import multiprocessing
import re
import sys
from importlib import metadata
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tpu_programs
from helpers import noise
from programs.small_model import small_model
from refusals import refused
from refused_commands import assert_refused
from tpu_programs import INNER, TRIPS, N
from training_runs import recipe_with

from lambdanet import cli, configs
from lambdanet.models import zoo
from lambdanet.tpu_estimates import check, compiler, steps
from lambdanet.tpu_estimates.check import DoesNotCompile, DoesNotFit
from lambdanet.training.run import build


def needs_compiler(test):
    missing = importlib.util.find_spec("libtpu") is None
    return pytest.mark.tpu(
        pytest.mark.skipif(missing, reason="the extra tpu-check is not installed")(test)
    )


FORKS = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module", autouse=True)
def imports_once():
    """Makes the processes that check steps forks of one that has imported TensorFlow and JAX."""
    FORKS.set_forkserver_preload(["tensorflow", "keras", "jax"])
    forking = mock.Mock(wraps=multiprocessing, get_context=lambda method: FORKS)
    with mock.patch.object(check, "multiprocessing", forking):
        yield


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A function that compiles a program once, for a topology."""
    folder = str(tmp_path_factory.mktemp("cache"))
    with concurrent.futures.ProcessPoolExecutor(1, FORKS) as pool:

        def compile_program(name, topology="v3:2x2"):
            arguments = (name, topology, folder)
            return pool.submit(tpu_programs.compile_program, *arguments).result()

        once = functools.cache(compile_program)
        once.again = compile_program
        yield once


def test_compiling_process_ends_with_its_parent(tmp_path):
    receiver, sender = FORKS.Pipe(duplex=False)
    parent = FORKS.Process(
        target=tpu_programs.wait_for_worker, args=(str(tmp_path / "log"), sender)
    )
    parent.start()
    sender.close()
    assert receiver.recv() == "started"
    parent.kill()
    # At once, or never: the process would hold the pipe for 900 seconds.
    assert receiver.poll(timeout=600), "the process still holds the pipe"
    with pytest.raises(EOFError):
        receiver.recv()


ON_BOTH = pytest.mark.parametrize(
    "topology", ["v3:2x2", pytest.param("v5e:2x2", marks=pytest.mark.weekly)]
)


@needs_compiler
@ON_BOTH
def test_large_product_is_near_peak(compiled, topology):
    report, _ = compiled("product", topology)
    assert report.flops == 2 * 8192**3
    assert 0.85 < report.peak_fraction <= 1
    assert report.num_cores == {"v3:2x2": 8, "v5e:2x2": 4}[topology]
    matrix = 2 * 8192**2  # bytes
    assert report.hbm == {"arguments": 2 * matrix, "outputs": matrix, "temporaries": 0}
    assert report.bytes == 3 * matrix


@needs_compiler
def test_loops_count_once_per_trip(compiled):
    once, _ = compiled("once")
    mapped, per_trip = compiled("mapped")
    assert once.flops == 2 * N**3 and not mapped.unbounded_loops
    assert mapped.flops == TRIPS * once.flops
    assert mapped.seconds == pytest.approx(TRIPS * once.seconds, rel=0.1)
    assert mapped.costliest_operations(1)[0].times == TRIPS
    # The compiler counts a loop once.
    assert mapped.bytes == pytest.approx(TRIPS * per_trip, rel=0.1)
    nested, _ = compiled("nested")
    assert nested.flops == TRIPS * INNER * once.flops and not nested.unbounded_loops
    assert max(operation.times for operation in nested.operations) == TRIPS * INNER
    report, _ = compiled("unbounded")
    assert report.flops == 2 * N**3 and report.unbounded_loops == ("while",)


@needs_compiler
@pytest.mark.parametrize("name", ["once", "networks"])
def test_bytes_match_the_compiler_count(name, compiled):
    report, traffic = compiled(name)
    assert report.bytes == pytest.approx(traffic, rel=0.02)


@needs_compiler
def test_costs_by_layer(compiled):
    report, _ = compiled("networks")
    layers = report.layers()
    # The second has a quarter of the outputs.
    assert list(layers)[:2] == ["first", "second"]
    assert layers["first"].flops == pytest.approx(4 * layers["second"].flops, rel=0.1)
    for quantity in ("cycles", "flops", "bytes"):
        whole = sum(getattr(operation, quantity) for operation in report.operations)
        assert sum(getattr(layer, quantity) for layer in layers.values()) == whole
    assert report.seconds == pytest.approx(
        sum(o.cycles for o in report.operations) / 940e6
    )


@needs_compiler
def test_second_compilation_comes_from_the_cache(compiled):
    report, traffic = compiled("networks")
    assert traffic
    assert compiled.again("networks") == (report, None)


@needs_compiler
def test_errors_name_the_layer(compiled):
    error, _ = compiled("too_large")
    assert isinstance(error, DoesNotFit)
    assert re.search(
        r"needs [\d.]+ GiB of HBM, and a core has 15\.\d+; .*: greedy 32.00 GiB",
        str(error),
    )
    error, _ = compiled("texts")
    assert isinstance(error, DoesNotCompile) and not isinstance(error, DoesNotFit)
    assert (
        str(error)
        == "texts does not compile for a TPU in layer wordy: AsString has no form for a TPU"
    )


BATCHES, TOP = {"train": 8, "infer": 4}, 20


@pytest.fixture(scope="module")
def results():
    return {}


@pytest.fixture
def check_small_model(results, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("LAMBDANET_HOME", str(tmp_path))
    monkeypatch.setattr(steps, "recipe_step", tpu_programs.two_block_step)

    def check(*arguments):
        if arguments not in results:
            topology, mode, top, backend, *words = arguments
            words += [
                f"--topology={topology}",
                f"--mode={mode}",
                f"--top={top}",
                f"--backend={backend}",
                "--json",
            ]
            words += (
                "--recipe=digits",
                "--set=input_size=16",
                f"--batch_size={BATCHES[mode]}",
            )
            before = len(list((tmp_path / "tpu_check").glob("*.json.gz")))
            assert cli.main(["tpu-check", *words]) == 0
            shown = capfd.readouterr()
            after = len(list((tmp_path / "tpu_check").glob("*.json.gz")))
            assert shown.err == "" and after == before + 1
            results[arguments] = json.loads(shown.out)
        return results[arguments]

    return check


@needs_compiler
@pytest.mark.parametrize(
    ("topology", "mode", "top"),
    [
        pytest.param("v3:2x2", "infer", 5, marks=pytest.mark.weekly),
        ("v5e:2x2", "train", TOP),
    ],
)
def test_command_with_a_small_model(topology, mode, top, check_small_model):
    found, batch = check_small_model(topology, mode, top, "tensorflow"), BATCHES[mode]
    assert (found["topology"], found["batch_per_core"]) == (topology, batch)
    assert "no input pipeline" in found["estimate"]
    cores, speed = found["cores"], found["examples_per_second"]
    assert speed["core"] == pytest.approx(batch / found["seconds"])
    assert speed["topology"] == pytest.approx(cores * speed["core"])
    assert 0 < found["fraction_of_peak"] < 1
    assert 0 < found["hbm_bytes"]["needed"] < found["hbm_bytes"]["available"]
    names = {layer.name for layer in zoo.create_model("lambda_resnet_tiny", 10).layers}
    assert len(found["layers"]) == len(found["operations"]) == top
    assert sum(layer["name"] in names for layer in found["layers"]) >= 3


@needs_compiler
@pytest.mark.slow
def test_parallel_step_of_jax_has_the_operations_of_tensorflow(
    check_small_model, request
):
    one = check_small_model("v5e:2x2", "train", TOP, "tensorflow")
    request.getfixturevalue("steps_in_jax_process")
    four = check_small_model("v5e:2x2", "train", TOP, "jax")
    assert four["name"] == one["name"].replace("TensorFlow", "JAX")
    # Gradients, no statistics.
    assert (one["collectives"], four["collectives"]) == ({}, {"all-reduce": 1})
    assert four["flops"] == pytest.approx(one["flops"], rel=0.1)
    weights = [found["hbm_bytes"]["arguments"] for found in (one, four)]
    assert weights[1] == pytest.approx(weights[0], rel=0.1)
    names = {layer.name for layer in zoo.create_model("lambda_resnet_tiny", 10).layers}
    by_layer = [
        {layer["name"] for layer in found["layers"]} & names for found in (one, four)
    ]
    assert len(by_layer[0] & by_layer[1]) > 10


@needs_compiler
@pytest.mark.parametrize(
    ("change", "num_all_reduces"),
    [
        # Of 14 normalizations, up to twice, and of the gradients.
        ("sync_batch_norm=True", range(15, 30)),
        # Of the gradients of each part, and of the loss.
        pytest.param("accumulate_steps=2", [3], marks=pytest.mark.weekly),
    ],
)
@pytest.mark.slow
def test_collectives_of_a_parallel_step(
    change, num_all_reduces, check_small_model, steps_in_jax_process
):
    found = check_small_model("v5e:2x2", "train", TOP, "jax", f"--set={change}")[
        "collectives"
    ]
    assert found.keys() == {"all-reduce"} and found["all-reduce"] in num_all_reduces


def test_recipe_step_equals_a_step_of_fit(monkeypatch):
    """Loss, weights, averages and the state of the optimizer equal those after one step of `fit`."""
    monkeypatch.setattr("lambdanet.models.zoo.create_model", small_model)
    recipe = recipe_with(
        "digits",
        dropout_rate=0.0,
        stochastic_depth_rate=0.0,
        ema_decay=0.5,
        weight_decay=0.1,
        label_smoothing=0.1,
        warmup_epochs=0.0,
    )
    images = noise(4, recipe.input_size, recipe.input_size, 3).astype("float32") / 255
    labels = tf.range(4, dtype=tf.int64)
    stepped, model = build.build_model(recipe), build.build_model(recipe)
    model.set_weights(stepped.get_weights())
    monkeypatch.setattr(steps, "build_model", lambda recipe: stepped)
    step = steps.recipe_step(recipe, "train", 4)
    loss = float(tf.function(step.function)(tf.constant(images), labels)["loss"])
    build.compile_model(
        recipe, model, build.build_optimizer(recipe, model.weights, 1000)
    )
    history = model.fit(images, labels, batch_size=4, verbose=0)
    assert loss == pytest.approx(history.history["loss"][0], rel=1e-5)
    found, expected = (
        [*one.variables, *one.optimizer.variables] for one in (stepped, model)
    )
    assert len(expected) > 3 * len(model.trainable_variables)
    for value, variable in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            value, variable, rtol=1e-3, atol=1e-5, err_msg=variable.path
        )


def test_recipes_of_steps():
    recipe = configs.get_recipe("imagenet_350:lambda_resnet_152@192")
    assert steps.recipe_for("lambda_resnet_152", 192) == recipe
    other = steps.recipe_for("efficientnet_b0")
    found = (other.model, other.input_size, other.epochs)
    assert found == ("efficientnet_b0", 224, 350)
    recipe = recipe_with("digits", training_size=20)
    for mode, size in (("train", 20), ("infer", recipe.input_size)):
        assert steps.recipe_step(recipe, mode, 2).inputs[0].shape[1] == size
    with refused("num_classes must be .*--set=num_classes=1000, got 0"):
        steps.recipe_step(configs.get_recipe("folder"))
    with refused("unknown mode 'test'"):
        steps.recipe_step(recipe, "test")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--model=resnet_50", "--topology=v9:2x2"],
            "unknown topology 'v9:2x2'; did you mean .*v3:2x2",
        ),
        ([], "needs one of --recipe, --model, --experiment"),
        (["--recipe=digits", "--set=model_options={'scop': 3}"], "no option 'scop'"),
        (["--recipe=digits", "--top=0"], "--top must be a positive integer, got 0"),
        (
            ["--recipe=digits", "--fit", "--batch_size=0"],
            "batch_size must be a positive integer, got 0",
        ),
        (["--model=resnet_50", "--backend=torch"], "unknown backend 'torch'"),
        (
            ["--experiment=retinanet_x", "--backend=jax"],
            "must be tensorflow with --experiment, got 'jax'",
        ),
    ],
)
def test_wrong_argument_is_one_line(words, message, capsys):
    assert_refused(cli.main(["tpu-check", *words]), message, capsys)


def test_missing_and_other_packages_are_named(monkeypatch, capsys):
    with monkeypatch.context() as patch:
        missing = mock.Mock(side_effect=metadata.PackageNotFoundError("jax"))
        patch.setattr(compiler.metadata, "version", missing)
        status = cli.main(["tpu-check", "--recipe=digits"])
    message = r"jax is not installed; pip install 'lambdanet\[tpu-check\]'"
    assert_refused(status, message, capsys)
    monkeypatch.setattr(
        compiler, "versions", lambda: {"jax": "9.9", "jaxlib": "9.9", "libtpu": "9.9"}
    )
    monkeypatch.setitem(sys.modules, "jax._src.interpreters", None)
    message = r"cannot use jax 9.9, .*ModuleNotFoundError.*\[tpu-check-tensorflow\]"
    with refused(message):
        compiler.compile_hlo(b"", "v3:2x2")
