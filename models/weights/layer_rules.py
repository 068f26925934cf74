# SPDX-License-Identifier: Apache-2.0
"""Conversion of the weights of other libraries' lambda layers to those of `LambdaLayer`.

Letters, as in the paper: h heads, k query and key depth, v value depth, u intra-depth, r scope. Where u > 1,
lucidrains orders the channels of keys and values as (u, k) and (u, v); ours are (k, u) and (v, u).
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lambdanet import backend as K
from lambdanet.core import which_keras
from lambdanet.core.errors import InputError, invalid, one_line
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.layers.layer import check_plain
from lambdanet.layers.position_embedding import UnstructuredPositionEmbedding
from lambdanet.layers.slice_lambda_layer import SliceLambdaLayer
from lambdanet.models.weights import tensor_files, timm_rules
from lambdanet.models.weights.timm_rules import BATCH_NORM, WeightRule

Tensors = Mapping[str, np.ndarray]

TABLE = "position/table"
SLICE_TABLE = "slice_position/table"
# Tensors of positions: the kernel and the bias of a convolution, or else a kernel alone,
KERNEL = "pos_conv.weight"
BIASES = ("pos_conv.bias", "conv_lambda.bias")  # conv_lambda is timm's
EMBEDDING = "embedding"
# a second convolution, across slices, LambdaUNet's and ATOMMIC's copy of it,
SLICE_KERNELS = ("tem_conv.weight", "temp_conv.weight")
# a table for a whole map, or the embeddings of all pairs of positions, lucidrains' in Keras.
RELATIVE = "rel_pos_emb"
PAIRS = "pos_emb"
TIMM = "qkv.weight"  # timm's projections; its pos_emb is a table for a whole map
TORCH_EPSILON = 1e-5  # of batch normalizations, by default
KERAS_EPSILON = 1e-3

# Tensors that the paper's layer does not have, and how the layer with them differs.
DIFFERENCES = {
    "keys.1.weight": "leaderj1001's layer normalizes keys instead of values",
    "queries.0.bias": (
        "the dense form of Temporal Lambda Networks reads outputs [positions, channels] as [channels, "
        "positions], so that its softmax is over both, and normalizes each position instead of each channel"
    ),
}
TRANSPOSED = (
    "with an intra-depth, the layer of Temporal Lambda Networks reads the same channels of values as [v, u] "
    "in its content lambda and as [u, v] in its position lambda"
)


class Names(NamedTuple):
    """The names of a layer's parts in PyTorch, and the order of its channels.

    Attributes:
      queries, keys, values, queries_norm, values_norm: the prefixes of the tensors of each.
      intra_depth_first: whether channels of keys and values are ordered as (u, k) and (u, v).
    """

    queries: str
    keys: str
    values: str
    queries_norm: str
    values_norm: str
    intra_depth_first: bool


NAMES = (
    # lucidrains, its ports to 1 and 3 dimensions, and LambdaUNet
    Names("to_q", "to_k", "to_v", "norm_q", "norm_v", True),
    # LambdaUNet in ATOMMIC and mridc, where the normalizations are missing
    Names("to_q.0", "to_k.0", "to_v.0", "norm_q", "norm_v", True),
    # Temporal Lambda Networks
    Names("queries.0", "keys.0", "values.0", "queries.1", "values.1", False),
)


def convert_layer(
    state_dict: Mapping[str, Any] | Sequence[Any] | str | Path, layer: LambdaLayer
) -> LambdaLayer:
    """Assigns the weights of another library's lambda layer to a `LambdaLayer`, which then has its outputs.

    The layers are known by the names of their tensors:

    * lucidrains' in PyTorch, for images, and its ports to sequences and volumes (`to_q`, `pos_conv` or
      `rel_pos_emb`), LambdaUNet's, whose table across slices (`tem_conv`) needs a `SliceLambdaLayer`, and
      ATOMMIC's copy of it (`to_q.0`);
    * lucidrains' in Keras, by the list of its weights;
    * that of Temporal Lambda Networks, of its LambdaResNet18 (`queries.0`, `embedding`);
    * timm's (`qkv`).

    Forms of them that are not the paper's layer are refused, and the message says what differs. Strides,
    pools and dilations, which have no weights, are those of `layer`.

    Args:
      state_dict: the tensors of one layer by name, NumPy's or PyTorch's; the path of a .safetensors file, or
        of one of PyTorch, with these; or for lucidrains' Keras layer the arrays of its `get_weights()`, in
        Keras 3's order.
      layer: a lambda layer with the same sizes, after its first call.

    Returns:
      The layer.

    Raises:
      InputError: the tensors are of no layer above, of one that is not the paper's, or of one with other
        arguments; or the layer is not built. The message has names and shapes, and the layer is unchanged.

    Example:
      >>> layer = LambdaLayer(8, num_heads=2, key_dim=4, scope=3, batch_norm=False)
      >>> layer.build([None, None, None, 6])
      >>> kernels = {"queries.0.weight": (8, 6, 1, 1), "keys.0.weight": (4, 6, 1, 1)}
      >>> kernels |= {"values.0.weight": (4, 6, 1, 1), "embedding": (4, 1, 1, 3, 3)}
      >>> state_dict = {name: np.zeros(shape) for name, shape in kernels.items()}
      >>> convert_layer(state_dict, layer) is layer
      True
    """
    which_keras.check_keras_3(layer, "layer")
    if not isinstance(layer, LambdaLayer):
        raise invalid("layer", "a lambdanet.LambdaLayer", layer)
    if not layer.built:
        raise InputError(f"{layer.name!r} has no weights yet; call it, or build it")
    check_plain(layer, "a conversion")
    tensors, epsilon = _read_state(state_dict)
    variables = _variables_of(layer)
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    if TIMM in tensors:
        _check_arguments(layer, tensors, epsilon)
        # Without interpolation of tables for other maps.
        rules = [
            dataclasses.replace(rule, resizable=False)
            for rule in timm_rules.RULES[LambdaLayer](layer, shapes)
        ]
    else:
        rules = _rules_of(layer, tensors, shapes, epsilon)
    timm_rules.assign(rules, tensors, variables, layer.name)
    return layer


def _read_state(state_dict: Any) -> tuple[dict[str, np.ndarray], float]:
    """Returns the tensors by name, and the epsilon of the batch normalizations of their library."""
    if isinstance(state_dict, str | Path):
        return tensor_files.read_tensors(state_dict), TORCH_EPSILON
    if isinstance(state_dict, Mapping):
        tensors = {str(n): _as_array(n, tensor) for n, tensor in state_dict.items()}
        return tensors, TORCH_EPSILON
    if isinstance(state_dict, list | tuple):
        return _name_keras_weights(state_dict), KERAS_EPSILON
    accepted = "tensors by name, a list of Keras's weights, or a path"
    raise invalid("state_dict", accepted, state_dict)


def _as_array(name: object, tensor: Any) -> np.ndarray:
    try:
        if hasattr(tensor, "detach"):
            return tensor_files.as_array(tensor)
        return np.asarray(tensor)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise InputError(f"{name} is no array of numbers: {one_line(error)}") from None


def _name_keras_weights(weights: Sequence[Any]) -> dict[str, np.ndarray]:
    """Returns the weights of lucidrains' Keras layer with the names and layout of its PyTorch layer."""
    names = ["to_q.weight", "to_k.weight", "to_v.weight"]
    for norm in ("norm_q", "norm_v"):
        names += [f"{norm}.{name}" for name in BATCH_NORM.values()]
    # The layer creates its own weight before those of its parts.
    whole = [PAIRS, *names]
    local = [*names, KERNEL, BIASES[0]]
    names = {len(whole): whole, len(local): local}.get(len(weights), [])
    if not names:
        raise invalid(
            "state_dict",
            f"the {len(whole)} or {len(local)} weights of lucidrains' Keras layer",
            f"a list of {len(weights)}",
        )
    tensors = {}
    for name, weight in zip(names, weights, strict=True):
        tensor = _as_array(name, weight)
        if tensor.ndim > 1 and name != PAIRS:  # [..., inputs, outputs]
            tensor = np.moveaxis(tensor, (-1, -2), (0, 1))
        if name.endswith("running_var") and (tensor < 0).any():
            accepted = "at least 0, in the order of Keras 3's get_weights()"
            raise invalid("a moving variance", accepted, float(tensor.min()))
        tensors[name] = tensor
    return tensors


