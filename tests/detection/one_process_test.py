# SPDX-License-Identifier: Apache-2.0
"""The trainer and detection in one process, in both orders of imports."""

import pytest
from processes import output_of


@pytest.mark.weekly
@pytest.mark.parametrize(
    "order",
    [
        ("tf_keras_by_its_old_name", "trainer", "retinanet"),
        ("retinanet", "trainer", "tf_keras_by_its_old_name"),
    ],
)
def test_parts_in_one_process(order, tmp_path):
    (tmp_path / "data").mkdir()
    assert "done" in output_of("one_process.py", tmp_path, *order)
