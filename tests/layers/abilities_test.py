# SPDX-License-Identifier: Apache-2.0
"""Tests of what each half of a lambda layer can do, by weights set by hand."""

import os
import re
import subprocess
import sys

import constructions
import numpy as np
import pytest
from helpers import ENGINES, ROOT
from naive_layers import lambda_by_equations

from lambdanet import LambdaLayer
from lambdanet import backend as K

TASKS = constructions.SOLUTIONS
PAGE = ROOT / "docs" / "explanation" / "what_each_half_can_do.md"
# Without the half that the task does not need: content would add the mean color to that of a pointer.
HALVES = {
    "pointer grid": {"content": False},
    "recall": {"position": None},
    "in-context recall": {},
}


def assert_solved(outputs, examples):
    right, asked = constructions.count_right(outputs, examples.answers)
    assert right == asked > 40


@pytest.mark.parametrize("task", TASKS)
def test_outputs_of_the_half_are_the_answers(task):
    draw, build = TASKS[task]
    inputs, answers = draw()
    outputs = K.convert_to_numpy(build(**HALVES[task])(inputs, training=False))
    expected = constructions.one_hot(answers, outputs.shape[-1])
    np.testing.assert_allclose(outputs[answers >= 0], expected[answers >= 0], atol=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_solved_by_the_equations_of_the_paper(task):
    draw, build = TASKS[task]
    examples = draw(number=4)
    outputs = examples.inputs
    for layer in build().layers[1:]:
        if isinstance(layer, LambdaLayer):
            outputs = lambda_by_equations(layer, outputs)
        else:
            outputs = examples.inputs + outputs
    assert_solved(outputs, examples)


@pytest.mark.engines
@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_solved_on_every_engine(engine):
    environment = {**os.environ, **ENGINES[engine]}
    command = [sys.executable, "tests/constructions.py"]
    options = {"env": environment, "cwd": ROOT, "capture_output": True, "text": True}
    done = subprocess.run(command, **options, check=False)
    counts = re.findall(r"([\d,]+) +([\d,]+)$", done.stdout, re.MULTILINE)
    assert len(counts) == len(TASKS), done.stderr
    assert done.stdout.strip() in PAGE.read_text(encoding="utf-8")
    assert all(right == asked for right, asked in counts)
