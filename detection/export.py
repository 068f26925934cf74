# SPDX-License-Identifier: Apache-2.0
"""Exports a trained detector to a SavedModel: `python -m lambdanet.detection.export`."""

import sys

from absl import flags

from lambdanet import command_line
from lambdanet.command_line import Command, Flag
from lambdanet.errors import invalid


def _run(values: flags.FlagValues, arguments: list[str]) -> None:
    size = _size(values.input_size) if values.input_size else None

    from lambdanet.detection.serving.saved_model import export

    export(
        values.model_dir,
        values.out,
        values.experiment,
        values.checkpoint,
        size,
        values.annotations,
    )


def _size(text: str) -> list[int]:
    sides = text.split(",")
    if not all(side.strip().isdecimal() for side in sides) or len(sides) > 2:
        raise invalid("--input_size", "HEIGHT,WIDTH or one side in pixels", text)
    return [int(side) for side in sides] * (3 - len(sides))


COMMAND = Command(
    "export",
    "exports a trained detector to a SavedModel that takes image files or arrays of any size",
    _run,
    flags=(
        Flag(
            "model_dir",
            "DIR",
            "folder written by lambdanet.detection.train",
            required=True,
        ),
        Flag("out", "DIR", "folder for the SavedModel", required=True),
        Flag(
            "checkpoint",
            "PATH",
            "checkpoint, or a folder of them (default: the newest of the run)",
        ),
        Flag(
            "input_size",
            "H,W",
            "size in pixels to which images are resized (default: as in training)",
        ),
        Flag(
            "annotations",
            "FILE",
            "file with the class names (default: the experiment's annotation file)",
        ),
        Flag("experiment", "NAME", "experiment of the run (default: from its folder)"),
    ),
    examples=(
        "python -m lambdanet.detection.export --model_dir=/tmp/shapes_run --out=/tmp/shapes_model",
        "python -m lambdanet.detection.export --model_dir=/tmp/run --checkpoint=/tmp/run/ckpt-9 --out=model",
    ),
    module="lambdanet.detection.export",
    extra="detection",
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
