# SPDX-License-Identifier: Apache-2.0
"""Prints the COCO table of an exported detector: `python -m lambdanet.detection.evaluate`."""

import sys

from absl import flags

from lambdanet import command_line
from lambdanet.command_line import Command, Flag


def _run(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet.detection.serving.coco_table import evaluate

    evaluate(values.saved_model, values.annotations, values.images, values.out)


COMMAND = Command(
    "evaluate",
    "evaluates an exported detector on annotated images and prints the COCO table",
    _run,
    flags=(
        Flag(
            "saved_model",
            "DIR",
            "folder written by lambdanet.detection.export",
            required=True,
        ),
        Flag(
            "annotations",
            "FILE",
            "annotation file, such as instances_val2017.json",
            required=True,
        ),
        Flag("images", "DIR", "folder of its images", required=True),
        Flag(
            "out",
            "FILE",
            "file for the detections in COCO's results format (default: none)",
        ),
    ),
    examples=(
        "python -m lambdanet.detection.evaluate --saved_model=/tmp/model "
        "--annotations=instances_val2017.json --images=val2017",
    ),
    module="lambdanet.detection.evaluate",
    extra="detection",
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
