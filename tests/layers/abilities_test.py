# SPDX-License-Identifier: Apache-2.0
"""Tasks that each half of a lambda layer solves, by weights set by hand, on the backend of this process."""

import constructions
import numpy as np
import pytest
from source_tree import ROOT

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


def test_counts_on_the_page_are_those_of_the_program(capsys):
    constructions.main()
    assert capsys.readouterr().out.strip() in PAGE.read_text(encoding="utf-8")
