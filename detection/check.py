# SPDX-License-Identifier: Apache-2.0
"""Checks a COCO annotation file: `python -m lambdanet.detection.check`."""

import sys

from lambdanet.core import command_line
from lambdanet.core.commands import RemoteFile, RemoteFolder, command


def check(
    annotations: RemoteFile,
    images: RemoteFolder | None = None,
    num_classes: int | None = None,
    masks: bool = True,
) -> None:
    """Checks a COCO annotation file for errors that would make training fail.

    Args:
      annotations: annotation file, such as instances_train2017.json.
      images: folder of its images (default: images are not checked).
      num_classes: classes of the model, background included.
      masks: require a mask per object (default: true; --nomasks: boxes only).
    """
    from lambdanet.detection.data.annotations import check_annotations, read_annotations

    found = check_annotations(annotations, images, num_classes, masks)
    listed = read_annotations(annotations)["categories"]
    names = [f"{category['id']} {category['name']}" for category in listed]
    print(f"categories: {', '.join(names)}")
    print(
        f"{annotations}: {found['images']} images, {found['objects']} objects and {found['crowds']} "
        f"crowds of {found['categories']} categories, no errors"
    )
    if found["left_out"]:
        print(
            f"{found['left_out']} have a box that is empty or crosses the edge: the conversion drops them"
        )


COMMAND = command(
    check,
    "check",
    examples=(
        "python -m lambdanet.detection.check --annotations=instances_val2017.json --images=val2017",
        "python -m lambdanet.detection.check --annotations=instances_val2017.json --num_classes=91 --nomasks",
    ),
    module="lambdanet.detection.check",
    extra="detection",
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
