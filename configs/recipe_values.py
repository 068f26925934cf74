# SPDX-License-Identifier: Apache-2.0
"""The values that the fields of a recipe accept."""

import ast
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeGuard, get_args, get_origin

from lambdanet.core.errors import check_known, invalid


class Limit(NamedTuple):
    """The values that a field accepts beyond its type: a test, and its description for messages."""

    accepts: Callable[[Any], bool]
    accepted: str


POSITIVE = Limit(lambda v: 0 < v < math.inf, "a number above 0")
NOT_NEGATIVE = Limit(lambda v: 0 <= v < math.inf, "a number of at least 0")
COUNT = Limit(lambda v: v >= 1, "a positive integer")
NATURAL = Limit(lambda v: v >= 0, "an integer of at least 0")
OR_NEVER = Limit(lambda v: v >= 0, "a positive integer, or 0 for never")
RATE = Limit(lambda v: 0 <= v < 1, "a number from 0 to below 1")
FRACTION = Limit(lambda v: 0 <= v <= 1, "a number from 0 to 1")
FACTOR = Limit(lambda v: 0 < v <= 1, "a number above 0 and at most 1")
TEXT = Limit(bool, "a text that is not empty")
SIZE = Limit(lambda v: 1 <= v < 1 << 16, "an integer from 1 to 65535")
SIZE_OR_NONE = Limit(lambda v: not v or SIZE.accepts(v), SIZE.accepted + ", or 0")
CLASSES = Limit(lambda v: v >= 0, "a positive integer, or 0 for the dataset's")
MEANS = Limit(
    lambda v: bool(v) and all(map(math.isfinite, v)), "one number per channel"
)
DEVIATIONS = Limit(
    lambda v: bool(v) and all(map(POSITIVE.accepts, v)),
    "one number above 0 per channel",
)
BALANCED = "balanced"  # weights of the classes, or sampling
Weights = tuple[float, ...] | Literal["balanced"]
Precision = bool | Literal["bfloat16", "float16"]  # True becomes bfloat16
PRECISIONS = {
    "false": False,
    "true": "bfloat16",  # as recipes of earlier versions have it
    "bfloat16": "bfloat16",
    "float16": "float16",
}
WEIGHTS = Limit(
    lambda v: (
        not v
        or v == BALANCED
        or (max(v) > 0 and all(0 <= weight < 1e38 for weight in v))
    ),
    f"one number from 0 to below 1e38 per class, not all 0, or {BALANCED}",
)
SEED = Limit(lambda v: 0 <= v < 2**31, "an integer from 0 to below 2**31")


# The choices of a recipe. The module that implements them has a table of the same names.
OPTIMIZERS = (
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "ftrl",
    "lamb",
    "lion",
    "muon",
    "nadam",
    "rmsprop",
    "schedulefreeadamw",
    "sgd",
)
# Those whose steps decay the kernels; with the others, the loss does.
DECAY_IN_STEPS = ("adafactor", "adamw", "lamb", "lion", "muon", "schedulefreeadamw")
SCHEDULES = ("constant", "cosine", "exponential")
AUGMENTATIONS = ("affine", "crop_flip", "flip", "none", "padded_crop_flip")
SAMPLINGS = ("balanced", "shuffled")
LOSSES = ("binary_cross_entropy", "cross_entropy", "cross_entropy_dice", "dice")
# With their classes, which `training` adds. One of your own is here with its class.
TASKS: dict[str, Any] = dict.fromkeys(("classification", "multilabel", "segmentation"))
INTERPOLATIONS = ("bicubic", "bilinear")
POLICIES = ("model_garden", "timm")  # of RandAugment
MAX_MAGNITUDE = 10.0  # of the policy timm
INTEGERS = range(-(2**63), 2**63)


def loss_of(task: str) -> str:
    """Returns the loss of a task where a recipe has none."""
    return _LOSSES.get(task, ("cross_entropy",))[0]


def check_rules(recipe: Any) -> None:
    """Checks the rules between the fields of a recipe.

    Raises:
      InputError: a value cannot be used with another one.
    """
    for field, accepts, accepted in _RULES:
        if not accepts(recipe):
            raise invalid(
                field,
                accepted.format(recipe),
                getattr(recipe, field),
                _HINTS.get(field, ""),
            )
    of_task = f"with the task {recipe.task}"
    for field in _LEFT_OUT.get(recipe.task, ()):
        if value := getattr(recipe, field):
            raise invalid(field, f"left out {of_task}", value)
    losses = _LOSSES.get(recipe.task, LOSSES)
    if recipe.loss not in losses:
        raise invalid("loss", f"{' or '.join(losses)} {of_task}", recipe.loss)


