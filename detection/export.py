# SPDX-License-Identifier: Apache-2.0
"""Exports a trained detector to a SavedModel: `python -m lambdanet.detection.export`."""

import sys
from typing import Annotated

from lambdanet.core import command_line
from lambdanet.core.commands import (
    Name,
    Overwrite,
    RemoteFile,
    RemoteFolder,
    command,
)
from lambdanet.core.errors import invalid


def export_detector(
    model_dir: RemoteFolder,
    out: RemoteFolder,
    checkpoint: Annotated[str | None, "PATH_OR_URL"] = None,
    input_size: Annotated[str | None, "H,W"] = None,
    annotations: RemoteFile | None = None,
    experiment: Name | None = None,
    overwrite: Overwrite = False,
) -> None:
    """Exports a trained detector to a SavedModel that takes image files or arrays of any size.

    Args:
      model_dir: folder written by lambdanet.detection.train.
      out: folder for the SavedModel.
      checkpoint: checkpoint, or a folder of them (default: the newest of the run).
      input_size: size in pixels to which images are resized (default: as in training).
      annotations: file with the class names (default: the experiment's annotation file).
      experiment: experiment of the run (default: from its folder).
    """
    size = _size(input_size) if input_size else None

    from lambdanet.detection.serving.saved_model import export

    export(
        model_dir,
        out,
        experiment,
        checkpoint,
        size,
        annotations,
        overwrite,
    )


def _size(text: str) -> list[int]:
    sides = text.split(",")
    if not all(side.strip().isdecimal() for side in sides) or len(sides) > 2:
        raise invalid("--input_size", "HEIGHT,WIDTH or one side in pixels", text)
    return [int(side) for side in sides] * (3 - len(sides))


COMMAND = command(
    export_detector,
    "export",
    examples=(
        "python -m lambdanet.detection.export --model_dir=/tmp/shapes_run --out=/tmp/shapes_model",
        "python -m lambdanet.detection.export --model_dir=/tmp/run --checkpoint=/tmp/run/ckpt-9 --out=model",
    ),
    module="lambdanet.detection.export",
    extra="detection",
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
