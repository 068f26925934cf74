# SPDX-License-Identifier: Apache-2.0
"""Prints the peak memory of NumPy arrays: 16 MiB."""

import numpy as np

from benchmarks.turns.memory import peak_bytes


def run():
    a = np.ones(2**21)  # 16 MiB
    a = None  # noqa: F841
    b, c = np.ones(2**20), np.ones(2**20)  # noqa: F841


run()
print(peak_bytes(run, 3))