def check_value(
    field: str, value: Any, limits: Iterable[Limit | Collection[str]]
) -> Any:
    """Checks the value of a field, which has its type, by the limits or choices in its annotation.

    Returns:
      The value; a choice in lower case, so that those of Keras may have the names of its classes.

    Raises:
      InputError: the value is not accepted.
    """
    for limit in limits:
        if not isinstance(limit, Limit):
            value = value.lower()
            check_known(field, value, limit)
        elif not limit.accepts(value):
            raise invalid(field, limit.accepted, value)
    return value


def parse_value(text: str, kind: type) -> object:
    """Returns the value that a text denotes, or the text itself if it is not of that kind."""
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind in (int, float):
            return kind(text)
        if kind is not str:
            # By Python, about texts such as "1if 1else 2".
            with warnings.catch_warnings(action="ignore"):
                return ast.literal_eval(text)
    except (KeyError, ValueError, SyntaxError, TypeError):
        pass
    return text


def coerce(field: str, value: Any, kind: Any) -> Any:
    """Returns a value as the type of its field: an int as a float, a sequence as a tuple of floats."""
    if kind == Weights:
        kind, _ = get_args(kind)
        if value == BALANCED:
            return value
        if isinstance(value, str):
            raise invalid(field, f"numbers separated by commas, or {BALANCED}", value)
    if kind == Precision:
        text = str(value).lower() if isinstance(value, bool | str) else ""
        if text not in PRECISIONS:
            raise invalid(field, "bfloat16, float16 or false", value)
        return PRECISIONS[text]
    origin = get_origin(kind) or kind
    if kind is float and _is_number(value):
        return float(value)
    if origin is tuple:
        values = value if isinstance(value, tuple | list) else (value,)
        if all(map(_is_number, values)):
            return tuple(float(v) for v in values)
    if (
        origin is dict
        and isinstance(value, Mapping)
        and all(isinstance(key, str) for key in value)
    ):
        return {key: _plain(f"{field}[{key!r}]", v) for key, v in value.items()}
    if (
        origin in (int, str, bool)
        and type(value) is origin
        and (origin is not int or value in INTEGERS)
    ):
        return value
    raise invalid(field, _ACCEPTED[origin], value)


def _plain(field: str, value: object) -> object:
    """Returns a value that can be written as JSON, with lists as tuples."""
    if isinstance(value, tuple | list):
        return tuple(_plain(field, v) for v in value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(f"{field}[{key!r}]", v) for key, v in value.items()}
    if (
        value is None
        or isinstance(value, bool | str)
        or (_is_number(value) and math.isfinite(value))
    ):
        return value
    raise invalid(field, "a number, text, True, False, None or a list of them", value)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, float) or (type(value) is int and value in INTEGERS)


_ACCEPTED = {
    int: "an integer below 2**63, such as 10",
    float: "a number, such as 0.1",
    bool: "true or false",
    str: "a text",
    tuple: "numbers separated by commas, such as 0.5,0.5,0.5",
    dict: "a dictionary, such as {'scope': 7}",
}

# For recipes of earlier versions, whose runs could change the size of images and unfreeze layers.
LAST_WITH_PHASES = "commit b7701a4 is the last version that takes it; a second run with start_from continues"

_HINTS = {
    "warmup_epochs": "for a short run, add --set=warmup_epochs=0",
}

# For each task, the fields that it does not have, and its losses.
_LEFT_OUT = {
    "multilabel": ("pseudo_labels", "target_threshold"),
    "segmentation": (
        "pseudo_labels",
        "randaugment_layers",
        "mixup_alpha",
        "cutmix_alpha",
    ),
}
_LOSSES = {
    "classification": ("cross_entropy", "binary_cross_entropy"),
    "multilabel": ("binary_cross_entropy",),
    "segmentation": ("cross_entropy", "dice", "cross_entropy_dice"),
}