def _variables_of(layer: Any) -> dict[str, K.Variable]:
    """Returns the variables of a layer by the names of their parts, such as "position/table"."""
    variables = {}
    shared = getattr(getattr(layer, "position", None), "name", None)
    for variable in layer.weights:
        *_, part, name = variable.path.split("/")
        if part == shared:
            part = "position"  # one that several layers share has its own name
        variables[f"{part}/{name}"] = variable
    return variables


def _names_of(tensors: Tensors) -> Names:
    for names in NAMES:
        if f"{names.queries}.weight" in tensors:
            return names
    first = [f"{names.queries}.weight" for names in NAMES]
    accepted = f"the tensors of one layer, with one of {', '.join([*first, TIMM])}"
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    raise invalid("state_dict", accepted, shapes, "names have no prefix")


def _refuse_others(tensors: Tensors) -> None:
    """Raises `InputError` for layers that are not the paper's; the message says what differs."""
    for name, tensor in tensors.items():
        difference = DIFFERENCES.get(name)
        if name == EMBEDDING and tensor.ndim > 2 and tensor.shape[1] > 1:
            difference = TRANSPOSED
        if difference:
            raise InputError(
                f"{name} {tensor.shape} is not of the paper's layer: {difference}"
            )


def _check_arguments(layer: LambdaLayer, tensors: Tensors, epsilon: float) -> None:
    """Checks the arguments of a layer that the shapes of its weights do not tell."""
    by_pairs = PAIRS in tensors and TIMM not in tensors
    unstructured = isinstance(layer.position, UnstructuredPositionEmbedding)
    kinds = {True: "unstructured", False: "relative"}
    kinds_of_layer = {True: "SliceLambdaLayer", False: "LambdaLayer"}
    arguments = {
        "key_normalization": ("softmax", layer.key_normalization),
        "query_normalization": (None, layer.query_normalization),
        "multi_head": (False, layer.multi_head),
        "causal": (False, layer.causal),
        "position": (kinds[by_pairs], kinds[unstructured]),
        "the class": (
            kinds_of_layer[any(name in tensors for name in SLICE_KERNELS)],
            kinds_of_layer[isinstance(layer, SliceLambdaLayer)],
        ),
        "position_bias": (
            any(bias in tensors for bias in BIASES),
            getattr(layer.position, "use_bias", False),
        ),
        "epsilon in batch_norm": (
            epsilon,
            getattr(layer._queries_norm, "epsilon", epsilon),
        ),
    }
    for name, (theirs, ours) in arguments.items():
        if theirs != ours:
            hint = "as in the layer of the tensors"
            raise invalid(f"{name} of {layer.name!r}", repr(theirs), ours, hint)


