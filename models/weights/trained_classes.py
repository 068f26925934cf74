# SPDX-License-Identifier: Apache-2.0
"""The names of the classes of a file of weights, in its metadata or in timm's configuration."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from lambdanet.configs.registry import pretrained_weights
from lambdanet.core.errors import InputError, check_different, invalid
from lambdanet.models.weights.weight_files import is_published

KEY = "classes"  # of the metadata: a list in JSON, in the order of the logits
TIMM_CONFIG = "config.json"  # beside a checkpoint that timm pushed to a hub


def names_of(metadata: Mapping[str, str]) -> list[str]:
    """Returns the names of the classes of weights, in the order of the logits; none where they are not known.

    Published weights for 1,000 classes have ImageNet's. `InputError` for metadata that are no list, or repeat
    a name.
    """
    if KEY in metadata:
        return _checked(metadata[KEY], "the weights")
    imagenet = pretrained_weights.imagenet_class_names()
    count = metadata.get("num_classes", "0")
    return imagenet if is_published(metadata) and count == str(len(imagenet)) else []


def as_metadata(names: Sequence[str]) -> dict[str, str]:
    """Returns the metadata that `names_of` reads; none for no names."""
    return {KEY: json.dumps(list(names), ensure_ascii=False)} if names else {}


def names_in_config(config: Path) -> list[str]:
    """Returns the names in the `label_names` of a configuration of timm; none where it has none."""
    try:
        content = json.loads(config.read_bytes())
        names = content.get("label_names") or []
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(
            f"{str(config)!r} cannot be read ({type(error).__name__})"
        ) from None
    return _checked(json.dumps(names), repr(str(config)))


def _checked(text: str, owner: str) -> list[str]:
    try:
        names = json.loads(text)
    except ValueError:
        names = text
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise invalid(f"classes of {owner}", "a list of names in JSON", text)
    check_different(names, owner)
    return names
