# SPDX-License-Identifier: Apache-2.0
"""Training recipes: frozen, typed and checked data."""

import dataclasses
import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from lambdanet.configs import recipe_values as v
from lambdanet.core.errors import InputError, check_known, invalid, unreadable


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
    model: Annotated[
        str, v.TEXT, "name of a model of the zoo, as `lambdanet list` prints it"
    ]
    model_options: Annotated[
        dict[str, object], "arguments of create_model that differ from the zoo's"
    ] = dataclasses.field(default_factory=dict)
    num_classes: Annotated[int, v.CLASSES, "number of classes; 0: the dataset's"]
    input_size: Annotated[
        int, v.SIZE, "image side in pixels; with training_size, outside of training"
    ]
    training_size: Annotated[
        int, v.SIZE_OR_NONE, "image side in training; 0: input_size"
    ] = 0
    dropout_rate: Annotated[
        float, v.RATE, "fraction of the features dropped before the classifier"
    ] = 0.0
    stochastic_depth_rate: Annotated[
        float, v.RATE, "probability of skipping a block of the last stage"
    ] = 0.0
    bn_momentum: Annotated[
        float, v.RATE, "fraction of the moving statistics kept at each step"
    ] = 0.9
    position_stddev: Annotated[
        float,
        v.NOT_NEGATIVE,
        "standard deviation of a lambda layer's position embeddings at the start",
    ] = 1.0
    sync_batch_norm: Annotated[
        bool, "batch statistics over all devices instead of each device"
    ] = False
    mixed_precision: Annotated[
        v.Precision, "compute in bfloat16 or float16, keep variables in float32"
    ] = False
    start_from: Annotated[
        str, "model_dir or initial weights; empty: random weights"
    ] = ""
    zero_head: Annotated[
        bool, "start the classifier at zero, regardless of start_from"
    ] = False
    freeze: Annotated[
        str, "layers that are not trained: backbone, c2 or patterns such as stem*,c2"
    ] = ""
    lora_rank: Annotated[
        int,
        v.NATURAL,
        "rank of adapters (LoRA), trained with the classifier alone; 0: none",
    ] = 0

    # The data.
    task: Annotated[str, v.TASKS, "what is labeled"] = "classification"
    dataset: Annotated[
        str,
        v.TEXT,
        "a dataset of TFDS; or your own: folder or tfrecord",
    ]
    labels: Annotated[
        str,
        "csv or parquet file of folder: file, label (or mask), split; empty: none",
    ] = ""
    train_split: Annotated[str, v.TEXT, "split to train on, such as train[:90%]"] = (
        "train"
    )
    eval_split: Annotated[str, v.TEXT, "split to evaluate on"] = "test"
    held_out_split: Annotated[str, "split that selects the best epoch; empty: none"] = (
        ""
    )
    patience: Annotated[
        int, v.OR_NEVER, "epochs without improvement after which the run ends; 0: never"
    ] = 0
    pseudo_labels: Annotated[
        str, "folder that `lambdanet pseudo-label` wrote; empty: none"
    ] = ""
    pseudo_share: Annotated[
        float, v.RATE, "fraction of each batch taken from pseudo_labels"
    ] = 0.0
    mean: Annotated[
        tuple[float, ...], v.MEANS, "mean of each channel, for pixels in 0..1"
    ]
    std: Annotated[
        tuple[float, ...],
        v.DEVIATIONS,
        "standard deviation of each channel, for pixels in 0..1",
    ]
    crop_fraction: Annotated[
        float, v.FACTOR, "fraction of the shorter side that evaluation crops"
    ] = 1.0
    interpolation: Annotated[str, v.INTERPOLATIONS, "interpolation at evaluation"] = (
        "bilinear"
    )
    augmentation: Annotated[str, v.AUGMENTATIONS, "crop and flips in training"] = "none"
    sampling: Annotated[
        str, v.SAMPLINGS, "shuffled: each image once; balanced: each class as often"
    ] = "shuffled"
    windows_per_image: Annotated[
        int, v.COUNT, "windows of each image with a mask per epoch"
    ] = 1
    foreground_share: Annotated[
        float,
        v.FRACTION,
        "fraction of the windows around a pixel of a class but the first",
    ] = 0.0
    repeated_augmentation: Annotated[
        int, v.COUNT, "copies of an image, each augmented differently"
    ] = 1
    randaugment_layers: Annotated[
        int, v.NATURAL, "RandAugment operations per image; 0: none"
    ] = 0
    randaugment_magnitude: Annotated[
        float, v.NOT_NEGATIVE, "magnitude of RandAugment"
    ] = 10.0
    randaugment_policy: Annotated[str, v.POLICIES, "operations of RandAugment"] = (
        "model_garden"
    )
    randaugment_std: Annotated[
        float, v.NOT_NEGATIVE, "deviation of the magnitude, with the policy timm"
    ] = 0.0
    color_jitter: Annotated[
        float, v.FRACTION, "largest change of brightness, contrast and saturation"
    ] = 0.0
    random_erasing: Annotated[
        float, v.FRACTION, "probability that a rectangle becomes noise"
    ] = 0.0
    mixup_alpha: Annotated[
        float, v.NOT_NEGATIVE, "alpha of mixup, which blends two images; 0: none"
    ] = 0.0
    cutmix_alpha: Annotated[
        float, v.NOT_NEGATIVE, "alpha of CutMix, which pastes a rectangle; 0: none"
    ] = 0.0

    # The optimization.
    epochs: Annotated[int, v.COUNT, "passes over the training split"]
    global_batch_size: Annotated[
        int, v.COUNT, "images per step on all devices together"
    ]
    optimizer: Annotated[
        str, v.OPTIMIZERS, "sgd, adam, adamw, muon or another class of Keras, or lamb"
    ] = "sgd"
    learning_rate: Annotated[float, v.POSITIVE, "peak, reached after warmup_epochs"]
    momentum: Annotated[
        float, v.RATE, "momentum, or beta_1, of the optimizers that have one"
    ] = 0.9
    optimizer_options: Annotated[
        dict[str, object], "other options, such as {'nesterov': True} of sgd"
    ] = dataclasses.field(default_factory=dict)
    schedule: Annotated[str, v.SCHEDULES, "learning rate after the warm-up"] = "cosine"
    warmup_epochs: Annotated[
        float, v.NOT_NEGATIVE, "epochs in which the learning rate rises from 0"
    ] = 0.0
    cosine_floor: Annotated[
        float, v.RATE, "end of the cosine schedule, as a fraction of the peak"
    ] = 0.0
    decay_rate: Annotated[
        float, v.FACTOR, "factor of the exponential schedule per decay_epochs"
    ] = 1.0
    decay_epochs: Annotated[
        float, v.POSITIVE, "epochs between decays of the exponential schedule"
    ] = 1.0
    weight_decay: Annotated[
        float,
        v.NOT_NEGATIVE,
        "decay of kernels: L2 in the loss, or in the step, as of adamw",
    ] = 0.0
    clip_norm: Annotated[
        float, v.NOT_NEGATIVE, "largest norm of all gradients together; 0: any"
    ] = 0.0
    clip_adaptive: Annotated[
        float, v.NOT_NEGATIVE, "largest gradient relative to weights (AGC); 0: any"
    ] = 0.0
    accumulate_steps: Annotated[
        int, v.COUNT, "parts of a batch whose gradients are added up in turn"
    ] = 1
    remat: Annotated[
        bool, "compute activations of blocks again in the backward pass, to save memory"
    ] = False
    layer_decay: Annotated[
        float, v.FACTOR, "factor of the learning rate per block, backwards"
    ] = 1.0
    head_rate: Annotated[
        float, v.POSITIVE, "factor of the learning rate of the classifier"
    ] = 1.0
    loss: Annotated[str, v.LOSSES, "loss"] = ""
    label_smoothing: Annotated[
        float, v.RATE, "fraction of each label spread over all classes"
    ] = 0.0
    target_threshold: Annotated[
        float, v.RATE, "label that counts as 1 in binary_cross_entropy; 0: none"
    ] = 0.0
    class_weights: Annotated[
        v.Weights,
        v.WEIGHTS,
        "weight of each class in the loss; balanced: all count alike; empty: 1",
    ] = ()
    positive_weights: Annotated[
        v.Weights,
        v.WEIGHTS,
        "factor on the loss of each class of multilabel where it is present; empty: 1",
    ] = ()
    ema_decay: Annotated[
        float, v.RATE, "decay of the weights' average, which is evaluated; 0: none"
    ] = 0.0
    seed: Annotated[
        int, v.SEED, "seed of the weights, the order and the augmentation"
    ] = 0

    def __post_init__(self) -> None:
        if not self.loss:
            object.__setattr__(self, "loss", v.loss_of(str(self.task).lower()))
        for field, (kind, *limits, _) in _annotations().items():
            value = v.coerce(field, getattr(self, field), kind)
            value = v.check_value(field, value, limits)
            object.__setattr__(self, field, value)
        v.check_rules(self)

    @property
    def decays_in_steps(self) -> bool:
        """Whether the weight decay is in the steps of the optimizer instead of the loss."""
        return self.optimizer in v.DECAY_IN_STEPS

    @property
    def compute_dtype(self) -> str:
        """The type in which the model computes."""
        return str(self.mixed_precision or "float32")

    @property
    def size_in_training(self) -> int:
        """The side of the training images in pixels."""
        return self.training_size or self.input_size

    @property
    def num_pseudo_labels(self) -> int:
        """The number of images with pseudo-labels in a batch."""
        return round(self.pseudo_share * self.global_batch_size)


