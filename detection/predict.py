# SPDX-License-Identifier: Apache-2.0
"""Finds and draws objects in images: `python -m lambdanet.detection.predict`."""

import sys
from collections.abc import Sequence
from typing import Annotated

from lambdanet.core import command_line
from lambdanet.core.commands import Folder, Overwrite, RemoteFolder, command
from lambdanet.core.errors import Unfinished


def predict_objects(
    images: Annotated[Sequence[str], "IMAGE_OR_FOLDER..."],
    saved_model: RemoteFolder,
    out: Folder,
    min_confidence: Annotated[float, "P"] = 0.5,
    overwrite: Overwrite = False,
) -> None:
    """Draws boxes, masks, class names and scores on images, and writes them in COCO's format.

    Args:
      images: image files, and folders of them.
      saved_model: folder written by lambdanet.detection.export.
      out: folder for the drawings and predictions.json.
      min_confidence: smallest score of a reported detection, from 0 to 1.
    """
    from lambdanet.detection.serving.prediction import predict

    found = predict(saved_model, images, out, min_confidence, overwrite)
    if unreadable := found["unreadable"]:
        total = len(unreadable) + len(found["images"])
        raise Unfinished(f"{len(unreadable)} of {total} images cannot be read")


COMMAND = command(
    predict_objects,
    "predict",
    positional="images",
    examples=(
        "python -m lambdanet.detection.predict --saved_model=/tmp/model --out=/tmp/found street.jpg",
        "python -m lambdanet.detection.predict --saved_model=/tmp/model --out=/tmp/found /tmp/photos",
    ),
    module="lambdanet.detection.predict",
    extra="detection",
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