def _rules_of(
    layer: LambdaLayer,
    tensors: Tensors,
    shapes: timm_rules.Shapes,
    epsilon: float,
) -> list[WeightRule]:
    """Returns the rules for a layer whose projections are convolutions of size 1.

    Args:
      layer: the lambda layer.
      tensors: the tensors by name.
      shapes: the shapes of the layer's variables, by the names of `_variables_of`.
      epsilon: the epsilon of their batch normalizations.

    Raises:
      InputError: the tensors are of no such layer, or of one with other arguments.
    """
    names = _names_of(tensors)
    _refuse_others(tensors)
    _check_arguments(layer, tensors, epsilon)
    ones = (1,) * (tensors[f"{names.queries}.weight"].ndim - 2)
    rules = []
    for variable, shape in shapes.items():
        part, _, name = variable.partition("/")
        if variable == TABLE:
            rules.append(_table_rule(tensors, shape, layer.intra_depth))
            continue
        if variable == "position/bias":
            rules.append(WeightRule(BIASES[0], shape, [variable], lambda t: [t]))
            continue
        if part == "slice_position":
            kernels = [kernel for kernel in SLICE_KERNELS if kernel in tensors]
            tensor = f"{kernels[0].partition('.')[0]}.bias"
            theirs = shape
            convert = functools.partial(_convert_slices, shape)
            if variable == SLICE_TABLE:
                tensor = kernels[0]
                theirs = (layer.key_dim, layer.intra_depth, 1, shape[0])
            rules.append(WeightRule(tensor, theirs, [variable], convert))
            continue
        split = names.intra_depth_first and not part.startswith("queries")
        depth = layer.intra_depth if split else 1
        prefix = getattr(names, part)
        if name == "kernel":
            theirs = (*shape[::-1], *ones)
            convert = functools.partial(_convert_kernel, depth)
            rules.append(WeightRule(f"{prefix}.weight", theirs, [variable], convert))
        elif name in BATCH_NORM:
            convert = functools.partial(_convert_channels, depth)
            tensor = f"{prefix}.{BATCH_NORM[name]}"
            rules.append(WeightRule(tensor, shape, [variable], convert))
    return rules


