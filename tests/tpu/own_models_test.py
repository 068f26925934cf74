# SPDX-License-Identifier: Apache-2.0
"""Tests of `lambdanet tpu-check --model=module:function`: models of a user, on JAX."""

import json

import pytest
from processes import run_code
from programs.own_models import BATCH, INPUTS, WIDTH
from refused_commands import assert_refused

from lambdanet import cli
from lambdanet.tpu_estimates import check, chips, compiler

pytestmark = pytest.mark.tpu


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch, steps_in_jax_process):
    monkeypatch.setenv("LAMBDANET_HOME", str(tmp_path))


def report_of(name, capfd, *words):
    words = [f"--model=programs.own_models:{name}", "--top=50", "--json", *words]
    assert cli.main(["tpu-check", *words]) == 0
    return json.loads(capfd.readouterr().out)


@pytest.mark.slow
def test_a_model_without_a_lambda_layer(capfd):
    found = report_of("perceptron", capfd, "--topology=v5e:2x2")
    assert found["name"] == "own, train, float32, JAX" and found["cores"] == 4
    assert found["batch_per_core"] == BATCH
    forward = 2 * BATCH * (INPUTS * WIDTH + WIDTH * WIDTH + WIDTH * 10)
    first = 2 * BATCH * INPUTS * WIDTH  # needs no gradient of its inputs
    assert found["flops"] == 3 * forward - first
    assert {"up", "down", "logits", "adam"} <= {
        each["name"] for each in found["layers"]
    }
    assert found["collectives"] and 0 < found["collective_seconds"] < 1e-3
    assert found["opcodes"]["fusion"] > 0 and found["note"] == ""
    # NumPy's float64 and int64 become the types of JAX.
    weights = INPUTS * WIDTH + WIDTH + WIDTH * WIDTH + WIDTH + WIDTH * 10 + 10
    data = 4 * BATCH * (INPUTS + 1)
    arguments = found["hbm_bytes"]["arguments"]
    assert arguments == pytest.approx(3 * 4 * weights + data, rel=0.1)


@pytest.mark.slow
def test_two_cores_divide_the_variables_of_a_layout(capfd):
    whole = report_of("perceptron", capfd, "--topology=v5e:2x2")
    found = report_of("divided", capfd, "--topology=v5e:2x2", "--model_parallel=2")
    assert found["cores_per_batch"] == 2 and whole["cores_per_batch"] == 1
    arguments = [each["hbm_bytes"]["arguments"] for each in (whole, found)]
    assert arguments[1] < 0.65 * arguments[0]
    assert found["flops"] == pytest.approx(whole["flops"] / 2, rel=0.05)
    speed = found["examples_per_second"]
    assert speed["core"] == pytest.approx(BATCH / 2 / found["seconds"])
    assert speed["topology"] == pytest.approx(4 * speed["core"])
    assert sum(found["collectives"].values()) > sum(whole["collectives"].values())


@pytest.mark.slow
def test_a_train_step_of_its_own_and_other_batches(capfd):
    words = ("--topology=tpu7x:2x2x1", "--batch_size=32")
    found = report_of("custom_step", capfd, *words)
    assert found["batch_per_core"] == 32 and found["cores"] == 8
    assert "dense" in {each["name"] for each in found["layers"]}
    assert found["seconds"] > 0 and found["chip"] == "TPU7x core"
    found = report_of("perceptron", capfd, "--mode=infer", "--topology=v6e:1x1")
    assert found["flops"] == 2 * BATCH * (INPUTS * WIDTH + WIDTH * WIDTH + WIDTH * 10)


@pytest.mark.slow
@pytest.mark.weekly
def test_pools_of_lambda_layers_compile_for_tpu7x(capfd):
    """Its compiler aborts at slices with strides that are collected."""
    found = report_of("pooled", capfd, "--topology=tpu7x:2x2x1")
    assert found["seconds"] > 0
    assert "pooled" in {each["name"] for each in found["layers"]}


@pytest.mark.slow
def test_python_without_tensorflow():
    """`lambdanet.tpu_check` in a process with Keras on JAX, which imports no TensorFlow."""
    program = """
import sys
import lambdanet
from programs import own_models
model, batch = own_models.custom_step()
report = lambdanet.tpu_check(model, batch, topology="v5e:1x1")
assert "tensorflow" not in sys.modules
print(report.batch, report.seconds > 0, report.num_cores)
"""
    found = run_code(program, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
    assert found.stdout.split() == ["16", "True", "1"], found.stderr


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("unknown_pattern", ["--model_parallel=2"], "layout must be patterns of paths"),
        (
            "divided",
            ["--model_parallel=3"],
            "a divisor of 4, the number of cores, got 3",
        ),
        ("divided", [], "model_parallel must be above 1 with a layout"),
        ("not_compiled", [], "model must be compiled, as for `fit`, got 'raw'"),
        ("no_batch", [], "must be a model and an example batch"),
        ("fails", [], "fails: no such file: weights.h5"),
        ("wrong_shapes", [], "two_losses.* cannot be traced: "),
        ("nothing", [], "module:function, a function of programs.own_models"),
        ("perceptron", ["--topology=v5e:3x999"], "libtpu .* does not know topology"),
    ],
)
def test_mistakes_are_one_line(name, words, message, capfd):
    words = [f"--model=programs.own_models:{name}", "--topology=v5e:2x2", *words]
    assert_refused(cli.main(["tpu-check", *words]), message, capfd)


def test_known_topologies(capsys):
    assert cli.main(["tpu-check", "--list_topologies"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[1:]] == [*chips.TOPOLOGIES]


def test_programs_that_cannot_be_read():
    libtpu = compiler.versions()["libtpu"]
    for text in ("HloModule new, form=2\n", "ENTRY %main (x) {\n  ROOT %y = z\n}"):
        profile, note = check._read_profile(text)
        assert not profile.operations
        assert note == f"libtpu {libtpu} writes no cycles that can be read"
    assert "cannot read the program" in check._read_profile("")[1]
