# SPDX-License-Identifier: Apache-2.0
"""Compiled training steps in files, on the CPU, for one and for two devices of JAX."""

import json
import os
import re
import subprocess
import sys

import pytest
from helpers import ENGINES
from source_tree import ROOT

from lambdanet import cli

PROGRAM = ROOT / "tests/programs/train_with_executable.py"
DEVICES = "--xla_force_host_platform_device_count=2"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the program finds, which saves in one process and trains in another."""
    folder = tmp_path_factory.mktemp("executables")
    flags = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}".strip()
    variables = {
        "LAMBDANET_HOME": f"{folder}/home",
        "PYTHONPATH": f"{PROGRAM.parent}:{ROOT / 'tests'}:{ROOT}",
        "TFDS_DATA_DIR": str(folder),
        "XLA_FLAGS": flags,
    }
    for task in ("save", "train"):
        done = subprocess.run(
            [sys.executable, PROGRAM, folder, task],
            env=os.environ | ENGINES["jax"] | variables,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["one_device", "mirrored"])
def test_a_run_with_an_executable_is_the_run_without(found, devices):
    assert found[devices]["distance"] == 0
    assert "the compiled step is that of" in found[devices]["shown"]
    assert found[devices]["compiled"] == ["test_step"]  # and no training step
    # Of another seed, and with several steps per execution.
    assert found["seed"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["one_device", "mirrored"])
def test_a_run_is_resumed_with_an_executable(found, devices):
    resumed = found[f"{devices}_resumed"]
    assert "after epoch 0 of 2 and 2 of 4 steps, step 2\n" in resumed["shown"]
    assert resumed["distance"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("mirrored", "num_devices of executable .* must be 1, as in this run, got 2"),
        ("steps", "steps_per_epoch of executable .* must be 4, .* got 5"),
        ("batch", r"batch of executable .* must be \['float32\[16, .* got .*\[8, "),
        ("recipe", r"its recipe has epochs 3 \(in this run 2\)"),
        ("device_kind", "device_kind of executable .* must be cpu, .* got 'other'"),
        ("jax_version", "jax_version of executable .* got 'other'"),
        ("lambdanet_version", "lambdanet_version of executable .* got 'other'"),
        ("hash", "the recipes agree, but not the programs"),
        ("truncated", "is damaged"),
        ("damaged", "is damaged"),
        ("text", "is damaged"),
        ("archive", "is damaged"),
        ("nowhere", "does not exist"),
        ("frozen", "freeze must be empty with an executable"),
        ("resized", "sizes must be empty with an executable"),
    ],
)
def test_another_step_is_refused_before_anything_is_written(found, file, message):
    shown, has_written = found["refusals"][file]
    assert re.search(message, shown) and "\n" not in shown
    assert not has_written


def test_on_tensorflow_there_is_none(tmp_path, capsys):
    words = ["--recipe=digits", f"--model_dir={tmp_path / 'run'}", "--executable=step"]
    program = [sys.executable, "-m", "lambdanet.cli", "train", *words]
    done = subprocess.run(
        [*program, "--backend=tensorflow"], capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "backend must be jax for an executable, got 'tensorflow'" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("field", ["mixup_alpha=0.2", "sizes=(16, 24)"])
def test_what_a_run_would_refuse_is_not_saved(field, tmp_path, capsys):
    path = tmp_path / "step"
    words = [f"--save={path}", "--steps_per_epoch=4", f"--set={field}"]
    assert cli.main(["tpu-check", "--recipe=digits", *words]) == 2
    assert "must be empty or 0 with --save" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--recipe=digits", "--save=step"],
        ["--recipe=digits", "--steps_per_epoch=4"],
        ["--recipe=digits", "--save=step", "--steps_per_epoch=4", "--mode=infer"],
        ["--model=module:function", "--save=step", "--steps_per_epoch=4"],
    ],
)
def test_what_can_be_saved(words, capsys):
    assert cli.main(["tpu-check", *words]) == 2
    printed = capsys.readouterr().err
    assert "--save needs --steps_per_epoch=N" in printed and printed.count("\n") == 1
