# SPDX-License-Identifier: Apache-2.0
"""Networks of the zoo as classifiers of KerasHub, with their preprocessing and the names of their classes."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_hub.layers import ImageConverter
from keras_hub.models import ImageClassifier, ImageClassifierPreprocessor

from lambdanet.backend import Tensor, keras
from lambdanet.core.errors import invalid
from lambdanet.models import preprocessing, zoo
from lambdanet.models.classifier import decode_predictions
from lambdanet.models.keras_hub_backbone import LambdaNetBackbone, UnquantizedFiles
from lambdanet.models.layer_builder import CLASSIFIER
from lambdanet.models.preprocessing import Preprocessing
from lambdanet.models.weights import pretrained, tensor_files, trained_classes


@keras.saving.register_keras_serializable(package="lambdanet")
class LambdaNetImageConverter(ImageConverter):
    """The preprocessing of a network: uint8 pictures [..., h, w, c] -> float32 [..., size, size, c].

    Args:
      preprocessing: the fields of a `lambdanet.models.preprocessing.Preprocessing`, but its `input_size`.
      image_size: height and width of the result, in pixels, which are equal.
      **kwargs: arguments of a KerasHub image converter.

    Raises:
      InputError: a value is out of range; when called with other pictures than uint8.
    """

    backbone_cls = LambdaNetBackbone

    def __init__(
        self,
        preprocessing: Mapping[str, Any],
        image_size: tuple[int, int],
        **kwargs: Any,
    ):
        super().__init__(image_size=image_size, **kwargs)
        self.preprocessing = dict(preprocessing)
        self._prepare()

    def call(self, inputs: Any) -> Any:
        return self._prepare()(inputs)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "preprocessing": self.preprocessing}

    def _prepare(self) -> Preprocessing:
        """Returns the preprocessing for the image size, which KerasHub sets as an attribute."""
        height, width = self.image_size
        if height != width:
            raise invalid("image_size", "two equal numbers", self.image_size)
        return Preprocessing(input_size=height, **self.preprocessing)


@keras.saving.register_keras_serializable(package="lambdanet")
class LambdaNetImageClassifierPreprocessor(ImageClassifierPreprocessor):
    """KerasHub's preprocessor of a `LambdaNetImageClassifier`, with a `LambdaNetImageConverter`."""

    backbone_cls = LambdaNetBackbone
    image_converter_cls = LambdaNetImageConverter


