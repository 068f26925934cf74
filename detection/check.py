# SPDX-License-Identifier: Apache-2.0
"""The program that looks through a COCO annotation file: `python -m lambdanet.detection.check`."""

import sys

from absl import flags

from lambdanet import command_line
from lambdanet.command_line import Command, Flag


def _run(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet.detection.data import annotations

    found = annotations.check(values.annotations, values.images, values.num_classes, values.masks)
    print(
        f"{values.annotations}: {found['images']} images, {found['objects']} objects and {found['crowds']} "
        f"crowds of {found['categories']} categories, nothing wrong"
    )
    if found["left_out"]:
        print(
            f"{found['left_out']} have an empty box or one that reaches over the edge: conversion drops them"
        )


COMMAND = Command(
    "check",
    "looks through a COCO annotation file for what would make training fail",
    _run,
    flags=(
        Flag("annotations", "FILE", "the annotation file, such as instances_train2017.json", required=True),
        Flag("images", "DIR", "folder of its pictures (default: they are not looked for)"),
        Flag("num_classes", "N", "of the model, background included", define=flags.DEFINE_integer),
        Flag(
            "masks", "", "objects need masks; --nomasks: boxes do", define=flags.DEFINE_boolean, default=True
        ),
    ),
    examples=(
        "python -m lambdanet.detection.check --annotations=instances_val2017.json --images=val2017",
        "python -m lambdanet.detection.check --annotations=instances_val2017.json --num_classes=91 --nomasks",
    ),
    module="lambdanet.detection.check",
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
