# SPDX-License-Identifier: Apache-2.0
"""Registry of published weights: where each set is, its preprocessing and its class names.

Ross Wightman trained the networks for timm and published them on the Hugging Face hub and in a release on
GitHub. A revision or hash that is missing is recorded at the first download and required from then on (see
`lambdanet.models.weights.pretrained`).
"""

import dataclasses
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lambdanet.errors import unknown

ALIAS = "imagenet"  # the first set of a model
TEST_SETS = ("ReaL", "V2", "A", "R", "Sketch")  # other labels or pictures of its classes
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
                f"{name} {self.accuracies[name]:.2f} %" if name in self.accuracies else f"{name} unknown"
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


_A1H = partial(PublishedWeights, tag="a1h_in1k")
_C1 = partial(PublishedWeights, tag="c1_in1k")

WEIGHTS: tuple[PublishedWeights, ...] = (
    _C1(
        model="lambda_resnet26t",
        release_file="lambda_resnet26t_c_256-e5a5c857.pth",
        crop_fraction=0.94,
        top1=79.126,
        top5=94.554,
        shifted_top1=dict(ReaL=85.33, V2=67.70, A=11.29, R=37.39, Sketch=26.36),
    ),
    _C1(
        model="lambda_resnet26rpt_256",
        release_file="lambda_resnet26rpt_c_256-ab00292d.pth",
        crop_fraction=0.94,
        top1=78.960,
        top5=94.420,
        shifted_top1=dict(ReaL=85.08, V2=66.84, A=10.03, R=37.13, Sketch=26.02),
    ),
    _A1H(
        model="lambda_resnet50ts",
        revision="d1104e080d2725a19db5ec2ec58f589c490d674b",
        sha256="bcb80eaa77910c72c9c0ff9e83f99d550270fc23ab0ccac69d01e35cb269cdf8",
        release_file="lambda_resnet50ts_a1h_256-b87370f7.pth",
        crop_fraction=0.95,
        top1=81.184,
        top5=95.094,
        shifted_top1=dict(ReaL=86.06, V2=69.59, A=19.04, R=39.67, Sketch=29.13),
    ),
    _A1H(
        model="lamhalobotnet50ts_256",
        release_file="lamhalobotnet50ts_a1h2_256-fe3d9445.pth",
        crop_fraction=0.95,
        top1=81.552,
        top5=95.510,
        shifted_top1=dict(ReaL=86.37, V2=70.79, A=23.15, R=40.67, Sketch=29.74),
    ),
    _A1H(
        model="halo2botnet50ts_256",
        release_file="halo2botnet50ts_a1h2_256-fd9c11a3.pth",
        crop_fraction=0.95,
        top1=82.084,
        top5=95.658,
        shifted_top1=dict(ReaL=86.70, V2=70.92, A=25.13, R=41.45, Sketch=30.04),
    ),
    _A1H(
        model="halonet26t",
        sha256="15ac05274358e21a16596e4e7b0c8affcdb78fcc15547c021cc598a031385458",
        release_file="halonet26t_a1h_256-3083328c.pth",
        crop_fraction=0.95,
        top1=79.134,
        top5=94.340,
        shifted_top1=dict(ReaL=85.22, Sketch=25.74),
    ),
    PublishedWeights(
        model="sehalonet33ts",
        tag="ra2_in1k",
        release_file="sehalonet33ts_256-87e053f9.pth",
        crop_fraction=0.94,
        top1=80.976,
        top5=95.272,
        shifted_top1=dict(ReaL=86.59, Sketch=28.78),
    ),
    _A1H(
        model="halonet50ts",
        revision="8458517e329114000af89f1caf06bfcf29f860d6",
        release_file="halonet50ts_a1h2_256-f3a3daee.pth",
        crop_fraction=0.94,
        top1=81.640,
        top5=95.612,
        shifted_top1=dict(ReaL=86.49, Sketch=28.84),
    ),
    _C1(
        model="eca_halonext26ts",
        release_file="eca_halonext26ts_c_256-06906299.pth",
        crop_fraction=0.94,
        top1=79.518,
        top5=94.582,
        shifted_top1=dict(ReaL=85.14, Sketch=25.55),
    ),
    PublishedWeights(
        model="haloregnetz_b",
        tag="ra3_in1k",
        release_file="haloregnetz_c_raa_256-c8ad7616.pth",
        input_size=224,
        crop_fraction=0.94,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        top1=81.058,
        top5=95.196,
        shifted_top1=dict(ReaL=86.49, Sketch=30.60),
    ),
    _C1(
        model="botnet26t_256",
        revision="78c4b93814894ef8e7038591935d86b67548ebb1",
        release_file="botnet26t_c1_256-167a0e9f.pth",
        crop_fraction=0.95,
        top1=79.256,
        top5=94.528,
        shifted_top1=dict(ReaL=85.32),
    ),
    _A1H(
        model="sebotnet33ts_256",
        revision="c115c945abf6789e43e1f1475f9be9faed93e841",
        sha256="f4e3af372c615699a90721d2f4ea89568e12dc9f12230976c6f8ea5f028455be",
        release_file="sebotnet33ts_a1h2_256-957e3c3e.pth",
        crop_fraction=0.94,
        top1=81.156,
        top5=94.840,
        shifted_top1=dict(ReaL=86.58, Sketch=29.43),
    ),
    _C1(
        model="eca_botnext26ts_256",
        sha256="f5e716741475d191e670fff43185714ea125e13a1d411bfefd775b1e22c3db77",
        release_file="eca_botnext26ts_c_256-95a898f6.pth",
        crop_fraction=0.95,
        top1=79.262,
        top5=94.600,
        shifted_top1=dict(ReaL=85.13),
    ),
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
        raise unknown("model with published weights", model, [published.model for published in WEIGHTS])
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
