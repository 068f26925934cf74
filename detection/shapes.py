# SPDX-License-Identifier: Apache-2.0
"""Writes a small synthetic data set for detectors: `python -m lambdanet.detection.shapes`."""

import sys

from absl import flags

from lambdanet import command_line
from lambdanet.command_line import Command, Flag, IntegerFlag


def _run(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet.detection.data.scenes import write_shapes

    path = write_shapes(values.out, values.train, values.val, values.seed)
    print(f"{values.train} training and {values.val} validation images are in {path}")


COMMAND = Command(
    "shapes",
    "writes a small synthetic data set for instance segmentation, in COCO's format and as TFRecords",
    _run,
    flags=(
        Flag("out", "DIR", "folder to write; must be new or empty", required=True),
        IntegerFlag("train", "N", "training images (default: 1500)", default=1500),
        IntegerFlag("val", "N", "validation images (default: 200)", default=200),
        IntegerFlag("seed", "N", "random seed (default: 0)", default=0),
    ),
    examples=("python -m lambdanet.detection.shapes --out=/tmp/shapes",),
    module="lambdanet.detection.shapes",
    extra="detection",
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