def _convert_slices(shape: tuple[int, ...], t: np.ndarray) -> list[np.ndarray]:
    """Converts the kernel of a convolution across slices, [k, u, 1, slices], or its bias."""
    if t.ndim > 1:
        t = np.moveaxis(t, (0, 1), (-2, -1))
    return [t.reshape(shape)]


def _convert_kernel(u: int, kernel: np.ndarray) -> list[np.ndarray]:
    """Converts the kernel of a convolution of size 1, [outputs, inputs, 1, ...]."""
    return _convert_channels(u, kernel.reshape(kernel.shape[:2]).T)


def _convert_channels(u: int, x: np.ndarray) -> list[np.ndarray]:
    """Converts channels in the order (u, k), on the last axis, to (k, u)."""
    split = x.reshape(*x.shape[:-1], u, -1)
    return [split.swapaxes(-1, -2).reshape(x.shape)]


def _table_rule(tensors: Tensors, shape: tuple[int, ...], u: int) -> WeightRule:
    """Returns the rule for a table of this shape, [*sides, k] or, where u > 1, [*sides, k, u]."""
    *sides, k = shape[:-1] if u > 1 else shape
    tables = (name for name in (RELATIVE, PAIRS, EMBEDDING) if name in tensors)
    name = next(tables, KERNEL)
    axes = tensors[name].ndim if name in tensors else 0
    if name in (RELATIVE, PAIRS):
        theirs = (*sides, k, u)
        if name == RELATIVE and len(sides) == 1:
            # The port to sequences has a square of offsets, of which it reads the diagonal.
            theirs = (*sides, *theirs)
    elif axes == 2 and set(sides) == {1}:
        theirs = (k, u)  # each query sees its own position
    elif axes == len(sides) + 2:
        theirs = (k, u, *sides)  # a convolution of each value channel
    else:
        theirs = (k, u, 1, *sides)  # a convolution over the value depth, too

    def convert(t: np.ndarray) -> list[np.ndarray]:
        if name in (EMBEDDING, KERNEL):
            t = np.moveaxis(t.reshape(k, u, *sides), (0, 1), (-2, -1))
        elif t.size > math.prod(shape):
            t = np.stack([t[offset, offset] for offset in range(len(t))])
        return [t.reshape(shape)]

    return WeightRule(name, theirs, [TABLE], convert)
