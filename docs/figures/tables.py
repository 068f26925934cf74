# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of the README between their markers.

python docs/figures/tables.py
"""

import runpy
from pathlib import Path

from lambdanet.models import model_list
from lambdanet.models.names import list_models

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


def main() -> None:
    readme = ROOT / "README.md"
    readme.write_text(replace_tables(readme.read_text(encoding="utf-8")), encoding="utf-8")


def replace_tables(text: str) -> str:
    """Returns the text with current tables."""
    for name, table in {"peers": peers(), "pretrained": pretrained(), "tpu": tpu()}.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{table}{end}{rest.partition(end)[2]}"
    return text


def peers() -> str:
    """Returns the comparison with other libraries."""
    return runpy.run_path(str(RESULTS / "peers.py"))["table"]()


def pretrained() -> str:
    """Returns the accuracies of weights with lambda layers, as `lambdanet list --pretrained` prints them."""
    return model_list.render(
        list_models("lam*", pretrained=True), table_format="markdown", with_accuracy=True
    )


def tpu() -> str:
    """Returns the totals of the report of `lambdanet tpu-check` in docs/results/tpu_check.txt."""
    first, _, _, *lines = (RESULTS / "tpu_check.txt").read_text(encoding="utf-8").splitlines()
    totals = lines[: lines.index("")]
    return "\n".join(["```text", first, *totals, "```", ""])


if __name__ == "__main__":
    main()
