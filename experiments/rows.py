# SPDX-License-Identifier: Apache-2.0
"""Files of results to which experiments append a row per training."""

import os
from pathlib import Path
from typing import Any

from lambdanet import text_table


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Appends a row by one write, after removing a line that a killed process cut off."""
    header, line = text_table.to_csv([row]).splitlines(keepends=True)
    text = path.read_bytes() if path.exists() else b""
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        os.truncate(path, len(whole))
    with path.open("ab") as file:
        file.write((line if whole else header + line).encode())
        file.flush()
        os.fsync(file.fileno())
