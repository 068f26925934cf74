# SPDX-License-Identifier: Apache-2.0
"""The values that the fields of a recipe accept."""

import ast
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard, get_origin

from lambdanet.errors import InputError, invalid, short, unknown

# The options of each optimizer besides `learning_rate` and `momentum`.
OPTIMIZERS = {
    "adam": ("beta_2", "epsilon"),
    "adamw": ("beta_2", "epsilon"),
    "lamb": ("beta_2", "epsilon"),
    "lion": ("beta_2",),
    "rmsprop": ("epsilon", "rho"),
    "sgd": ("nesterov",),
}
DECAY_IN_STEPS = ("adamw", "lamb", "lion")  # optimizers whose steps decay the kernels; not the loss
SCHEDULES = ("constant", "cosine", "exponential")
AUGMENTATIONS = ("affine", "crop_flip", "none", "padded_crop_flip")
INTERPOLATIONS = ("bicubic", "bilinear")
POLICIES = ("model_garden", "timm")  # of RandAugment
MAX_MAGNITUDE = 10.0  # of the policy timm
LOSSES = ("binary_cross_entropy", "cross_entropy")
INTEGERS = range(-(2**63), 2**63)
MAX_DEPTH = 32  # nested lists and dictionaries in an option


def check(recipe: Any) -> None:
    """Checks the values of a recipe whose fields have their types.

    Raises:
      InputError: a value cannot be used, or not with another one.
    """
    for field, (accepts, accepted) in _RANGES.items():
        if not accepts(getattr(recipe, field)):
            raise invalid(field, accepted, getattr(recipe, field))
    for field, names in _NAMES.items():
        if getattr(recipe, field) not in names:
            raise unknown(field, getattr(recipe, field), names)
    for field, accepts, accepted in _RULES:
        if not accepts(recipe):
            raise invalid(field, accepted.format(recipe), getattr(recipe, field))
    for option in recipe.optimizer_options:
        if option not in OPTIMIZERS[recipe.optimizer]:
            raise unknown(f"option of optimizer {recipe.optimizer}", option, OPTIMIZERS[recipe.optimizer])
        accepts, accepted = _OPTIONS[option]
        if not accepts(recipe.optimizer_options[option]):
            raise invalid(f"optimizer_options[{option!r}]", accepted, recipe.optimizer_options[option])


