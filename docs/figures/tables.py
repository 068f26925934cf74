# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of the README, each the output of a command, between its markers.

python docs/figures/tables.py
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAMBDANET = ["-m", "lambdanet.cli"]
COMMANDS = {
    "peers": ["docs/results/peers.py", "--table"],
    "pretrained": [*LAMBDANET, "list", "lam*", "--pretrained", "--format=markdown"],
}


def main() -> None:
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    for name, command in COMMANDS.items():
        run = subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True, text=True)
        text = replace(text, name, run.stdout)
    readme.write_text(text, encoding="utf-8")


def replace(text: str, name: str, table: str) -> str:
    """Returns the text with another table between the markers of this name."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    return re.sub(f"{begin}.*?{end}", lambda _: begin + table + end, text, count=1, flags=re.DOTALL)


if __name__ == "__main__":
    main()
