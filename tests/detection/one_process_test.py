# SPDX-License-Identifier: Apache-2.0
"""Layers, the trainer and detection in one process, in several orders of imports."""

import subprocess
from pathlib import Path

import pytest
from helpers import program

ORDERS = [
    ("tf_keras_by_its_old_name", "trainer", "retinanet"),
    ("retinanet", "trainer", "tf_keras_by_its_old_name"),
    ("layer", "retinanet", "layer", "trainer"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with the data of the trainer, which the first process prepares."""
    folder = tmp_path_factory.mktemp("one_process")
    (folder / "data").mkdir()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_parts_in_one_process(order, data, tmp_path):
    Path(tmp_path, "data").symlink_to(data / "data")
    done = subprocess.run(
        **program("one_process.py", tmp_path, *order), capture_output=True
    )
    assert done.returncode == 0 and "done" in done.stdout, done.stderr
