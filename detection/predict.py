# SPDX-License-Identifier: Apache-2.0
"""Finds and draws objects in images: `python -m lambdanet.detection.predict`."""

import sys

from absl import flags

from lambdanet import command_line
from lambdanet.command_line import Arguments, Command, Flag, FloatFlag
from lambdanet.errors import Unfinished


def _run(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet.detection.serving.prediction import predict

    found = predict(values.saved_model, arguments, values.out, values.min_confidence)
    if unreadable := found["unreadable"]:
        total = len(unreadable) + len(found["images"])
        raise Unfinished(f"{len(unreadable)} of {total} images cannot be read")


COMMAND = Command(
    "predict",
    "draws boxes, masks, class names and scores on images, and writes them in COCO's format",
    _run,
    flags=(
        Flag(
            "saved_model",
            "DIR",
            "folder written by lambdanet.detection.export",
            required=True,
        ),
        Flag(
            "out", "DIR", "folder for the drawings and predictions.json", required=True
        ),
        FloatFlag(
            "min_confidence",
            "P",
            "smallest score of a reported detection, from 0 to 1 (default: 0.5)",
            default=0.5,
        ),
    ),
    arguments=Arguments(
        "IMAGE_OR_FOLDER...", "image files, and folders of them", 1, float("inf")
    ),
    examples=(
        "python -m lambdanet.detection.predict --saved_model=/tmp/model --out=/tmp/found street.jpg",
        "python -m lambdanet.detection.predict --saved_model=/tmp/model --out=/tmp/found /tmp/photos",
    ),
    module="lambdanet.detection.predict",
    extra="detection",
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
