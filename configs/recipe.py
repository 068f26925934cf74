# SPDX-License-Identifier: Apache-2.0
"""Training recipes: frozen, typed and checked data."""

import dataclasses
import functools
import json
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from lambdanet.configs import recipe_values
from lambdanet.configs.recipe_values import (
    AUGMENTATIONS,
    DECAY_IN_STEPS,
    INTERPOLATIONS,
    LOSSES,
    MAX_DEPTH,
    OPTIMIZERS,
    POLICIES,
    SCHEDULES,
)
from lambdanet.errors import InputError, invalid, unknown


def _choice(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """All settings that determine what a training run computes.

    Values that cannot be used raise `InputError`. Make variants with `dataclasses.replace` in Python or with
    `override` (`--set=key=value` on the command line).

    Example:
      >>> recipe = lambdanet.configs.get_recipe("digits")
      >>> dataclasses.replace(recipe, epochs=2).epochs
      2
    """

    # The model.
    model: Annotated[str, "name of a model of the zoo, as `lambdanet list` prints it"]
    model_options: Annotated[dict[str, object], "arguments of create_model that differ from the zoo's"] = (
        dataclasses.field(default_factory=dict)
    )
    num_classes: Annotated[int, "number of classes; 0: that of the dataset"]
    input_size: Annotated[int, "height and width of images in pixels; with sizes, outside of training"]
    sizes: Annotated[tuple[float, ...], "image sizes of equal parts of the training; empty: input_size"] = ()
    dropout_rate: Annotated[float, "fraction of the features dropped before the classifier"] = 0.0
    stochastic_depth_rate: Annotated[float, "probability that a block of the last stage is skipped"] = 0.0
    bn_momentum: Annotated[float, "fraction of the moving statistics kept at each step"] = 0.9
    sync_batch_norm: Annotated[bool, "batch statistics over all devices instead of each device"] = False
    mixed_precision: Annotated[bool, "compute in bfloat16, keep variables in float32"] = False
    start_from: Annotated[str, "model_dir or initial weights; empty: random weights"] = ""
    zero_head: Annotated[bool, "start the classifier at zero, regardless of start_from"] = False
    freeze: Annotated[str, "layers that are not trained: backbone, c2 or patterns such as stem*,c2"] = ""
    unfreeze_epoch: Annotated[int, "epochs after which these are trained, too; 0: never"] = 0

    # The data.
    dataset: Annotated[str, "a dataset of TFDS; folder, your pictures; or tfrecord, your records"]
    labels: Annotated[str, "csv or parquet file of folder: columns file, label, split; empty: none"] = ""
    train_split: Annotated[str, "split to train on, such as train[:90%]"] = "train"
    eval_split: Annotated[str, "split to evaluate on"] = "test"
    held_out_split: Annotated[str, "split that selects the best epoch; empty: none"] = ""
    patience: Annotated[int, "epochs without improvement after which the run ends; 0: never"] = 0
    pseudo_labels: Annotated[str, "folder that `lambdanet pseudo-label` wrote; empty: none"] = ""
    pseudo_share: Annotated[float, "fraction of each batch taken from pseudo_labels"] = 0.0
    mean: Annotated[tuple[float, ...], "mean of each channel, for pixels in 0..1"]
    std: Annotated[tuple[float, ...], "standard deviation of each channel, for pixels in 0..1"]
    crop_fraction: Annotated[float, "fraction of the shorter side in the central crop at evaluation"] = 1.0
    interpolation: Annotated[str, f"interpolation at evaluation: {_choice(INTERPOLATIONS)}"] = "bilinear"
    augmentation: Annotated[str, _choice(AUGMENTATIONS)] = "none"
    repeated_augmentation: Annotated[int, "copies of an image in a row, each augmented differently"] = 1
    randaugment_layers: Annotated[int, "RandAugment operations per image; 0: none"] = 0
    randaugment_magnitude: Annotated[float, "magnitude of RandAugment"] = 10.0
    randaugment_policy: Annotated[str, f"operations of RandAugment: {_choice(POLICIES)}"] = "model_garden"
    randaugment_std: Annotated[float, "standard deviation of the magnitude, with the policy timm"] = 0.0
    color_jitter: Annotated[float, "largest change of brightness, contrast and saturation"] = 0.0
    random_erasing: Annotated[float, "probability that a rectangle of an image becomes noise"] = 0.0
    mixup_alpha: Annotated[float, "alpha of mixup, which blends two images and labels; 0: none"] = 0.0
    cutmix_alpha: Annotated[float, "alpha of CutMix, which pastes a part of an image; 0: none"] = 0.0

    # The optimization.
    epochs: Annotated[int, "passes over the training split"]
    global_batch_size: Annotated[int, "images per step on all devices together"]
    optimizer: Annotated[str, _choice(OPTIMIZERS)] = "sgd"
    learning_rate: Annotated[float, "peak, reached after warmup_epochs"]
    momentum: Annotated[float, "momentum of the optimizer; beta_1 of adam, adamw, lamb and lion"] = 0.9
    optimizer_options: Annotated[dict[str, object], "other options, such as {'nesterov': True} of sgd"] = (
        dataclasses.field(default_factory=dict)
    )
    schedule: Annotated[str, f"learning rate after the warm-up: {_choice(SCHEDULES)}"] = "cosine"
    warmup_epochs: Annotated[float, "epochs in which the learning rate rises from 0"] = 0.0
    cosine_floor: Annotated[float, "end of the cosine schedule, as a fraction of the peak"] = 0.0
    decay_rate: Annotated[float, "factor of the exponential schedule per decay_epochs"] = 1.0
    decay_epochs: Annotated[float, "epochs between decays of the exponential schedule"] = 1.0
    weight_decay: Annotated[float, "L2 of the kernels in the loss; adamw, lamb, lion: in their steps"] = 0.0
    clip_norm: Annotated[float, "largest norm of all gradients together; 0: any"] = 0.0
    clip_adaptive: Annotated[float, "largest gradient relative to the weights (AGC); 0: any"] = 0.0
    accumulate_steps: Annotated[int, "parts of a batch whose gradients are added up in turn"] = 1
    remat: Annotated[bool, "compute activations of blocks again in the backward pass, to save memory"] = False
    layer_decay: Annotated[float, "factor of the learning rate from each block to the one before"] = 1.0
    head_rate: Annotated[float, "factor of the learning rate of the classifier"] = 1.0
    loss: Annotated[str, f"loss of the logits: {_choice(LOSSES)}"] = "cross_entropy"
    label_smoothing: Annotated[float, "fraction of each label spread over all classes"] = 0.0
    target_threshold: Annotated[
        float, "share of a class that counts as 1 in binary_cross_entropy; 0: none"
    ] = 0.0
    class_weights: Annotated[tuple[float, ...], "weight of each class in the loss; empty: 1"] = ()
    ema_decay: Annotated[float, "decay of the weights' average, which is evaluated; 0: none"] = 0.0
    seed: Annotated[int, "seed of the weights, the order and the augmentation"] = 0

    def __post_init__(self) -> None:
        for field, kind in field_types().items():
            object.__setattr__(self, field, recipe_values.typed(field, getattr(self, field), kind))
        recipe_values.check(self)

    @property
    def decays_in_steps(self) -> bool:
        """Whether the weight decay is in the steps of the optimizer instead of the loss."""
        return self.optimizer in DECAY_IN_STEPS

    @property
    def phase_ends(self) -> tuple[int, ...]:
        """The numbers of epochs after which the image size or the frozen layers change, and the last."""
        return (*sorted({*self._size_ends, self.unfreeze_epoch} & {*range(1, self.epochs)}), self.epochs)

    def training_size(self, epoch: int) -> int:
        """Returns the size of the training images in an epoch, from 0."""
        if not self.sizes:
            return self.input_size
        return int(self.sizes[sum(end <= epoch for end in self._size_ends)])

    @property
    def _size_ends(self) -> list[int]:
        """The numbers of epochs after which each of `sizes` but the last ends."""
        parts = len(self.sizes)
        return [round(part * self.epochs / parts) for part in range(1, parts)]

    @property
    def num_pseudo_labels(self) -> int:
        """The number of images with pseudo-labels in a batch."""
        return round(self.pseudo_share * self.global_batch_size)


@functools.cache
def field_types() -> dict[str, type]:
    """Returns the type of each field of a recipe, by name."""
    return typing.get_type_hints(Recipe)


class FieldDescription(typing.NamedTuple):
    """The description of a field of a recipe.

    Attributes:
      name: its name, as in `--set`.
      kind: the name of its type, such as "int".
      default: its default, as in `--set`; None if it has none.
      help: one line of help.
    """

    name: str
    kind: str
    default: str | None
    help: str


def describe_fields() -> list[FieldDescription]:
    """Returns the description of each field of a recipe, in the order of `Recipe`.

    Example:
      >>> describe_fields()[3]
      FieldDescription(name='input_size', kind='int', default=None, help='height and width of ...')
    """
    described = []
    for field in dataclasses.fields(Recipe):
        kind, text = typing.get_args(field.type)
        given = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        required = given is dataclasses.MISSING
        default = None if required else given if isinstance(given, str) else json.dumps(given)
        described.append(
            FieldDescription(field.name, (typing.get_origin(kind) or kind).__name__, default, text)
        )
    return described


def override(recipe: Recipe, assignments: Iterable[str]) -> Recipe:
    """Returns the recipe with some fields replaced, as by `--set`.

    Args:
      recipe: the recipe to start from.
      assignments: texts "key=value"; the field's type determines how the value is read. Later ones win.

    Raises:
      InputError: a field is unknown, or a text is not a value of its type.

    Example:
      >>> override(recipe, ["epochs=3", "mean=0.5,0.5,0.5", "model_options={'scope': 7}"])
    """
    types = field_types()
    values: dict[str, Any] = {}
    for assignment in assignments:
        field, equals, text = assignment.partition("=")
        if not equals:
            raise invalid("--set", "key=value, such as epochs=10", assignment)
        if field not in types:
            raise unknown("recipe field", field, types)
        values[field] = recipe_values.typed(field, recipe_values.parsed(text, types[field]), types[field])
    return dataclasses.replace(recipe, **values)


def to_json(recipe: Recipe) -> str:
    """Returns the recipe as JSON text, one field per line."""
    return json.dumps(dataclasses.asdict(recipe), indent=2) + "\n"


def from_json(text: str) -> Recipe:
    """Returns the recipe that `to_json` wrote.

    Missing fields take their defaults, so recipes of earlier versions can be read.

    Raises:
      InputError: the text is not a recipe.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InputError(f"not a recipe in JSON: {error}") from None
    except RecursionError:
        raise InputError(f"not a recipe in JSON: it is nested more than {MAX_DEPTH} deep") from None
    if not isinstance(values, dict):
        raise InputError(f"not a recipe in JSON: {type(values).__name__} instead of an object")
    for field in values:
        if field not in field_types():
            raise unknown("recipe field", field, field_types())
    missing = [f.name for f in describe_fields() if f.default is None and f.name not in values]
    if missing:
        raise InputError(f"not a recipe: it lacks {', '.join(missing)}")
    return Recipe(**values)


def read_json(path: str | Path) -> Recipe:
    """Returns the recipe in a file that `to_json` wrote.

    Raises:
      InputError: the file cannot be read, or is no recipe.
    """
    try:
        return from_json(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:  # no permission, no text, no JSON, or no recipe
        raise InputError(f"{str(path)!r} cannot be read: {error}") from None


def differences(old: Recipe, new: Recipe) -> dict[str, tuple[object, object]]:
    """Returns the fields in which two recipes differ, each with the old and the new value."""
    pairs = {field: (getattr(old, field), getattr(new, field)) for field in field_types()}
    return {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}
