# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.cost_analysis`: counts, times, estimates and rank correlations."""

import os
import re
import subprocess
import sys
import types

import numpy as np
import pytest
from helpers import ENGINES, ROOT

from benchmarks import cost_analysis
from benchmarks.cost_analysis import Step
from lambdanet import command_line

MODELS = ("lambda_resnet_tiny", "resnet_micro", "lambda_resnet_micro")


def test_counts_of_a_product():
    import jax

    matrix = jax.ShapeDtypeStruct((64, 64), "float32")
    step = cost_analysis.compile_step("p", lambda a, b: a @ b, (matrix, matrix))
    assert step.flops == 2 * 64**3 and step.bytes == 3 * 4 * 64**2
    np.testing.assert_allclose(
        step.prepare()(), np.full((64, 64), 64 * 1e-4), rtol=1e-5
    )


def test_programs_take_turns(monkeypatch):
    """On a clock that a run of the second program moves twice as far."""
    clock = [0.0]
    runs = []

    def running(name, seconds):
        def run():
            runs.append(name)
            clock[0] += seconds

        return Step(name, 0.0, 0.0, lambda: run)

    time = types.SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr(cost_analysis, "time", time)
    programs = [running("a", 0.3), running("b", 0.6)]
    cost_analysis._take_turns(programs, 3)
    assert runs == [*"aabb", *"bbaa", *"aabb"]
    assert [step.median for step in programs] == pytest.approx([0.3, 0.6])
    assert {len(step.seconds) for step in programs} == {3}


def _step(name, flops, size, *seconds):
    return Step(name, flops, size, lambda: lambda: None, list(seconds))


def test_estimate_is_the_larger_of_both_times(capsys):
    """Where 1 GFLOP takes 1 ms, and 1 GB 1 s."""
    product = _step("product", 2e9, 1.0, 2e-3, 2e-3)
    addition = _step("addition", 1.0, 3e9, 3.0, 3.0)
    compiled = [
        _step("many FLOPs", 9e9, 1e6, 10e-3, 12e-3),
        _step("many bytes", 1e9, 5e6, 5e-3, 1.0),
        _step("small", 2e9, 1e6, 1e-3, 1e-3),
    ]
    found = cost_analysis._print_table(compiled, product, addition)
    printed = capsys.readouterr().out
    rows = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
    assert rows[1] == ["many FLOPs", "9.000", "0.001", "9.0", "11.0", "1.22"]
    assert rows[2][3:] == ["5.0", "502.5", "100.50"]
    assert "rates: 1000.0 GFLOP/s, 1.0 GB/s\n" in printed
    # The ranks of the times are 2, 3 and 1.
    assert found == pytest.approx(
        {
            "estimate": 0.5,
            "FLOPs": -0.5,
            "bytes": np.sqrt(3) / 2,
            "odd turns with even turns": 0.5,
        }
    )


@pytest.mark.slow
def test_command_prints_a_table_per_pass():
    words = [
        f"--models={','.join(MODELS)}",
        "--size=32",
        "--batch_size=1",
        "--repeats=2",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.cost_analysis", *words],
        env={**os.environ, **ENGINES["jax"], "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    _, infer, train = done.stdout.split("\n\n")
    flops = []
    for name, text in (("infer", infer), ("train", train)):
        lines = text.splitlines()
        assert lines[0] == f"{name}, batch 1, 32 pixels, 2 turns"
        rows = [line.split() for line in lines[2:5]]
        assert [row[0] for row in rows] == [*MODELS]
        numbers = np.array([row[1:] for row in rows], float)
        assert (numbers > 0).all() and np.isfinite(numbers).all()
        flops.append(numbers[:, 0])
        correlations = re.findall(r"-?\d\.\d{3}", lines[-1])
        assert len(correlations) == 4 and max(map(abs, map(float, correlations))) <= 1
    assert (flops[1] > 2 * flops[0]).all()  # gradients by inputs and by weights


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--models=resnet_50,resnet_50,resnet_rs_50", "models must be at least three"),
        ("--repeats=1", "repeats must be at least 2, got 1"),
        ("--size=0", "size must be a positive integer, got 0"),
        ("--passes=both", "unknown pass 'both'"),
        ("--repeats=2", "needs Keras on jax, got tensorflow; set KERAS_BACKEND=jax"),
    ],
)
def test_wrong_arguments_are_refused(word, message, capsys):
    assert command_line.main(cost_analysis.COMMAND, [word]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1 and printed.out == ""
