# SPDX-License-Identifier: Apache-2.0
"""Memory that is kept for the next arrays: the system has to provide no new pages for them."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="counts the pages of Linux"
)

# Each prints the pages, of 4 KiB, that the system provides for the tenth array of 64 MiB.
COUNT = "resource.getrusage(resource.RUSAGE_SELF).ru_minflt"
NUMPY = f"""
import resource, numpy as np
for _ in range(9):
    np.ones(2**24, np.float32)
before = {COUNT}
np.ones(2**24, np.float32)
print({COUNT} - before)
"""
TENSORFLOW = f"""
import resource, tensorflow as tf
x = tf.ones(2**24)
for _ in range(9):
    x + x
before = {COUNT}
x + x
print({COUNT} - before)
"""
PAGES = 2**26 // 4096


def new_pages(first, program, **variables):
    # Without oneDNN, TensorFlow returns memory, as on a processor without VNNI instructions.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TF_CPU_")
    }
    environment |= {"LD_PRELOAD": "", "TF_ENABLE_ONEDNN_OPTS": "0", **variables}
    command = [sys.executable, "-c", f"{first}\n{program}"]
    return int(
        subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout
    )


def test_keep_memory_needs_no_new_pages_for_the_next_array():
    keep = "import lambdanet\nassert lambdanet.keep_memory()"
    assert new_pages(keep, NUMPY) < PAGES / 100
    assert new_pages("", NUMPY) > PAGES / 100  # some, as few as pages of 2 MiB leave


@pytest.mark.parametrize("library_first", [False, True])
def test_keep_memory_holds_for_tensorflow_before_its_first_tensor(library_first):
    keep = "import lambdanet\nlambdanet.keep_memory()"
    if library_first:
        keep = f"import tensorflow\n{keep}"
    assert new_pages(keep, TENSORFLOW) < PAGES / 100
    assert new_pages("", TENSORFLOW) > PAGES / 100


def test_commands_keep_memory_of_tensorflow_unless_told_otherwise():
    command = "from lambdanet.command_line import exit_status\nexit_status('program', lambda: None)"
    assert new_pages(command, TENSORFLOW) < PAGES / 100
    assert new_pages(command, TENSORFLOW, TF_CPU_ALLOCATOR_USE_BFC="0") > PAGES / 100