@keras.saving.register_keras_serializable(package="lambdanet")
class LambdaNetImageClassifier(UnquantizedFiles, ImageClassifier):
    """A network of the zoo as a classifier of KerasHub: images [b, h, w, 3] -> logits [b, num_classes].

    With a preprocessor, `predict`, `fit` and `evaluate` take uint8 pictures of any size.

    `from_preset` takes the name of a network with published weights, or a folder that `save_to_preset` wrote,
    which needs no other file; `keras_hub.models.ImageClassifier.from_preset(folder)` does too.

    Args:
      backbone: a `LambdaNetBackbone`.
      num_classes: the number of logits.
      preprocessor: a `LambdaNetImageClassifierPreprocessor`; None: inputs are what the network reads.
      class_names: the names of the classes, in the order of the logits.
      **kwargs: arguments of KerasHub's classifier.

    Raises:
      InputError: the number of names is not `num_classes`.

    Example:
      >>> backbone = LambdaNetBackbone("lambda_resnet_tiny", {"input_size": 32})
      >>> LambdaNetImageClassifier(backbone, num_classes=10).output_shape
      (None, 10)
    """

    backbone_cls = LambdaNetBackbone
    preprocessor_cls = LambdaNetImageClassifierPreprocessor

    def __init__(
        self,
        backbone: LambdaNetBackbone,
        num_classes: int,
        preprocessor: LambdaNetImageClassifierPreprocessor | None = None,
        class_names: Sequence[str] | None = None,
        **kwargs: Any,
    ):
        super().__init__(backbone, num_classes, preprocessor=preprocessor, **kwargs)
        self.class_names = None if class_names is None else list(class_names)
        if class_names is not None and len(class_names) != num_classes:
            raise invalid(
                "the number of class_names",
                f"num_classes={num_classes}",
                len(class_names),
            )

    @classmethod
    def from_preset(
        cls, preset: str, load_weights: bool = True, **kwargs: Any
    ) -> "LambdaNetImageClassifier":
        """Returns a classifier of a network with published weights, or the one in a folder.

        Args:
          preset: a name of `lambdanet.list_models(pretrained=True)`, or a preset of KerasHub.
          load_weights: whether the weights are those of the preset, or random.
          **kwargs: arguments of the classifier, such as `num_classes`, with which it is random.
        """
        if Path(preset).is_dir() or "://" in preset:
            return super().from_preset(preset, load_weights, **kwargs)
        return cls.from_zoo(preset, load_weights=load_weights, **kwargs)

    @classmethod
    def from_zoo(
        cls,
        name: str,
        weights: str | Path = "imagenet",
        load_weights: bool = True,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> "LambdaNetImageClassifier":
        """Returns a classifier with weights of the zoo, their preprocessing and their class names.

        Args:
          name: one of `lambdanet.list_models()`.
          weights: the weights, as for `lambdanet.create_model`.
          load_weights: whether the weights are loaded, or random.
          options: other arguments of `create_model`.
          **kwargs: arguments of the classifier, such as `num_classes`, with which it is random.

        Raises:
          InputError: the network is unknown, or has no such weights, or they have no classifier.
          ConnectionError: published weights are not in the cache and cannot be fetched.
        """
        options = dict(options or {})
        build = functools.partial(zoo.create_model, name)
        path = pretrained.locate(name, weights, build)
        metadata = tensor_files.metadata_of(path)
        class_names = trained_classes.names_of(metadata) or None
        shape = tensor_files.shape_of(path, f"{CLASSIFIER}/kernel")
        if not shape and "num_classes" not in kwargs:
            raise invalid("weights", "of a classifier without num_classes", str(path))
        if load_weights:
            options["weights"] = str(path)
        backbone = LambdaNetBackbone(name, options)
        if "preprocessor" not in kwargs:
            kwargs["preprocessor"] = _preprocessor(
                preprocessing.from_metadata(metadata)
            )
        if "num_classes" in kwargs:
            return cls(backbone, **kwargs)
        classifier = cls(backbone, shape[-1], class_names=class_names, **kwargs)
        if load_weights:
            arrays, _ = tensor_files.read_safetensors(path)
            head = [arrays[f"{CLASSIFIER}/{part}"] for part in ("kernel", "bias")]
            classifier.output_dense.set_weights(head)
        return classifier

    def decode_predictions(
        self, logits: Tensor, top: int = 5
    ) -> list[list[tuple[str, float]]]:
        """Returns the most probable classes of each picture, as `lambdanet.decode_predictions`."""
        if self.class_names is None:
            raise invalid("class_names", "a list, to decode predictions", None)
        return decode_predictions(logits, self.class_names, top)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "class_names": self.class_names}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "LambdaNetImageClassifier":
        # KerasHub puts another `num_classes` into the configuration of a preset, which names no such classes.
        class_names = config.get("class_names")
        if class_names is not None and len(class_names) != config["num_classes"]:
            config = {**config, "class_names": None}
        return super().from_config(config)


def _preprocessor(
    found: Preprocessing | None,
) -> LambdaNetImageClassifierPreprocessor | None:
    """Returns the preprocessor of KerasHub for the preprocessing of weights, if they have one."""
    if found is None:
        return None
    fields = dataclasses.asdict(found)
    size = fields.pop("input_size")
    converter = LambdaNetImageConverter(fields, image_size=(size, size))
    return LambdaNetImageClassifierPreprocessor(converter)
