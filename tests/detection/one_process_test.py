# SPDX-License-Identifier: Apache-2.0
"""The trainer and detection in one process, in both orders of imports."""

import subprocess

import pytest
from helpers import program


@pytest.mark.slow
@pytest.mark.parametrize(
    "order",
    [
        ("tf_keras_by_its_old_name", "trainer", "retinanet"),
        pytest.param(
            ("retinanet", "trainer", "tf_keras_by_its_old_name"),
            marks=pytest.mark.weekly,
        ),
    ],
)
def test_parts_in_one_process(order, tmp_path):
    (tmp_path / "data").mkdir()
    done = subprocess.run(
        **program("one_process.py", tmp_path, *order), capture_output=True
    )
    assert done.returncode == 0 and "done" in done.stdout, done.stderr
