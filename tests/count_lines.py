# SPDX-License-Identifier: Apache-2.0
"""Prints the number of lines of the library; fails above the budget in pyproject.toml (`make lint`)."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIBRARY = ("lambdanet", "models", "training", "detection", "configs", "benchmarks")


def main() -> str | None:
    """Prints the count, and returns an error message for a library that is too large."""
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["lambdanet"]["max_lines"]
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", *(f"{room}/*.py" for room in LIBRARY)]
    paths = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    files = [ROOT / path for path in paths if (ROOT / path).exists()]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    print(f"library: {lines:,} lines in {len(files)} modules; the budget is {budget:,} lines")
    return (
        f"{lines - budget:,} lines over budget; see max_lines in pyproject.toml" if lines > budget else None
    )


if __name__ == "__main__":
    sys.exit(main())
