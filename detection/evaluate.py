# SPDX-License-Identifier: Apache-2.0
"""Prints the COCO table of an exported detector: `python -m lambdanet.detection.evaluate`."""

import sys
from typing import Annotated

from lambdanet.core import command_line
from lambdanet.core.commands import (
    File,
    Folder,
    Overwrite,
    RemoteFile,
    RemoteFolder,
    command,
)


def evaluate_detector(
    saved_model: RemoteFolder,
    annotations: RemoteFile,
    images: Folder,
    out: File | None = None,
    overwrite: Annotated[Overwrite, "--out"] = False,
) -> None:
    """Evaluates an exported detector on annotated images and prints the COCO table.

    Args:
      saved_model: folder written by lambdanet.detection.export.
      annotations: annotation file, such as instances_val2017.json.
      images: folder of its images.
      out: file for the detections in COCO's results format (default: none).
    """
    from lambdanet.detection.serving.coco_table import evaluate

    evaluate(saved_model, annotations, images, out, overwrite)


COMMAND = command(
    evaluate_detector,
    "evaluate",
    examples=(
        "python -m lambdanet.detection.evaluate --saved_model=/tmp/model "
        "--annotations=instances_val2017.json --images=val2017",
    ),
    module="lambdanet.detection.evaluate",
    extra="detection",
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
