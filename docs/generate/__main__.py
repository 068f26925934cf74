# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of the README and of the pages, and the pages of the model families.

With --check it writes nothing, and fails where one of them is not current, as `make lint` does. It warns of
files of docs/results that were measured before their code changed.
"""

import sys
from pathlib import Path

from generate import measured, stale_pages, write_committed
from generate.pages import read_csv

ROOT = Path(__file__).parents[2]

if sys.argv[1:] == ["--check"]:
    if outdated := ", ".join(measured.outdated(read_csv("measured.csv"))):
        print(f"warning: the code has changed that docs/results measured: {outdated}")
    stale = [str(path.relative_to(ROOT)) for path in stale_pages(ROOT / "docs")]
    if stale:
        sys.exit(f"not current: {', '.join(stale)}; `make tables` writes them")
else:
    write_committed(ROOT / "docs")