def parsed(text: str, kind: type) -> object:
    """Returns the value that a text denotes, or the text itself if it is not of that kind."""
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind in (int, float):
            return kind(text)
        if kind is not str:
            with warnings.catch_warnings(action="ignore"):  # by Python, about texts such as "1if 1else 2"
                return ast.literal_eval(text)
    except (KeyError, ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass  # the last two: deeply nested brackets and signs
    return text


def typed(field: str, value: Any, kind: type) -> Any:
    """Returns a value as the type of its field: an int as a float, a sequence as a tuple of floats."""
    origin = get_origin(kind) or kind
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
    raise invalid(field, _ACCEPTED[origin], value)


def _plain(field: str, value: object, levels: int = MAX_DEPTH) -> object:
    """Returns a value that can be written as JSON, with lists as tuples."""
    if not levels:
        raise InputError(f"{short(field)} must be nested at most {MAX_DEPTH} deep")
    if isinstance(value, tuple | list):
        return tuple(_plain(field, v, levels - 1) for v in value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(f"{field}[{key!r}]", v, levels - 1) for key, v in value.items()}
    if value is None or isinstance(value, bool | str) or _is_number(value) and math.isfinite(value):
        return value
    raise invalid(field, "a number, text, True, False, None or a list of them", value)


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

_Check = tuple[Callable[[Any], bool], str]
_POSITIVE: _Check = (lambda v: 0 < v < math.inf, "a number above 0")
_NOT_NEGATIVE: _Check = (lambda v: 0 <= v < math.inf, "a number of at least 0")
_COUNT: _Check = (lambda v: v >= 1, "a positive integer")
_RATE: _Check = (lambda v: 0 <= v < 1, "a number from 0 to below 1")
_TEXT: _Check = (bool, "a text that is not empty")

_OPTIONS: dict[str, _Check] = {
    "beta_2": (lambda v: _is_number(v) and _RATE[0](v), _RATE[1]),
    "epsilon": (lambda v: _is_number(v) and v > 0, "a number above 0"),
    "nesterov": (lambda v: isinstance(v, bool), "True or False"),
    "rho": (lambda v: _is_number(v) and _RATE[0](v), _RATE[1]),
}

_RANGES: dict[str, _Check] = {
    "model": _TEXT,
    "num_classes": (lambda v: v >= 0, "a positive integer, or 0 for that of the dataset"),
    "input_size": (lambda v: 1 <= v < 1 << 16, "an integer from 1 to 65535"),
    "sizes": (lambda v: all(s.is_integer() and 1 <= s < 1 << 16 for s in v), "integers from 1 to 65535"),
    "dropout_rate": _RATE,
    "stochastic_depth_rate": _RATE,
    "bn_momentum": _RATE,
    "unfreeze_epoch": (lambda v: v >= 0, "a positive integer, or 0 for never"),
    "dataset": _TEXT,
    "train_split": _TEXT,
    "eval_split": _TEXT,
    "mean": (lambda v: bool(v) and all(map(math.isfinite, v)), "one number per channel"),
    "std": (lambda v: bool(v) and all(0 < s < math.inf for s in v), "one number above 0 per channel"),
    "patience": (lambda v: v >= 0, "a positive integer, or 0 for never"),
    "pseudo_share": _RATE,
    "crop_fraction": (lambda v: 0 < v <= 1, "a number above 0 and at most 1"),
    "repeated_augmentation": _COUNT,
    "randaugment_layers": (lambda v: v >= 0, "an integer of at least 0"),
    "randaugment_magnitude": _NOT_NEGATIVE,
    "randaugment_std": _NOT_NEGATIVE,
    "color_jitter": (lambda v: 0 <= v <= 1, "a number from 0 to 1"),
    "random_erasing": (lambda v: 0 <= v <= 1, "a number from 0 to 1"),
    "mixup_alpha": _NOT_NEGATIVE,
    "cutmix_alpha": _NOT_NEGATIVE,
    "epochs": _COUNT,
    "global_batch_size": _COUNT,
    "learning_rate": _POSITIVE,
    "momentum": _RATE,
    "warmup_epochs": _NOT_NEGATIVE,
    "cosine_floor": _RATE,
    "decay_rate": (lambda v: 0 < v <= 1, "a number above 0 and at most 1"),
    "decay_epochs": _POSITIVE,
    "weight_decay": _NOT_NEGATIVE,
    "clip_norm": _NOT_NEGATIVE,
    "clip_adaptive": _NOT_NEGATIVE,
    "accumulate_steps": _COUNT,
    "layer_decay": (lambda v: 0 < v <= 1, "a number above 0 and at most 1"),
    "head_rate": _POSITIVE,
    "label_smoothing": _RATE,
    "target_threshold": _RATE,
    "class_weights": (lambda v: all(0 <= w < math.inf for w in v), "one number of at least 0 per class"),
    "ema_decay": _RATE,
    "seed": (lambda v: 0 <= v < 2**31, "an integer from 0 to below 2**31"),
}

# Rules between fields, in the order in which they are checked.
_RULES: tuple[tuple[str, Callable[[Any], Any], str], ...] = (
    ("std", lambda r: len(r.mean) == len(r.std), "as long as mean, which is {0.mean}"),
    ("warmup_epochs", lambda r: r.warmup_epochs <= r.epochs, "at most epochs, which is {0.epochs}"),
    ("sizes", lambda r: len(r.sizes) <= r.epochs, "at most epochs numbers, of which there are {0.epochs}"),
    ("labels", lambda r: not r.labels or r.dataset == "folder", "empty unless the dataset is folder"),
    ("freeze", lambda r: not r.freeze or r.start_from, "empty without start_from"),
    ("unfreeze_epoch", lambda r: not r.unfreeze_epoch or r.freeze, "0 without freeze"),
    ("patience", lambda r: not r.patience or r.held_out_split, "0 without a held_out_split"),
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
    ("remat", lambda r: not r.remat or not r.sync_batch_norm, "false with sync_batch_norm"),
    (
        "accumulate_steps",
        lambda r: r.accumulate_steps == 1 or not r.sync_batch_norm,
        "1 with sync_batch_norm",
    ),
    ("momentum", lambda r: r.momentum or r.optimizer != "lion", "above 0 with lion"),
    ("randaugment_layers", lambda r: not r.randaugment_layers or len(r.mean) == 3, "0 without 3 channels"),
    (
        "randaugment_magnitude",
        lambda r: r.randaugment_policy != "timm" or r.randaugment_magnitude <= MAX_MAGNITUDE,
        f"at most {MAX_MAGNITUDE:g} with the randaugment_policy timm",
    ),
    (
        "randaugment_std",
        lambda r: not r.randaugment_std or r.randaugment_policy == "timm",
        "0 without the randaugment_policy timm",
    ),
    ("color_jitter", lambda r: not r.color_jitter or len(r.mean) == 3, "0 without 3 channels"),
    (
        "target_threshold",
        lambda r: not r.target_threshold or r.loss == "binary_cross_entropy",
        "0 without binary_cross_entropy",
    ),
    (
        "class_weights",
        lambda r: not r.class_weights or not r.num_classes or len(r.class_weights) == r.num_classes,
        "empty, or {0.num_classes} numbers, one per class",
    ),
)

_NAMES = {
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "augmentation": AUGMENTATIONS,
    "interpolation": INTERPOLATIONS,
    "randaugment_policy": POLICIES,
    "loss": LOSSES,
}
