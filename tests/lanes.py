# SPDX-License-Identifier: Apache-2.0
"""Divides the tests between `make test` and `make test-slow`, of the extra `test`, and other targets."""

import importlib.util
import re
from pathlib import Path

from source_tree import ROOT

# Of tests that need nothing else, but are too long for `make test`.
LONG = ("more time", [])
# What the tests of a folder or file need besides, and the modules by which it is known to be installed.
FILES = {
    "backend/engines_test.py": ("PyTorch", ["torch"]),
    "benchmarks": ("Apache Beam and PyTorch", ["apache_beam", "torch"]),
    "backend/freed_memory_test.py": LONG,
    "detection": ("TF Model Garden", ["official", "tf_keras"]),
    "explain": LONG,
    "layers/fuzz_layers_test.py": LONG,
    "models/timm_networks_test.py": ("timm", ["timm"]),
    "models/weights/timm_weights_test.py": ("timm", ["timm"]),
    "project": ("the tools of development", ["sphinx", "yaml"]),
    "tpu": ("the TPU compiler", ["libtpu"]),
    "training/data/fuzz_pictures_test.py": LONG,
    "training/data/picture_routes_test.py": LONG,
    "training/beam": ("Apache Beam", ["apache_beam"]),
    "training/own_model_test.py": LONG,
    "training/run/devices_test.py": LONG,
    "training/run/multi_worker_test.py": LONG,
    "training/serving/export_int8_test.py": LONG,
    "training/serving/exported_axes_test.py": LONG,
}
# What single tests with a marker need.
MARKERS = {
    "browser": "Chromium",
    "engines": "PyTorch",
    "peers": "timm, PyTorch or lucidrains' layer",
    "tpu": "the TPU compiler",
}
# The expressions of pytest's option -m with which `make test`, `test-slow`, `test-rest` and `weekly` run, on
# JAX after "jax and".
TEST = "not slow and not rest and not weekly"
SLOW = "slow and not rest and not weekly"
REST = "rest and not weekly"
WEEKLY = "weekly"
# That of `make check`, which has the tests near a change, and twenty seconds for them.
CHECK = "not slow and not weekly"


def needs(path: Path) -> tuple[str, list[str]] | None:
    """Returns what a test file needs besides the extra `test`, in words and as modules; None: nothing."""
    name = path.relative_to(ROOT / "tests").as_posix()
    for start, found in FILES.items():
        if name == start or name.startswith(f"{start}/"):
            return found
    return None


def may_have(path: Path, expression: str) -> bool:
    """Returns whether a file may have tests of a lane: by its path, or by a marker in its text.

    Args:
      path: the file of tests.
      expression: the value of -m.
    """
    if expression == REST:
        if needs(path):
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
    _, modules = needs(path) or ("", [])
    return [module for module in modules if importlib.util.find_spec(module) is None]


def left_out(expression: str) -> list[str]:
    """Returns the lines on what did not run, and why, at the end of a run.

    Args:
      expression: the value of -m.
    """
    test = "`make test` has the other tests: layers, models, weights, training, export and commands"
    slow = "`make test-slow` has the long ones"
    words = sorted({words for words, _ in FILES.values()} | set(MARKERS.values()))
    rest = f"`make test-rest` has those that need {'; '.join(words)}"
    weekly = "`make weekly` has whole tables and long runs"
    said = {
        TEST: [slow, rest, weekly],
        SLOW: [test, rest, weekly],
        REST: [test, slow, weekly],
    }
    if lines := said.get(expression.removeprefix("jax and ")):
        return lines
    lines = []
    if expression == CHECK:
        lines.append(
            "left out: what is slow or weekly, what began too late, and files that are not near the change"
        )
    for path in sorted((ROOT / "tests").glob("**/*_test.py")):
        if absent := missing(path):
            lines.append(
                f"not run: {path.relative_to(ROOT)}, which needs {', '.join(absent)}"
            )
    return lines
