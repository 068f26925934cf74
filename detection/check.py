# SPDX-License-Identifier: Apache-2.0
"""Checks a COCO annotation file: `python -m lambdanet.detection.check`."""

import sys

from absl import flags

from lambdanet import command_line
from lambdanet.command_line import Command, Flag, IntegerFlag, switch


def _run(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet.detection.data import annotations

    found = annotations.check_annotations(
        values.annotations, values.images, values.num_classes, values.masks
    )
    print(
        f"{values.annotations}: {found['images']} images, {found['objects']} objects and {found['crowds']} "
        f"crowds of {found['categories']} categories, no errors"
    )
    if found["left_out"]:
        print(
            f"{found['left_out']} have a box that is empty or crosses the edge: the conversion drops them"
        )


COMMAND = Command(
    "check",
    "checks a COCO annotation file for errors that would make training fail",
    _run,
    flags=(
        Flag(
            "annotations",
            "FILE",
            "annotation file, such as instances_train2017.json",
            required=True,
        ),
        Flag("images", "DIR", "folder of its images (default: images are not checked)"),
        IntegerFlag("num_classes", "N", "classes of the model, background included"),
        switch(
            "masks",
            "require a mask per object (default: true; --nomasks: boxes only)",
            default=True,
        ),
    ),
    examples=(
        "python -m lambdanet.detection.check --annotations=instances_val2017.json --images=val2017",
        "python -m lambdanet.detection.check --annotations=instances_val2017.json --num_classes=91 --nomasks",
    ),
    module="lambdanet.detection.check",
    extra="detection",
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
