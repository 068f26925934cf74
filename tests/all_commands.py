# SPDX-License-Identifier: Apache-2.0
"""Every command of the checkout."""

import importlib

from limits import DETECTION
from source_tree import ROOT

from benchmarks.device import __main__ as device
from lambdanet import cli

_MODULES = [f"lambdanet.detection.{name}" for name in DETECTION]
_MODULES += [
    f"benchmarks.{path.stem}" for path in (ROOT / "benchmarks").glob("[a-z]*.py")
]
COMMANDS = [*cli.COMMANDS, device.COMMAND]
COMMANDS += [importlib.import_module(name).COMMAND for name in _MODULES]
