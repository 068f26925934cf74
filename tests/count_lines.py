# SPDX-License-Identifier: Apache-2.0
"""Prints the number of lines of the library; fails above the budget in pyproject.toml (`make lint`)."""

import sys
import tomllib

import source_tree
from source_tree import FLOORS, ROOT


def main() -> str | None:
    """Prints the count, and returns an error message for a library that is too large."""
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["lambdanet"]["max_lines"]
    files = [path for floor in FLOORS for path in source_tree.files_of(floor)]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    print(f"library: {lines:,} lines in {len(files)} modules; the budget is {budget:,} lines")
    return (
        f"{lines - budget:,} lines over budget; see max_lines in pyproject.toml" if lines > budget else None
    )


if __name__ == "__main__":
    sys.exit(main())
