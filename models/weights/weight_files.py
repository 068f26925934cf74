# SPDX-License-Identifier: Apache-2.0
"""Writes weights with their metadata, and checks weights of files before it loads them."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lambdanet import backend as K
from lambdanet.backend import compat, keras
from lambdanet.configs.registry import pretrained_weights
from lambdanet.core.errors import InputError, invalid, join_first
from lambdanet.core.files import cache_dir
from lambdanet.layers.attention import AxialAttention, GlobalAttention
from lambdanet.layers.layer import check_plain
from lambdanet.layers.position_embedding import RelativePositionEmbedding
from lambdanet.models.layer_builder import CLASSIFIER
from lambdanet.models.names import list_models
from lambdanet.models.weights import tensor_files
from lambdanet.models.weights.tensor_files import SAFETENSORS
from lambdanet.ops import relative_positions

FOLDER_FILE = "weights.safetensors"  # in a folder that `lambdanet convert` writes
MAX_LISTED = 5  # names in an error
RGB = 3  # channels of the images of published weights
IMAGENET_CLASSES = 1000
PACKAGED = Path(__file__).parent / "packaged"  # MODEL.NAME.safetensors
# Sides of tables that can be interpolated: maps of up to 1024 positions.
TABLE_SIDES = range(1, 2048, 2)


def find_file(
    model_name: str, weights: str | Path, argument: str = "weights", others: str = ""
) -> Path:
    """Returns the file of weights that an argument names.

    Args:
      model_name: the name of the model.
      weights: a file, a folder of `lambdanet convert`, or a NAME: MODEL.NAME.safetensors in `cache_dir()` or
        in this package.
      argument: the name of the argument, for the error.
      others: what else it may be, for the error: "a model_dir, ".

    Raises:
      InputError: there is no such file.
    """
    path = Path(os.path.expanduser(weights))
    if path.name.endswith(SAFETENSORS):
        if not os.path.isfile(path):  # False also for impossible names
            raise invalid(argument, f"an existing {SAFETENSORS} file", str(weights))
        return path
    if os.sep not in str(weights):
        for folder in (cache_dir(), PACKAGED):
            weights_by_name = folder / f"{model_name}.{weights}{SAFETENSORS}"
            if os.path.isfile(weights_by_name):
                return weights_by_name
    if os.path.isfile(path / FOLDER_FILE):
        return path / FOLDER_FILE
    tags = [published.tag for published in pretrained_weights.weights_of(model_name)]
    names = [pretrained_weights.ALIAS, *tags] if tags else []
    names += packaged_sets(model_name)
    sets = "".join(f"{name}, " for name in names)
    accepted = (
        f"{others}an existing {SAFETENSORS} file, a folder of `lambdanet convert`, {sets}"
        f"hf:USER/REPO, or the name of a set in {str(cache_dir())!r}"
    )
    missing = str(weights) == pretrained_weights.ALIAS
    hint = (
        f"none are published for {model_name}: see `lambdanet list --pretrained`"
        if missing
        else ""
    )
    if path.suffix == ".keras":
        hint = "load it by keras.models.load_model, and write its weights by weight_files.save"
    if path.suffix == ".h5":
        hint = (
            "load it by model.load_weights into a model of the same architecture, and write its weights by "
            "weight_files.save"
        )
    raise invalid(argument, accepted, str(weights), hint)


def read_sizes(path: Path) -> tuple[int, int]:
    """Returns the numbers of classes and of channels of the images that a file of weights is for.

    The classes are those of its classifier, or ImageNet's; the channels are "in_channels" of its metadata, or
    three; `InputError` where that is no number.
    """
    kernel = tensor_files.shape_of(path, f"{CLASSIFIER}/kernel")
    channels = tensor_files.metadata_of(path).get("in_channels", str(RGB))
    if not channels.isdecimal():
        raise invalid(f"in_channels in {str(path)!r}", "a number", channels)
    return (kernel[-1] if kernel else IMAGENET_CLASSES), int(channels)


def packaged_sets(model_name: str) -> list[str]:
    """Returns the names of the sets of weights of a model in this package."""
    files = sorted(PACKAGED.glob(f"{model_name}.*{SAFETENSORS}"))
    return [file.name.split(".")[1] for file in files]


def save(
    model: keras.Model, path: str | Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Writes the weights of a model as safetensors, by the names of its variables.

    Args:
      model: a model of the zoo.
      path: the path of the file, which ends in ".safetensors".
      metadata: texts about them, of which `preprocess_for` reads input_size, mean, std, crop_fraction and
        interpolation, as in the file `metadata.json` of `lambdanet convert`, and `lambdanet export` the names
        in classes, a list in JSON, and `create_model` the number in_channels; others are kept.

    Raises:
      InputError: the path has another ending, two weights have the same name, a weight is not finite, or a
        layer has LoRA or is quantized, which cannot be loaded.

    Example:
      >>> save(model, "mine.safetensors", {"mean": "0.485, 0.456, 0.406", "license": "Apache-2.0"})
      >>> create_model(model.name, weights="mine.safetensors")
    """
    if not str(path).endswith(SAFETENSORS):
        raise invalid("path", f"a {SAFETENSORS} file", str(path))
    check_plain(model, "a file of weights")
    arrays = {
        name: variable.numpy() for name, variable in weights_by_name(model).items()
    }
    for name, array in arrays.items():
        if not is_finite(array):
            raise InputError(f"{name} has NaN or infinity")
    tensor_files.write_safetensors(
        path, arrays, {"model": model.name, **(metadata or {})}
    )


