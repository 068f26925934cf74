# SPDX-License-Identifier: Apache-2.0
"""Class names of ImageNet-1k."""

from pathlib import Path

FILE = Path(__file__).with_name("imagenet_classes.txt")


def class_names() -> list[str]:
    """Returns a name for each of the 1000 classes, in the order of the labels.

    Example:
      >>> class_names()[207]
      'golden retriever'
    """
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return [line.partition(" ")[2] for line in lines if not line.startswith("#")]
