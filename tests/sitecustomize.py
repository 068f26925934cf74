# SPDX-License-Identifier: Apache-2.0
"""Python imports this file first in every process that tests start: it makes garbage collections rare."""

import atexit
import gc

gc.set_threshold(20_000)
atexit.register(gc.freeze)  # of the modules, a million objects
