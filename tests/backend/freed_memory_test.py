# SPDX-License-Identifier: Apache-2.0
"""Memory of freed arrays stays with the process, for the next ones."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads the resident memory on Linux"
)

# Each prints which part of the memory of an array of 64 MiB the process keeps when the array is freed.
RESIDENT = "int(open('/proc/self/statm').read().split()[1])"
KEPT = f"""
held = {RESIDENT} - before
del y
print(({RESIDENT} - before) / held)
"""
NUMPY = f"""
import numpy as np
before = {RESIDENT}
y = np.ones(2**24, np.float32)
{KEPT}
"""
TENSORFLOW = f"""
import tensorflow as tf
x = tf.ones(2**24)
x[:9] + x[:9]
before = {RESIDENT}
y = x + x
{KEPT}
"""


def kept(first, program, **variables):
    # Without oneDNN, TensorFlow returns memory, as on a processor without VNNI instructions.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TF_CPU_")
    }
    environment |= {"LD_PRELOAD": "", "TF_ENABLE_ONEDNN_OPTS": "0", **variables}
    command = [sys.executable, "-c", f"{first}\n{program}"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return float(done.stdout)


def test_keep_memory_keeps_arrays_of_numpy():
    assert kept("import lambdanet\nassert lambdanet.keep_memory()", NUMPY) > 0.5
    assert kept("", NUMPY) < 0.5


@pytest.mark.slow
def test_keep_memory_holds_for_tensorflow_before_its_first_tensor():
    keep = "import tensorflow\nimport lambdanet\nlambdanet.keep_memory()"
    assert kept(keep, TENSORFLOW) > 0.5


@pytest.mark.slow
def test_commands_keep_memory_of_tensorflow_unless_told_otherwise():
    command = "from lambdanet.core.command_line import exit_status\nexit_status('program', lambda: None)"
    assert kept(command, TENSORFLOW) > 0.5
    assert kept(command, TENSORFLOW, TF_CPU_ALLOCATOR_USE_BFC="0") < 0.5
