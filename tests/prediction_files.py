# SPDX-License-Identifier: Apache-2.0
"""Reads the tables that predictions are written to."""

import csv
import json
from pathlib import Path
from typing import Any


def read_predictions(path: Path) -> dict[str, Any]:
    """Returns the top classes of each picture of a .csv or .jsonl file, or why a picture cannot be read."""
    found: dict[str, Any] = {}
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                top = (row["class"], float(row["probability"]))
                found.setdefault(row["image"], []).append(top)
        return found
    for line in map(json.loads, path.read_text().split("\n")[:-1]):
        if "error" in line:
            found[line["image"]] = line["error"]
        else:
            assert line.keys() <= {"image", "classes", "probabilities", "present"}
            pairs = zip(line["classes"], line["probabilities"], strict=True)
            found[line["image"]] = list(pairs)
    return found