@functools.cache
def _annotations() -> dict[str, tuple[Any, ...]]:
    """Returns the type, the limits or choices, and the help of each field, in the order of `Recipe`."""
    return {
        name: get_args(hint)
        for name, hint in get_type_hints(Recipe, include_extras=True).items()
    }


def field_types() -> dict[str, type]:
    """Returns the type of each field of a recipe, by name."""
    return {name: kind for name, (kind, *_) in _annotations().items()}


class FieldDescription(NamedTuple):
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
      FieldDescription(name='input_size', kind='int', default=None, help='image side in pixels; ...')
    """
    described = []
    for field in dataclasses.fields(Recipe):
        kind, *limits, text = _annotations()[field.name]
        given = (
            field.default
            if field.default_factory is dataclasses.MISSING
            else field.default_factory()
        )
        default: str | None = None
        if isinstance(given, str):
            default = given
        elif given is not dataclasses.MISSING:
            default = json.dumps(given)
        for choices in (limit for limit in limits if not isinstance(limit, v.Limit)):
            *others, last = choices
            if len(others) < 10:  # more are in the help
                text += f": {', '.join(others)} or {last}"
        name = _SHOWN.get(kind) or (get_origin(kind) or kind).__name__
        described.append(FieldDescription(field.name, name, default, text))
    return described


_SHOWN = {v.Weights: "tuple", v.Precision: "str"}  # types that are no classes


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
        if field == "sizes":  # its name in earlier versions
            raise invalid("recipe field", "training_size", field)
        check_known("recipe field", field, types)
        values[field] = v.coerce(field, v.parse_value(text, types[field]), types[field])
    if values.get("task", recipe.task) != recipe.task:
        values.setdefault("loss", "")
    return dataclasses.replace(recipe, **values)


def to_json(recipe: Recipe) -> str:
    """Returns the recipe as JSON text, one field per line."""
    return json.dumps(dataclasses.asdict(recipe), indent=2) + "\n"


def from_json(text: str) -> Recipe:
    """Returns the recipe that `to_json` wrote.

    Missing fields take their defaults, so recipes of earlier versions can be read.

    Raises:
      InputError: the text is not a recipe, or one that only an earlier version can train.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InputError(f"not a recipe in JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(
            f"not a recipe in JSON: {type(values).__name__} instead of an object"
        )
    if unfreeze_epoch := values.pop("unfreeze_epoch", 0):
        raise invalid("unfreeze_epoch", "0", unfreeze_epoch, v.LAST_WITH_PHASES)
    if sizes := values.pop("sizes", ()):
        size, *others = v.coerce("sizes", sizes, tuple[float, ...])
        if others:
            raise invalid("sizes", "at most one number", sizes, v.LAST_WITH_PHASES)
        values["training_size"] = int(size) if size.is_integer() else size
    for field in values:
        check_known("recipe field", field, field_types())
    missing = [
        f.name for f in describe_fields() if f.default is None and f.name not in values
    ]
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
    # No permission, no text, no JSON, or no recipe.
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None


def differences(old: Recipe, new: Recipe) -> dict[str, tuple[object, object]]:
    """Returns the fields in which two recipes differ, each with the old and the new value."""
    pairs = {
        field: (getattr(old, field), getattr(new, field)) for field in field_types()
    }
    return {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}
