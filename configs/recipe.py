# SPDX-License-Identifier: Apache-2.0
"""What a training run is, as one frozen, typed and checked row of data."""

import ast
import dataclasses
import json
import math
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeGuard

from lambdanet.errors import InputError, short, unknown

# Each with the options that it takes besides `learning_rate` and `momentum`.
OPTIMIZERS = {"adam": ("beta_2", "epsilon"), "rmsprop": ("epsilon", "rho"), "sgd": ("nesterov",)}
SCHEDULES = ("constant", "cosine", "exponential")
AUGMENTATIONS = ("affine", "crop_flip", "none", "padded_crop_flip")
INTERPOLATIONS = ("bicubic", "bilinear")
INTEGERS = range(-(2**63), 2**63)
LEVELS = 32  # of lists and dictionaries in an option


def _choice(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides what a training run computes.

    A recipe made with values that cannot be trained with raises `InputError`. Variants are made with
    `dataclasses.replace` in Python and with `override` (`--set=key=value`) on the command line.

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
    num_classes: Annotated[int, "number of classes; 0: the number of classes in the dataset"]
    input_size: Annotated[int, "height and width of the images in pixels"]
    dropout_rate: Annotated[float, "part of the features dropped before the classifier"] = 0.0
    stochastic_depth_rate: Annotated[float, "probability that the last block is skipped"] = 0.0
    bn_momentum: Annotated[float, "part of the moving statistics kept at each step"] = 0.9
    sync_batch_norm: Annotated[bool, "batch statistics over all devices instead of each device"] = False
    mixed_precision: Annotated[bool, "compute in bfloat16, keep variables in float32"] = False
    start_from: Annotated[str, "model_dir or weights to start from; empty: random weights"] = ""
    zero_head: Annotated[bool, "start the classifier at zero, whatever start_from has"] = False

    # The data.
    dataset: Annotated[str, "a dataset of TFDS; folder, your pictures; or tfrecord, your records"]
    train_split: Annotated[str, "split to train on, such as train[:90%]"] = "train"
    eval_split: Annotated[str, "split to evaluate on"] = "test"
    held_out_split: Annotated[str, "split that chooses the best epoch; empty: none is kept"] = ""
    patience: Annotated[int, "epochs without a better one after which the run ends; 0: never"] = 0
    pseudo_labels: Annotated[str, "folder that `lambdanet pseudo-label` wrote; empty: none"] = ""
    pseudo_share: Annotated[float, "part of each batch taken from pseudo_labels"] = 0.0
    mean: Annotated[tuple[float, ...], "subtracted from each channel of pixels in 0..1"]
    std: Annotated[tuple[float, ...], "what each channel is then divided by"]
    crop_fraction: Annotated[float, "part of the shorter side kept by the central crop at evaluation"] = 1.0
    interpolation: Annotated[str, f"at evaluation: {_choice(INTERPOLATIONS)}"] = "bilinear"
    augmentation: Annotated[str, _choice(AUGMENTATIONS)] = "none"
    randaugment_layers: Annotated[int, "changes to each image by RandAugment; 0: none"] = 0
    randaugment_magnitude: Annotated[float, "strength of these changes"] = 10.0

    # The optimization.
    epochs: Annotated[int, "passes over the training split"]
    global_batch_size: Annotated[int, "images per step on all devices together"]
    optimizer: Annotated[str, _choice(OPTIMIZERS)] = "sgd"
    learning_rate: Annotated[float, "the peak, reached after warmup_epochs"]
    momentum: Annotated[float, "momentum of the optimizer; beta_1 of adam"] = 0.9
    optimizer_options: Annotated[dict[str, object], "other options, such as {'nesterov': True} of sgd"] = (
        dataclasses.field(default_factory=dict)
    )
    schedule: Annotated[str, f"learning rate after the warm-up: {_choice(SCHEDULES)}"] = "cosine"
    warmup_epochs: Annotated[float, "epochs in which the learning rate rises from 0"] = 0.0
    cosine_floor: Annotated[float, "end of the cosine schedule, as a part of the peak"] = 0.0
    decay_rate: Annotated[float, "factor of the exponential schedule every decay_epochs"] = 1.0
    decay_epochs: Annotated[float, "epochs between two factors of the exponential schedule"] = 1.0
    weight_decay: Annotated[float, "factor of half the sum of squares of all kernels in the loss"] = 0.0
    label_smoothing: Annotated[float, "part of each label spread over all classes"] = 0.0
    ema_decay: Annotated[float, "of the moving average of the weights, which is evaluated; 0: none"] = 0.0
    seed: Annotated[int, "seed of the weights, the order and the augmentation"] = 0

    def __post_init__(self) -> None:
        for field, kind in field_types().items():
            object.__setattr__(self, field, _typed(field, getattr(self, field), kind))
        for field, (accepts, accepted) in _RANGES.items():
            value = getattr(self, field)
            if not accepts(value):
                raise InputError(f"{field} is {value!r}; accepted: {accepted}")
        for field, names in _NAMES.items():
            if getattr(self, field) not in names:
                raise unknown(field, getattr(self, field), names)
        if len(self.mean) != len(self.std):
            raise InputError(f"mean has {len(self.mean)} channels and std {len(self.std)}; accepted: as many")
        if self.warmup_epochs > self.epochs:
            raise InputError(
                f"warmup_epochs is {self.warmup_epochs}; accepted: at most epochs, which is {self.epochs}"
            )
        if self.patience and not self.held_out_split:
            raise InputError(
                f"patience is {self.patience} and held_out_split is empty; accepted: a split that tells "
                f"better epochs"
            )
        if self.pseudo_labels and not self.num_pseudo_labels:
            raise InputError(
                f"pseudo_labels is {self.pseudo_labels!r} and pseudo_share {self.pseudo_share}; accepted: "
                f"a share of "
                "at least one image of a batch"
            )
        if self.num_pseudo_labels >= self.global_batch_size:
            raise InputError(
                f"pseudo_share is {self.pseudo_share}; accepted: one that leaves an image of a batch of "
                f"{self.global_batch_size} to the dataset"
            )
        for option in self.optimizer_options:
            if option not in OPTIMIZERS[self.optimizer]:
                raise unknown(f"option of optimizer {self.optimizer}", option, OPTIMIZERS[self.optimizer])
        if self.randaugment_layers and len(self.mean) != 3:
            raise InputError(
                f"randaugment_layers is {self.randaugment_layers} and mean has {len(self.mean)} channels; "
                "accepted: RandAugment on 3 channels"
            )

    @property
    def num_pseudo_labels(self) -> int:
        """How many images of each batch have pseudo-labels."""
        return round(self.pseudo_share * self.global_batch_size)


def field_types() -> dict[str, type]:
    """Returns the type of each field of a recipe, by name."""
    return typing.get_type_hints(Recipe)


class FieldDescription(typing.NamedTuple):
    """A field of a recipe in words.

    Attributes:
      name: as `--set` takes it.
      kind: the name of its type, such as "int".
      default: as `--set` reads it; None where each recipe gives a value of its own.
      help: one line.
    """

    name: str
    kind: str
    default: str | None
    help: str


def describe_fields() -> list[FieldDescription]:
    """Returns what each field of a recipe is, in the order of `Recipe`.

    Example:
      >>> describe_fields()[3]
      FieldDescription(name='input_size', kind='int', default=None, help='height and width of ...')
    """
    described = []
    for field in dataclasses.fields(Recipe):
        kind, text = typing.get_args(field.type)
        given = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        default = (
            None if given is dataclasses.MISSING else given if isinstance(given, str) else json.dumps(given)
        )
        described.append(FieldDescription(field.name, _origin(kind).__name__, default, text))
    return described


def override(recipe: Recipe, assignments: Iterable[str]) -> Recipe:
    """Returns the recipe with some fields replaced, as `--set` gives them.

    Args:
      recipe: the recipe to start from.
      assignments: texts "key=value"; the value is read by the type of the field. Later ones win.

    Raises:
      InputError: an unknown field, or a text that is no value of the field's type.

    Example:
      >>> override(recipe, ["epochs=3", "mean=0.5,0.5,0.5", "model_options={'scope': 7}"])
    """
    types = field_types()
    values: dict[str, Any] = {}
    for assignment in assignments:
        field, equals, text = assignment.partition("=")
        if not equals:
            raise InputError(f"--set received {assignment!r}; accepted: key=value, such as epochs=10")
        if field not in types:
            raise unknown("recipe field", field, types)
        values[field] = _typed(field, _parsed(text, types[field]), types[field])
    return dataclasses.replace(recipe, **values)


def to_json(recipe: Recipe) -> str:
    """Returns the recipe as JSON text, one field a line."""
    return json.dumps(dataclasses.asdict(recipe), indent=2) + "\n"


def from_json(text: str) -> Recipe:
    """Returns the recipe that `to_json` wrote.

    Fields that the text lacks take their defaults, so that recipes of earlier versions can be read.

    Raises:
      InputError: text that is no recipe, with what is wrong.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InputError(f"not a recipe in JSON: {error}") from None
    except RecursionError:
        raise InputError(f"not a recipe in JSON: it is nested more than {LEVELS} deep") from None
    if not isinstance(values, dict):
        raise InputError(f"not a recipe in JSON: {type(values).__name__} instead of an object")
    for field in values:
        if field not in field_types():
            raise unknown("recipe field", field, field_types())
    missing = [field for field in _required() if field not in values]
    if missing:
        raise InputError(f"not a recipe: it lacks {', '.join(missing)}")
    return Recipe(**values)


def differences(old: Recipe, new: Recipe) -> dict[str, tuple[object, object]]:
    """Returns the fields in which two recipes differ, each with the old and the new value."""
    pairs = {field: (getattr(old, field), getattr(new, field)) for field in field_types()}
    return {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}


def _required() -> list[str]:
    missing = dataclasses.MISSING
    fields = dataclasses.fields(Recipe)
    return [f.name for f in fields if f.default is missing and f.default_factory is missing]


def _origin(kind: type) -> type:
    return typing.get_origin(kind) or kind


def _parsed(text: str, kind: type) -> object:
    """Returns the value that a text stands for; the text itself where it is no value of that kind."""
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind in (int, float):
            return kind(text)
        if kind is not str:
            with warnings.catch_warnings(action="ignore"):  # of Python, about texts such as "1if 1else 2"
                return ast.literal_eval(text)
    except (KeyError, ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass  # the last two for brackets and signs nested very deep
    return text


def _typed(field: str, value: Any, kind: type) -> Any:
    """Returns a value in the type of its field: an int as a float, a sequence as a tuple of floats."""
    origin = _origin(kind)
    if kind is float and _is_number(value):
        return float(value)
    if origin is tuple:
        values = value if isinstance(value, tuple | list) else (value,)
        if all(map(_is_number, values)):
            return tuple(float(v) for v in values)
    if origin is dict and isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(f"{field}[{key!r}]", v) for key, v in value.items()}
    if origin in (int, str, bool) and type(value) is origin and (origin is not int or value in INTEGERS):
        return value
    raise InputError(f"{field} received {short(value)}; accepted: {_ACCEPTED[origin]}")


def _plain(field: str, value: object, levels: int = LEVELS) -> object:
    """Returns a value that survives JSON, with lists as tuples."""
    if not levels:
        raise InputError(f"{short(field)} must be nested at most {LEVELS} deep")
    if isinstance(value, tuple | list):
        return tuple(_plain(field, v, levels - 1) for v in value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(f"{field}[{key!r}]", v, levels - 1) for key, v in value.items()}
    if value is None or isinstance(value, bool | str) or _is_number(value) and math.isfinite(value):
        return value
    raise InputError(
        f"{field} received {short(value)}; accepted: a number, text, True, False, None, a list of them"
    )


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, float) or type(value) is int and value in INTEGERS


_ACCEPTED = {
    int: "an integer below 2**63, such as 10",
    float: "a number, such as 0.1",
    bool: "true or false",
    str: "a text",
    tuple: "numbers separated by commas, such as 0.5,0.5,0.5",
    dict: "a dictionary, such as {'scope': 7}",
}

_Check = tuple[Callable[[typing.Any], bool], str]
_POSITIVE: _Check = (lambda v: 0 < v < math.inf, "a number above 0")
_NOT_NEGATIVE: _Check = (lambda v: 0 <= v < math.inf, "a number from 0 on")
_COUNT: _Check = (lambda v: v >= 1, "an integer from 1 on")
_RATE: _Check = (lambda v: 0 <= v < 1, "a number from 0 on and below 1")
_TEXT: _Check = (bool, "a text that is not empty")

_RANGES: dict[str, _Check] = {
    "model": _TEXT,
    "num_classes": (lambda v: v >= 0, "an integer from 1 on, or 0 for those of the dataset"),
    "input_size": (lambda v: 1 <= v < 1 << 16, "an integer from 1 to 65535"),
    "dropout_rate": _RATE,
    "stochastic_depth_rate": _RATE,
    "bn_momentum": _RATE,
    "dataset": _TEXT,
    "train_split": _TEXT,
    "eval_split": _TEXT,
    "mean": (lambda v: bool(v) and all(map(math.isfinite, v)), "a number for each channel"),
    "std": (lambda v: bool(v) and all(0 < s < math.inf for s in v), "a number above 0 for each channel"),
    "patience": (lambda v: v >= 0, "an integer from 1 on, or 0 for the whole run"),
    "pseudo_share": _RATE,
    "crop_fraction": (lambda v: 0 < v <= 1, "a number above 0 and at most 1"),
    "randaugment_layers": (lambda v: v >= 0, "an integer from 0 on"),
    "randaugment_magnitude": _NOT_NEGATIVE,
    "epochs": _COUNT,
    "global_batch_size": _COUNT,
    "learning_rate": _POSITIVE,
    "momentum": _RATE,
    "warmup_epochs": _NOT_NEGATIVE,
    "cosine_floor": _RATE,
    "decay_rate": (lambda v: 0 < v <= 1, "a number above 0 and at most 1"),
    "decay_epochs": _POSITIVE,
    "weight_decay": _NOT_NEGATIVE,
    "label_smoothing": _RATE,
    "ema_decay": _RATE,
    "seed": (lambda v: 0 <= v < 2**31, "an integer from 0 on and below 2**31"),
}

_NAMES = {
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "augmentation": AUGMENTATIONS,
    "interpolation": INTERPOLATIONS,
}
