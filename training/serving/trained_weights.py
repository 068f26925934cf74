# SPDX-License-Identifier: Apache-2.0
"""A model of the zoo with trained weights, whose metadata describe its pictures and classes."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lambdanet.backend import keras
from lambdanet.configs.registry import pretrained_weights
from lambdanet.errors import invalid
from lambdanet.models import zoo
from lambdanet.models.preprocessing import Preprocessing, of_weights
from lambdanet.models.weights import pretrained, tensor_files, weight_files
from lambdanet.training.data import class_names as classes


class TrainedModel(NamedTuple):
    """A classifier with its preprocessing."""

    model: keras.Model  # normalized float32 images [b, h, w, 3] -> logits [b, num_classes]
    preprocessing: Preprocessing
    class_names: list[str]  # in the order of the logits

    def __str__(self) -> str:
        size = self.preprocessing.input_size
        return f"{self.model.name} ({len(self.class_names)} classes, {size} px)"


def load_run(model_dir: str | Path, data_dir: str | None = None) -> TrainedModel:
    """Loads the model of a run; arguments and errors as in `serving.export.export`."""
    # Here, so that `build_classifier` does not need the dependencies of training.
    from lambdanet.training.data import preprocess
    from lambdanet.training.data.dataset import Dataset
    from lambdanet.training.run import model_dir as model_dirs

    model, recipe = model_dirs.load_trained_model(model_dir)
    names = model_dirs.class_names(model_dir)
    if not names:
        names = Dataset.open(recipe, model_dirs.find_data_dir(model_dir, data_dir)).class_names
    return TrainedModel(model, preprocess.of_recipe(recipe), names)


def build_classifier(
    model_name: str, weights: str | Path, class_names: str | Path | None = None
) -> TrainedModel:
    """Builds a model of the zoo with weights whose metadata describe the preprocessing.

    Args:
      model_name: one of `list_models()`.
      weights: "imagenet", "hf:USER/REPO", a folder of `lambdanet convert`, or a safetensors file whose
        metadata has input_size, mean and std (see `lambdanet.models.weights.weight_files.save`).
      class_names: a file with the class names, one per line; not needed for the classes of ImageNet.

    Raises:
      InputError: the weights do not exist or lack metadata, or the names do not fit.
      ConnectionError: the weights are not in the cache and cannot be downloaded.
    """
    path = pretrained.locate(model_name, weights, partial(zoo.create_model, model_name))
    preprocessing = of_weights(path)
    names = _class_names(tensor_files.metadata_of(path), class_names)
    classes.check_names(names, "the model")
    model = zoo.create_model(model_name, num_classes=len(names), weights=path)
    return TrainedModel(model, preprocessing, names)


def _class_names(metadata: Mapping[str, str], file: str | Path | None) -> list[str]:
    """Returns the class names of a file, or ImageNet's."""
    count = int(metadata.get("num_classes", 0))
    if file is not None:
        names = classes.read_names(Path(file).expanduser())
        if count not in (0, len(names)):
            raise invalid(f"the number of lines in {str(file)!r}", f"{count}, one per class", len(names))
        return names
    if weight_files.is_published(metadata) and count == len(pretrained_weights.imagenet_class_names()):
        return pretrained_weights.imagenet_class_names()
    raise invalid("class_names", "a file with the class names, one per line", file)
