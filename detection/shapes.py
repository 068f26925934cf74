# SPDX-License-Identifier: Apache-2.0
"""The program that makes a data set to try detectors on: `python -m lambdanet.detection.shapes`."""

import sys

from absl import flags

from lambdanet import command_line
from lambdanet.command_line import Command, Flag


def _run(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet.detection.data.shapes import write_shapes

    path = write_shapes(values.out, values.train, values.val, values.seed)
    print(f"{values.train} pictures to train with and {values.val} to measure with are in {path}")


COMMAND = Command(
    "shapes",
    "makes a small data set for instance segmentation in the format of COCO, with TFRecords",
    _run,
    flags=(
        Flag("out", "DIR", "folder to write; it must not exist yet", required=True),
        Flag(
            "train", "N", "pictures to train with (default: 1500)", define=flags.DEFINE_integer, default=1500
        ),
        Flag("val", "N", "pictures to measure with (default: 200)", define=flags.DEFINE_integer, default=200),
        Flag("seed", "N", "another one gives other pictures", define=flags.DEFINE_integer, default=0),
    ),
    examples=("python -m lambdanet.detection.shapes --out=/tmp/shapes",),
    module="lambdanet.detection.shapes",
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