# Rules between fields, in the order in which they are checked.
_RULES: tuple[tuple[str, Callable[[Any], Any], str], ...] = (
    ("std", lambda r: len(r.mean) == len(r.std), "as long as mean, which is {0.mean}"),
    (
        "warmup_epochs",
        lambda r: r.warmup_epochs <= r.epochs,
        "at most epochs, which is {0.epochs}",
    ),
    (
        "labels",
        lambda r: not r.labels or r.dataset == "folder",
        "empty unless the dataset is folder",
    ),
    ("freeze", lambda r: not r.freeze or r.start_from, "empty without start_from"),
    ("lora_rank", lambda r: not r.lora_rank or r.start_from, "0 without start_from"),
    (
        "lora_rank",
        lambda r: not r.lora_rank or r.task != "segmentation",
        "0 with the task segmentation, whose decoder has to be trained",
    ),
    (
        "freeze",
        lambda r: not r.freeze or not r.lora_rank,
        "empty with lora_rank, which freezes all but adapters and the classifier",
    ),
    (
        "patience",
        lambda r: not r.patience or r.held_out_split,
        "0 without a held_out_split",
    ),
    (
        "pseudo_share",
        lambda r: not r.pseudo_labels or r.num_pseudo_labels,
        "at least one image of a batch of {0.global_batch_size} with pseudo_labels",
    ),
    (
        "pseudo_share",
        lambda r: r.num_pseudo_labels < r.global_batch_size,
        "less than a batch of {0.global_batch_size} images",
    ),
    (
        "accumulate_steps",
        lambda r: r.global_batch_size % r.accumulate_steps == 0,
        "a divisor of global_batch_size, which is {0.global_batch_size}",
    ),
    # Sums over devices cannot be in a loop, and in blocks computed again, devices do not wait for each other.
    (
        "remat",
        lambda r: not r.remat or not r.sync_batch_norm,
        "false with sync_batch_norm",
    ),
    (
        "accumulate_steps",
        lambda r: r.accumulate_steps == 1 or not r.sync_batch_norm,
        "1 with sync_batch_norm",
    ),
    ("momentum", lambda r: r.momentum or r.optimizer != "lion", "above 0 with lion"),
    (
        "optimizer",
        lambda r: r.optimizer != "schedulefreeadamw",
        "another one, as Keras 3.15 does not evaluate its average, and on TensorFlow takes other steps",
    ),
    (
        "randaugment_layers",
        lambda r: not r.randaugment_layers or len(r.mean) == 3,
        "0 without 3 channels",
    ),
    (
        "randaugment_magnitude",
        lambda r: (
            r.randaugment_policy != "timm" or r.randaugment_magnitude <= MAX_MAGNITUDE
        ),
        f"at most {MAX_MAGNITUDE:g} with the randaugment_policy timm",
    ),
    (
        "randaugment_std",
        lambda r: not r.randaugment_std or r.randaugment_policy == "timm",
        "0 without the randaugment_policy timm",
    ),
    (
        "color_jitter",
        lambda r: not r.color_jitter or len(r.mean) == 3,
        "0 without 3 channels",
    ),
    (
        "target_threshold",
        lambda r: not r.target_threshold or r.loss == "binary_cross_entropy",
        "0 without binary_cross_entropy",
    ),
    *(
        (
            field,
            lambda r, field=field: (
                getattr(r, field) in ((), BALANCED)
                or not r.num_classes
                or len(getattr(r, field)) == r.num_classes
            ),
            f"empty, {BALANCED}, or {{0.num_classes}} numbers, one per class",
        )
        for field in ("class_weights", "positive_weights")
    ),
    (
        "positive_weights",
        lambda r: r.task == "multilabel" or not r.positive_weights,
        "empty without the task multilabel",
    ),
    (
        "sampling",
        lambda r: r.sampling != BALANCED or r.task in ("classification", "multilabel"),
        "shuffled without the tasks classification and multilabel",
    ),
    (
        "sampling",
        lambda r: (
            r.sampling != BALANCED
            or BALANCED not in (r.class_weights, r.positive_weights)
        ),
        "shuffled with balanced weights, or rare classes would count twice",
    ),
    (
        "windows_per_image",
        lambda r: r.task == "segmentation" or r.windows_per_image == 1,
        "1 without the task segmentation",
    ),
    (
        "foreground_share",
        lambda r: r.task == "segmentation" or not r.foreground_share,
        "0 without the task segmentation",
    ),
)
