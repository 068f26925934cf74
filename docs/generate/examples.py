# SPDX-License-Identifier: Apache-2.0
"""Examples in the form of keras.io: a program whose text is in strings becomes a tutorial, and so a notebook.

The first string has the title, one that begins with "shell" has commands. What the program printed is in a
file of its name: `python docs/examples/NAME.py > docs/examples/NAME.txt`.
"""

import re
from pathlib import Path

TEXT = re.compile(r'^"""(.*?)^"""\n', re.MULTILINE | re.DOTALL)


def pages(folder: Path) -> dict[str, str]:
    """Returns the file name and the text of a page per example."""
    return {
        f"tutorials/{path.stem}.md": _page(path)
        for path in (folder / "examples").glob("*.py")
    }


def _page(path: Path) -> str:
    _, header, *parts = TEXT.split(path.read_text())
    page = re.sub(
        r".*Title: (.*?)\n.*Description: (.*?)\n.*",
        r"# \1\n\n\2",
        header,
        flags=re.DOTALL,
    )
    for i, part in enumerate(map(str.strip, parts)):
        if not part:
            continue
        if part.startswith("shell"):
            part = f"```bash{part[5:]}\n```"
        elif i % 2 == 0:
            part = f"```python\n{part}\n```"
        page += f"\n\n{part}"
    printed = path.with_suffix(".txt").read_text()
    return f"{page}\n\n## What it prints\n\nWith TensorFlow, on a CPU:\n\n```text\n{printed}```\n"
