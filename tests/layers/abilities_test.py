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

from lambdanet import backend as K

TASKS = constructions.SOLUTIONS
PAGE = ROOT / "docs/explanation/what_each_half_can_do.md"
# Without the half that the task does not need: content would add the mean color to that of a pointer.
HALVES = {
    "pointer grid": {"content": False},
    "recall": {"position": None},
    "in-context recall": {},
}


@pytest.mark.parametrize("task", TASKS)
def test_outputs_of_the_half_are_the_answers(task):
    draw, build = TASKS[task]
    inputs, answers = draw()
    outputs = K.convert_to_numpy(build(**HALVES[task])(inputs, training=False))
    expected = constructions.one_hot(answers, outputs.shape[-1])
    np.testing.assert_allclose(outputs[answers >= 0], expected[answers >= 0], atol=1e-4)


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