def load_weights(
    model: keras.Model, path: Path, whole: keras.Model | None = None
) -> None:
    """Loads the weights of a file into a model, all of them or none.

    Tables and the first kernel are adapted as in `assign_weights`.

    Args:
      model: a model of the zoo.
      path: the path of the file.
      whole: the same model with its classifier, if `model` returns features; the file's weights of the
        classifier are left out. The classifier keeps its weights, too, if a published one is for another
        number of classes.

    Raises:
      InputError: the file is damaged, or tensors do not fit; the message names them.
    """
    whole = whole or model
    left_out = weights_by_name(whole).keys() - weights_by_name(model).keys()
    arrays, metadata = read_arrays(model, path)
    if is_published(metadata) and count_classes(arrays) != count_classes(
        weights_by_name(model)
    ):
        left_out |= classifier(model).keys()
    assign_weights(model, arrays, repr(str(path)), left_out)


def read_arrays(
    model: keras.Model, path: Path
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns the arrays of a .safetensors file by name, and its metadata.

    Args:
      model: the model that the weights are for; its name is compared with that in the metadata, where both
        are names of the zoo.
      path: the path of the file.

    Raises:
      InputError: the file is damaged, or has the weights of another model.
    """
    arrays, metadata = tensor_files.read_safetensors(path)
    trained = metadata.get("model")
    # A copy within another model has a name of its own.
    if trained != model.name and {trained, model.name} <= set(list_models()):
        raise InputError(
            f"{str(path)!r} does not fit {model.name!r}: it has the weights of {trained!r}"
        )
    return arrays, metadata


def classifier(model: keras.Model) -> dict[str, K.Variable]:
    """Returns the weights of a model's classifier by their names in files; none if it has no classifier."""
    weights = weights_by_name(model)
    return {
        name: weight
        for name, weight in weights.items()
        if name.startswith(f"{CLASSIFIER}/")
    }


def count_classes(arrays: Mapping[str, Any]) -> int:
    """Returns the number of classes of arrays or variables by name; 0 without a classifier."""
    kernel = arrays.get(f"{CLASSIFIER}/kernel")
    return 0 if kernel is None else int(kernel.shape[-1])


def with_columns(
    model: keras.Model,
    arrays: Mapping[str, np.ndarray],
    columns: Sequence[int | None],
) -> dict[str, np.ndarray]:
    """Returns arrays whose classifier has other columns, such as classes in another order.

    Args:
      model: the model for which they are.
      arrays: the weights of the same architecture, with any number of classes, by name.
      columns: for each class of the model its column in the arrays; None: as in the model.
    """
    changed = dict(arrays)
    kept = [number for number, column in enumerate(columns) if column is not None]
    taken = [column for column in columns if column is not None]
    for name, variable in classifier(model).items():
        if name in arrays and arrays[name].shape[:-1] == tuple(variable.shape[:-1]):
            values = K.convert_to_numpy(variable).copy()
            values[..., kept] = arrays[name][..., taken]
            changed[name] = values
    return changed


def is_published(metadata: Mapping[str, str]) -> bool:
    """Returns whether weights are, or may be, a published set, by the metadata of `convert`."""
    return metadata.get("as_published", "no") != "no"


def weights_by_name(model: keras.Model) -> dict[str, K.Variable]:
    """Returns the weights of a model by their names in files.

    Raises:
      InputError: two have the same name, as where a model contains two of the same network.
    """
    weights = {compat.variable_name(variable): variable for variable in model.weights}
    if len(weights) < len(model.weights):
        names = f"the {len(model.weights)} names of the weights of {model.name!r}"
        hint = "save each network in it by itself, or all by `model.save`"
        raise invalid(names, "different", f"{len(weights)} names", hint)
    return weights


def assign_weights(
    model: keras.Model,
    arrays: Mapping[str, np.ndarray],
    source: str,
    left_out: Collection[str] = frozenset(),
) -> None:
    """Assigns arrays to the weights of a model by name, all of them or none.

    Tables of relative positions over a whole map are interpolated if the model is for maps of another size.
    The kernel of the first convolution is adapted if the array is for RGB and the model for other channels.

    Args:
      model: a model of the zoo.
      arrays: exactly one array per weight.
      source: the name of their source, for the error.
      left_out: the names of weights that are not assigned, with or without arrays.

    Raises:
      InputError: arrays do not fit; the message names them.
    """
    variables = {
        name: variable
        for name, variable in weights_by_name(model).items()
        if name not in left_out
    }
    given = {name: array for name, array in arrays.items() if name not in left_out}
    tables = _global_tables(model)
    first_kernel = _first_kernel(model)
    problems = [f"{name} is missing" for name in variables if name not in given]
    problems += [f"{name} has no variable" for name in given if name not in variables]
    for name in variables.keys() & given.keys():
        expected = tuple(variables[name].shape)
        shape = given[name].shape
        fits = (
            shape == expected
            or (name in tables and _can_resize(shape, expected))
            or (name == first_kernel and shape == (*expected[:2], RGB, *expected[3:]))
        )
        problems += problems_of(name, given[name], expected, fits)
    if problems:
        listed = join_first(sorted(problems), most=MAX_LISTED)
        raise InputError(f"{source} does not fit {model.name!r}: {listed}")
    values = {name: given[name] for name in variables}
    if first_kernel in values:
        values[first_kernel] = for_channels(
            values[first_kernel], variables[first_kernel].shape[2]
        )
    for name, value in values.items():
        assign_resized(variables[name], value)


def for_channels(kernel: np.ndarray, in_channels: int) -> np.ndarray:
    """Adapts the kernel of a convolution on RGB images to other channels, as timm does.

    Args:
      kernel: [h, w, c, filters], with c = 3, or already with c = in_channels.
      in_channels: the number of channels; 1 sums the kernel over RGB, any other number repeats RGB and
        multiplies it by 3 / in_channels.

    Returns:
      [h, w, in_channels, filters].
    """
    if kernel.shape[2] == in_channels:
        return kernel
    if in_channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    return kernel[:, :, np.arange(in_channels) % RGB] * (RGB / in_channels)


def assign_resized(variable: K.Variable, value: np.ndarray) -> None:
    """Assigns an array to a variable; a table of other lengths is interpolated."""
    if tuple(variable.shape) != value.shape:
        value = relative_positions.resize_table(
            K.convert_to_tensor(value), list(variable.shape[:-1])
        )
    variable.assign(K.cast(value, variable.dtype))


def problems_of(
    name: str, array: np.ndarray, expected: tuple[int, ...], fits: bool
) -> Iterator[str]:
    """Yields why an array cannot be assigned, for an error.

    Args:
      name: the name of the array.
      array: the array.
      expected: the shape that it should have.
      fits: whether its own will do.
    """
    if not fits:
        yield f"{name} has the shape {array.shape}, not {expected}"
    elif array.dtype not in tensor_files.FLOATS:
        yield f"{name} has {array.dtype}, not floating-point numbers"
    elif not is_finite(array):
        yield f"{name} has NaN or infinity"


def is_finite(array: np.ndarray) -> bool:
    """Returns whether all numbers are finite as float32."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(array.astype(np.float32)).all())


def _can_resize(shape: tuple[int, ...], new: tuple[int, ...]) -> bool:
    """Whether a table can be interpolated: the depths are equal, and offset 0 is in the middle."""
    return (
        shape[-1:] == new[-1:]
        and len(shape) == len(new)
        and all(n in TABLE_SIDES for n in shape[:-1])
    )


def _first_kernel(model: keras.Model) -> str | None:
    """The name of the kernel of the first convolution, or None if the model has none."""
    kernels = (
        layer.kernel for layer in model.layers if isinstance(layer, keras.layers.Conv2D)
    )
    return next(map(compat.variable_name, kernels), None)


def _global_tables(model: keras.Model) -> set[str]:
    """The names of tables with an embedding for every offset within a map."""
    tables = []
    for module in compat.sublayers(model):
        if (
            isinstance(module, RelativePositionEmbedding)
            and module.scope is None
            and module.num_lambdas == 1
            and module.causal_axis is None
        ):
            tables.append(module.table)
        elif isinstance(module, GlobalAttention | AxialAttention):
            tables += [module.height_table, module.width_table]
    return {compat.variable_name(table) for table in tables}
