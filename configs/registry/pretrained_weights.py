# SPDX-License-Identifier: Apache-2.0
"""Registry of published weights: where each set is, its preprocessing and its class names.

Ross Wightman trained the networks for timm and published them on the Hugging Face hub and in a release on
GitHub. A revision or hash that is missing is recorded at the first download and required from then on (see
`lambdanet.models.weights.pretrained`).
"""

import csv
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambdanet.core.errors import unknown

ALIAS = "imagenet"  # the first set of a model
# Other labels or pictures of its classes.
TEST_SETS = ("ReaL", "V2", "A", "R", "Sketch")
WEIGHTS_FILE = Path(__file__).with_name("published_weights.txt")  # separated by commas
CLASSES_FILE = Path(__file__).with_name("imagenet_classes.txt")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedWeights:
    """A set of published weights.

    Attributes:
      model: the name of the model, the same as in timm.
      tag: the name of the set; `create_model(model, weights=tag)`.
      revision: the full commit of the repository on the hub; empty if unknown.
      sha256: the hash of the file on the hub; empty if unknown.
      release_file: the same weights as a torch file in timm's release; its name ends in the first 8 digits of
        its sha256.
      input_size: the side of the square images that the accuracy was measured at, in pixels.
      crop_fraction: the part of the shorter side that the central crop keeps.
      interpolation: the filter that resizes pictures.
      mean: the mean of each channel, for pixels in 0..1.
      std: the standard deviation of each channel, for pixels in 0..1.
      num_classes: the number of classes of ImageNet-1k.
      top1: accuracy on ImageNet's validation pictures as published by timm, in percent.
      top5: the same, with five guesses.
      shifted_top1: the same for top-1 on each of `TEST_SETS` for which it is known.
      license: the license of the weights.
      file: the name of the file in the repository.
    """

    model: str
    tag: str
    release_file: str
    crop_fraction: float
    top1: float
    top5: float
    shifted_top1: Mapping[str, float] = dataclasses.field(default_factory=dict)
    revision: str = ""
    sha256: str = ""
    input_size: int = 256
    interpolation: str = "bicubic"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    num_classes: int = 1000
    license: str = "Apache-2.0"
    file: str = "model.safetensors"

    @property
    def accuracies(self) -> dict[str, float]:
        """The recorded top-1 accuracies in percent, by the name of the test set."""
        return {"ImageNet": self.top1, **self.shifted_top1}

    @property
    def preprocessing(self) -> dict[str, Any]:
        """The fields of a recipe that prepare pictures as these weights need them."""
        fields = ("input_size", "mean", "std", "crop_fraction", "interpolation")
        return {field: getattr(self, field) for field in fields}

    @property
    def repository(self) -> str:
        """The repository on the hub."""
        return f"timm/{self.model}.{self.tag}"

    @property
    def page(self) -> str:
        """The address of the model card on the hub."""
        return f"https://huggingface.co/{self.repository}"

    def summary(self) -> dict[str, str]:
        """Returns the facts that `lambdanet info` prints, one line each."""
        return {
            "accuracy": f"top-1 {self.top1:.2f} %, top-5 {self.top5:.2f} % on ImageNet, as timm publishes it",
            "other test sets": ", ".join(
                f"{name} {self.accuracies[name]:.2f} %"
                if name in self.accuracies
                else f"{name} unknown"
                for name in TEST_SETS
            ),
            "pictures": f"{self.input_size}x{self.input_size} pixels, {self.interpolation}, a central crop "
            f"of {self.crop_fraction:g}, mean {self.mean}, std {self.std}",
            "classes": str(self.num_classes),
            "license": self.license,
            "source": f"{self.page}, {self.file}",
            "revision": self.revision or "unknown; taken from the first download",
            "sha256": self.sha256 or "unknown; taken from the first download",
        }

    def matches_sha256(self, file_sha256: str) -> bool | None:
        """Returns whether a hash belongs to this set's file on the hub or in the release; None if unknown."""
        release_digits = re.findall("-([0-9a-f]{8})[.]pth", self.release_file)[0]
        if file_sha256 == self.sha256 or file_sha256.startswith(release_digits):
            return True
        return False if self.sha256 else None


def _read(row: Mapping[str, str]) -> PublishedWeights:
    values: dict[str, Any] = {
        name: row[name]
        for name in ("model", "tag", "revision", "sha256", "release_file")
    }
    values |= {name: float(row[name]) for name in ("crop_fraction", "top1", "top5")}
    values |= {name: tuple(map(float, row[name].split())) for name in ("mean", "std")}
    values["shifted_top1"] = {name: float(row[name]) for name in TEST_SETS if row[name]}
    return PublishedWeights(**values, input_size=int(row["input_size"]))


WEIGHTS = tuple(
    map(_read, csv.DictReader(WEIGHTS_FILE.read_text(encoding="utf-8").splitlines()))
)


def weights_of(model: str) -> tuple[PublishedWeights, ...]:
    """Returns the published sets of a model; "imagenet" is the first."""
    return tuple(published for published in WEIGHTS if published.model == model)


def find(model: str, name: str = ALIAS) -> PublishedWeights | None:
    """Returns a published set of weights, or None if the model has none of this name.

    Args:
      model: the name of a model.
      name: the tag of a set, or "imagenet".
    """
    sets = weights_of(model)
    return next((p for p in sets if p.tag == name or name == ALIAS), None)


def get(model: str, name: str = ALIAS) -> PublishedWeights:
    """Returns a published set of weights.

    Raises:
      InputError: the model has no published weights, or none of this name.
    """
    tags = [published.tag for published in weights_of(model)]
    if not tags:
        raise unknown(
            "model with published weights",
            model,
            [published.model for published in WEIGHTS],
        )
    found = find(model, name)
    if not found:
        raise unknown(f"set of weights of {model}", name, [ALIAS, *tags])
    return found


def imagenet_class_names() -> list[str]:
    """Returns a name for each of the 1000 classes of ImageNet-1k, in the order of the labels.

    Example:
      >>> imagenet_class_names()[207]
      'golden retriever'
    """
    lines = CLASSES_FILE.read_text(encoding="utf-8").splitlines()
    return [line.partition(" ")[2] for line in lines if not line.startswith("#")]
