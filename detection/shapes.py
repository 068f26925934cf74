# SPDX-License-Identifier: Apache-2.0
"""Writes a small synthetic data set for detectors: `python -m lambdanet.detection.shapes`."""

import sys

from lambdanet.core import command_line
from lambdanet.core.commands import Folder, command


def write(out: Folder, train: int = 1500, val: int = 200, seed: int = 0) -> None:
    """Writes a small synthetic data set for instance segmentation, in COCO's format and as TFRecords.

    Args:
      out: folder to write; must be new or empty.
      train: training images.
      val: validation images.
      seed: random seed.
    """
    from lambdanet.detection.data.shape_files import write_shapes

    path = write_shapes(out, train, val, seed)
    print(f"{train} training and {val} validation images are in {path}")


COMMAND = command(
    write,
    "shapes",
    examples=("python -m lambdanet.detection.shapes --out=/tmp/shapes",),
    module="lambdanet.detection.shapes",
    extra="detection",
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
