# SPDX-License-Identifier: Apache-2.0
"""The program that writes a trained detector as a SavedModel: `python -m lambdanet.detection.export`."""

import sys

from absl import flags

from lambdanet import command_line
from lambdanet.command_line import Command, Flag
from lambdanet.errors import InputError


def _run(values: flags.FlagValues, arguments: list[str]) -> None:
    size = _size(values.input_size) if values.input_size else None

    from lambdanet.detection.serving.saved_model import export

    export(values.model_dir, values.out, values.experiment, values.checkpoint, size, values.annotations)


def _size(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words) or len(words) > 2:
        raise InputError(f"--input_size={text} cannot be used; expected HEIGHT,WIDTH in pixels, or one side")
    return [int(word) for word in words] * (3 - len(words))


COMMAND = Command(
    "export",
    "writes a trained detector as a SavedModel that takes pictures as they are",
    _run,
    flags=(
        Flag("model_dir", "DIR", "folder of the run, as lambdanet.detection.train made it", required=True),
        Flag("out", "DIR", "folder for the SavedModel", required=True),
        Flag("checkpoint", "PATH", "another checkpoint than the newest of the run, or a folder of them"),
        Flag("input_size", "H,W", "pixels to which pictures are brought (default: as in training)"),
        Flag("annotations", "FILE", "names the classes (default: the annotation file of the experiment)"),
        Flag("experiment", "NAME", "of the run, where its folder does not say"),
    ),
    examples=(
        "python -m lambdanet.detection.export --model_dir=/tmp/shapes_run --out=/tmp/shapes_model",
        "python -m lambdanet.detection.export --model_dir=/tmp/run --checkpoint=/tmp/run/ckpt-9 --out=model",
    ),
    module="lambdanet.detection.export",
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
