# SPDX-License-Identifier: Apache-2.0
"""A model of the zoo with trained weights, whose metadata describe its pictures and classes."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from lambdanet import backend as K
from lambdanet.backend import keras
from lambdanet.core.errors import invalid
from lambdanet.models import zoo
from lambdanet.models.preprocessing import Preprocessing, of_weights
from lambdanet.models.weights import pretrained, tensor_files, weight_files
from lambdanet.models.weights.trained_classes import names_of
from lambdanet.training.data import class_names as classes
from lambdanet.training.data.task_outputs import (
    CLASSIFICATION,
    Record,
    read_outputs,
)


class TrainedModel(NamedTuple):
    """A network with its preprocessing, and its task."""

    # Normalized float32 images [b, h, w, c] -> logits, such as [b, num_classes].
    model: keras.Model
    preprocessing: Preprocessing
    class_names: Sequence[str]  # by number
    record: Record = CLASSIFICATION  # its task, as `Task.record`
    temperature: float = 1.0  # by which its logits were divided

    @property
    def task_outputs(self) -> Any:
        """The outputs of its export, a `TaskOutputs`."""
        return read_outputs(self.class_names, self.record)

    def __str__(self) -> str:
        size = self.preprocessing.input_size
        return f"{self.model.name} ({len(self.class_names)} classes, {size} px)"


def load_run(
    model_dir: str | Path,
    open_data: Callable[[], Any] | None = None,
    calibrate: bool = False,
) -> TrainedModel:
    """Loads the model of a run.

    Args:
      model_dir: as in `serving.export.export`, with its errors.
      open_data: returns the dataset of the run, as `evaluate.open_split`, its default. It is called where the
        run has no class names, or to calibrate.
      calibrate: whether to divide the weights of the classifier, and so the logits, by the temperature that
        `evaluate.fit_temperature` returns.
    """
    # Here, so that `build_classifier` does not need the dependencies of training.
    from lambdanet.training.data import preprocess
    from lambdanet.training.data.task import task_of
    from lambdanet.training.evaluate import fit_temperature, open_split
    from lambdanet.training.run import model_dir as model_dirs

    model, recipe = model_dirs.load_trained_model(model_dir)
    open_data = open_data or partial(open_split, model_dir, recipe, None)
    names = model_dirs.class_names(model_dir) or open_data().class_names
    record = task_of(recipe).record(Path(model_dir).expanduser())
    temperature = 1.0
    if calibrate:
        temperature = fit_temperature(model, recipe, open_data)
        for variable in weight_files.classifier(model).values():
            variable.assign(variable / temperature)
    preprocessing = preprocess.of_recipe(recipe)
    return TrainedModel(model, preprocessing, names, record, temperature)


def build_classifier(
    model_name: str, weights: str | Path, class_names: str | Path | None = None
) -> TrainedModel:
    """Builds a model of the zoo with weights whose metadata describe the preprocessing.

    Args:
      model_name: one of `list_models()`.
      weights: "imagenet", "hf:USER/REPO", a folder of `lambdanet convert`, or a safetensors file whose
        metadata has input_size, mean and std (see `lambdanet.models.weights.weight_files.save`).
      class_names: a file with the class names, one per line; not needed for the classes of ImageNet, and for
        weights that have names. Names of the weights in another order are matched; others replace them.

    Raises:
      InputError: the weights do not exist or lack metadata, or the names do not fit.
      ConnectionError: the weights are not in the cache and cannot be downloaded.
    """
    path = pretrained.locate(model_name, weights, partial(zoo.create_model, model_name))
    preprocessing = of_weights(path)
    known = names_of(tensor_files.metadata_of(path))
    names = known if class_names is None else _read_names(class_names, path)
    if not names:
        raise invalid(
            "class_names", "a file with the class names, one per line", class_names
        )
    classes.check_names(names, "the model")
    model = zoo.create_model(model_name, num_classes=len(names), weights=path)
    if known and class_names is not None:
        _match(model, names, known, str(class_names))
    return TrainedModel(model, preprocessing, names)


def _read_names(file: str | Path, weights: Path) -> list[str]:
    """Returns the names in a file; `InputError` unless their number is that of the classes of the weights."""
    names = classes.read_names(Path(file).expanduser())
    count = weight_files.read_sizes(weights)[0]
    if count != len(names):
        raise invalid(
            f"the number of lines in {str(file)!r}",
            f"{count}, one per class",
            len(names),
        )
    return names


def _match(model: keras.Model, names: list[str], known: list[str], file: str) -> None:
    """Brings the columns of a classifier in the order of the names in a file, which may also be new names."""
    forms = classes.normalized(names)
    known_forms = classes.normalized(known)
    if forms == known_forms:
        return
    if set(forms) != set(known_forms):
        print(f"the names in {file!r} replace those of the weights, in their order")
        return
    print(
        f"the names in {file!r} are those of the weights in another order: matched by name"
    )
    columns = [known_forms.index(form) for form in forms]
    for variable in weight_files.classifier(model).values():
        variable.assign(K.convert_to_numpy(variable)[..., columns])
