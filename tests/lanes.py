# SPDX-License-Identifier: Apache-2.0
"""Divides the tests between `make test` and `make test-slow`, of the extra `test`, and other targets."""

import importlib.util
import re
from pathlib import Path

from source_tree import ROOT

# The modules that tests of a folder or file need besides; none for those that are too long for `make test`.
FILES = {
    "backend/engines_test.py": ["torch"],
    "benchmarks": ["apache_beam", "torch"],
    "backend/freed_memory_test.py": [],
    "detection": ["official", "tf_keras"],
    "explain": [],
    "layers/fuzz_layers_test.py": [],
    "models/timm_networks_test.py": ["timm"],
    "models/weights/timm_weights_test.py": ["timm"],
    "project": ["sphinx", "yaml"],
    "tpu": ["libtpu"],
    "training/data/fuzz_pictures_test.py": [],
    "training/data/picture_routes_test.py": [],
    "training/beam": ["apache_beam"],
    "training/run/devices_test.py": [],
    "training/run/multi_worker_test.py": [],
    "training/serving/export_int8_test.py": [],
    "training/serving/exported_axes_test.py": [],
}
# Of single tests that need Chromium, PyTorch with timm or lucidrains' layer, or the TPU compiler.
MARKERS = ("browser", "peers", "tpu")
# The expressions of pytest's option -m with which `make test-slow`, `test-rest` and `weekly` run.
SLOW = "slow and not rest and not weekly"
REST = "rest and not weekly"
WEEKLY = "weekly"


def needs(path: Path) -> list[str] | None:
    """Returns the modules that a test file needs besides the extra `test`; None: `make test` has the file."""
    name = path.relative_to(ROOT / "tests").as_posix()
    for start, modules in FILES.items():
        if name == start or name.startswith(f"{start}/"):
            return modules
    return None


def may_have(path: Path, expression: str) -> bool:
    """Returns whether a file may have tests of a lane: by its path, or by a marker in its text.

    Args:
      path: the file of tests.
      expression: the value of -m.
    """
    if expression == REST:
        if needs(path) is not None:
            return True
        markers = "|".join([*MARKERS, "rest"])
        pattern = rf"\bmark\.({markers})\b|[(,] ?timm\b"
    elif expression == SLOW:
        pattern = r"\bmark\.slow\b"
    elif expression == WEEKLY:
        pattern = r"\bmark\.weekly\b"
    else:
        return True
    return bool(re.search(pattern, path.read_text(encoding="utf-8")))


def missing(path: Path) -> list[str]:
    """Returns the modules that a test file needs, and that are not installed."""
    return [x for x in needs(path) or [] if importlib.util.find_spec(x) is None]
