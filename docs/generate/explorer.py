# SPDX-License-Identifier: Apache-2.0
"""The model explorer: the figures of all models as data for docs/_static/explorer.js."""

import json
import re
from typing import Any

from plotly.offline import get_plotlyjs

from generate.models import family_of
from generate.pages import read_csv
from lambdanet.configs.registry import pretrained_weights
from lambdanet.models import names

FOLDER = "_generated/static"
TESTS = ("ImageNet", *pretrained_weights.TEST_SETS)
TPU = read_csv("tpu.csv")
# Those of the measurement.
CHIPS = re.findall(r"step on (\w+) \(ms\)", " ".join(TPU[0]))
COLUMNS = (
    "model",
    "family",
    "parameters (M)",
    "FLOPs (G)",
    "pixels",
    *(f"{name} (%)" for name in TESTS),
    "inference on a CPU (images/s)",
    *(f"training on a TPU {chip} core, estimated (images/s)" for chip in CHIPS),
)


def scripts() -> dict[str, str]:
    """Returns the scripts that docs/_static/explorer.js needs: plotly, and the data of the models."""
    data = json.dumps({"columns": COLUMNS, "rows": rows()})
    return {
        f"{FOLDER}/plotly.min.js": get_plotlyjs(),
        f"{FOLDER}/explorer_data.js": f"const explorerData = {data};\n",
    }


def rows() -> list[list[Any]]:
    """Returns the values of `COLUMNS` for each model; None where there is none."""
    cpu = _cpu()
    tpu = {row["model"]: row for row in TPU}
    found = []
    for name in names.rows():
        info = names.info(name)
        weights = pretrained_weights.find(name)
        accuracies = weights.accuracies if weights else {}
        found.append(
            [
                name,
                family_of(name),
                info.params / 1e6,
                info.flops / 1e9,
                info.input_size,
                *map(accuracies.get, TESTS),
                cpu.get(name),
                *(_tpu_speed(tpu.get(name), f"step on {chip} (ms)") for chip in CHIPS),
            ]
        )
    return found


def _cpu() -> dict[str, float]:
    """Returns the speed of inference, as the benchmark of models measured it."""
    measured = [
        row
        for row in read_csv("models.csv")
        if row["pass"] == "infer" and row["images_per_second"]
    ]
    return {row["model"]: float(row["images_per_second"]) for row in measured}


def _tpu_speed(row: dict[str, str] | None, column: str) -> float | None:
    """Returns images per second and core in training, as the TPU compiler estimates the step."""
    if row is None or row[column] == "-":
        return None
    return round(1000 * float(row["batch of a core"]) / float(row[column]), 1)
