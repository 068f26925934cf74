# SPDX-License-Identifier: Apache-2.0
"""Conversion rules from the tensors of timm's networks to the variables of the same networks in lambdanet.

timm orders axes differently: its convolutions are [out, in, height, width]. Several projections share a
tensor. Attention in lambdanet divides all logits by sqrt(k), timm not the relative ones, so tables are
multiplied by sqrt(k). Tables of halo layers count offsets from the corner of the block in lambdanet, and of
the window in timm, so they are rotated by the halo.
"""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from lambdanet import backend as K
from lambdanet.backend import compat, keras
from lambdanet.core.errors import InputError, join_first
from lambdanet.layers.attention import GlobalAttention
from lambdanet.layers.batch_norm import OnePassBatchNormalization
from lambdanet.layers.channel_attention import EfficientChannelAttention, SqueezeExcite
from lambdanet.layers.halo_attention import HaloAttention
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.models.layer_builder import CLASSIFIER
from lambdanet.models.weights import weight_files

# Tensors of the classifier, and of the convolution before it, by the layer that reads them.
HEAD = {CLASSIFIER: "head.", "final_conv": "final_conv."}
KERNEL = "head.fc.weight"  # of the classifier, [num_classes, d]
# Of a batch normalization: the names of its variables -> PyTorch's.
BATCH_NORM = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
BATCH_COUNTER = ".num_batches_tracked"

# timm's names for the layers of a block, of the stem and of the head.
BLOCK_NAMES = {
    "shortcut_conv": "shortcut.conv",
    "shortcut_norm": "shortcut.bn",
    "reduce_conv": "conv1_1x1.conv",
    "reduce_norm": "conv1_1x1.bn",
    "spatial_conv": "conv2_kxk.conv",
    "spatial_norm": "conv2_kxk.bn",
    "gate": "attn",
    "spatial": "self_attn",
    "expand_conv": "conv3_1x1.conv",
    "expand_norm": "conv3_1x1.bn",
}
AFTER_ATTENTION = "post_attn"
STEM_AND_HEAD_NAMES = {
    "stem_conv": "stem.conv",
    "stem_norm": "stem.bn",
    **{f"stem{i}_conv": f"stem.conv{i}.conv" for i in (1, 2, 3)},
    **{f"stem{i}_norm": f"stem.conv{i}.bn" for i in (1, 2, 3)},
    "final_conv": "final_conv.conv",
    "final_norm": "final_conv.bn",
    CLASSIFIER: "head.fc",
}
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]  # of variables


@dataclasses.dataclass(frozen=True)
class WeightRule:
    """The conversion of one tensor to one or more variables.

    Attributes:
      tensor: the name of the tensor.
      shape: its shape.
      variables: the names of the variables.
      convert: computes their values from the tensor.
      resizable: whether all axes but the last may have other odd lengths, which are interpolated.
    """

    tensor: str
    shape: tuple[int, ...]
    variables: Sequence[str]
    convert: Callable[[np.ndarray], Sequence[np.ndarray]]
    resizable: bool = False

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape can be converted."""
        if self.resizable and len(shape) == len(self.shape):
            return shape[-1] == self.shape[-1] and all(
                length % 2 for length in shape[:-1]
            )
        return shape == self.shape


def load(model: keras.Model, tensors: Mapping[str, np.ndarray]) -> None:
    """Loads the tensors of the same network in timm into a model: each exactly once, or none.

    Tables of relative positions over a whole map are interpolated if the model is for images of another size.

    Args:
      model: a model of the zoo that timm also has. One without a classifier leaves its tensors out.
      tensors: the tensors by timm's names, as in the `state_dict` of the network.

    Raises:
      InputError: tensors are missing or left over, or shapes do not fit; the message names them, and the
        model is unchanged.
    """
    layers = {layer.name for layer in model.layers}
    ignored = tuple(prefix for name, prefix in HEAD.items() if name not in layers)
    given = {n: t for n, t in tensors.items() if not n.startswith(ignored)}
    variables = weight_files.weights_by_name(model)
    assign(network_rules(model), given, variables, model.name)


def assign(
    rules: Sequence[WeightRule],
    tensors: Mapping[str, np.ndarray],
    variables: Mapping[str, K.Variable],
    owner: str,
) -> None:
    """Assigns tensors to variables by rules: each exactly once, or none.

    Args:
      rules: the rules for all variables.
      tensors: the tensors by their names; counters of batch normalizations are left out.
      variables: the variables by the names that the rules have.
      owner: the name of their model or layer, for the error.

    Raises:
      InputError: as in `load`.
    """
    given = {n: t for n, t in tensors.items() if not n.endswith(BATCH_COUNTER)}
    problems = list(_problems(rules, given, variables))
    if problems:
        listed = join_first(problems)
        raise InputError(f"the tensors are not those of {owner!r}: {listed}")
    for rule in rules:
        values = rule.convert(np.asarray(given[rule.tensor]))
        for name, value in zip(rule.variables, values, strict=True):
            weight_files.assign_resized(variables[name], value)


def count_classes(tensors: Mapping[str, np.ndarray], default: int) -> int:
    """Returns the number of classes of a network in timm, or the default if it has no classifier."""
    return max(1, len(np.atleast_1d(tensors[KERNEL]))) if KERNEL in tensors else default


def _problems(
    rules: Sequence[WeightRule],
    tensors: Mapping[str, np.ndarray],
    variables: Mapping[str, K.Variable],
) -> Iterator[str]:
    """The reasons why not every tensor is used, and every variable assigned, exactly once."""
    uses = Counter(rule.tensor for rule in rules)
    assignments = Counter(name for rule in rules for name in rule.variables)
    yield from (f"{name} is missing" for name in uses if name not in tensors)
    yield from (f"{name} has no variable" for name in tensors if name not in uses)
    yield from (
        f"{name} has no tensor" for name in variables if name not in assignments
    )
    for counts, verb in ((uses, "used"), (assignments, "assigned")):
        yield from (
            f"{name} is {verb} {count} times"
            for name, count in counts.items()
            if count > 1
        )
    for rule in rules:
        tensor = np.asarray(tensors.get(rule.tensor, np.zeros(rule.shape, np.float32)))
        fits = rule.fits(tensor.shape)
        yield from weight_files.problems_of(rule.tensor, tensor, rule.shape, fits)


def network_rules(model: keras.Model) -> list[WeightRule]:
    """The rules for a model; there is none for kinds of layers that timm's networks lack."""
    layers = {layer.name: layer for layer in model.layers}
    prefixes = {name: _prefix(name, layers) for name in layers}
    return [
        rule
        for name, layer in layers.items()
        if type(layer) in RULES and prefixes[name]
        for rule in _rules_of(layer, prefixes[name])
    ]


def _rules_of(layer: keras.layers.Layer, prefix: str | None) -> list[WeightRule]:
    """The rules for a layer, with full names of tensors and variables."""
    shapes = {}
    for weight in layer.weights:
        name = compat.variable_name(weight).removeprefix(f"{layer.name}/")
        shapes[name] = tuple(weight.shape)
    rules = []
    for rule in RULES[type(layer)](layer, shapes):
        tensor = f"{prefix}.{rule.tensor}"
        variables = [f"{layer.name}/{variable}" for variable in rule.variables]
        rules.append(dataclasses.replace(rule, tensor=tensor, variables=variables))
    return rules


def _prefix(name: str, layers: Mapping[str, keras.layers.Layer]) -> str | None:
    """timm's name of a layer."""
    match = re.fullmatch(r"c(\d)_block(\d+)_(\w+)", name)
    if match is None:
        return STEM_AND_HEAD_NAMES.get(name)
    level, index, part = match.groups()
    inside = BLOCK_NAMES.get(part)
    if part == "spatial_norm" and name.replace("_norm", "_conv") not in layers:
        inside = AFTER_ATTENTION
    if not inside:
        return None
    return f"stages.{int(level) - 2}.{int(index) - 1}.{inside}"


def _kernel(kernel: str, tensor: str, shape: tuple[int, ...]) -> WeightRule:
    """A convolution; projections are 1x1 convolutions in timm."""
    if len(shape) == 2:
        return WeightRule(
            tensor, (*shape[::-1], 1, 1), [kernel], lambda t: [t[:, :, 0, 0].T]
        )
    rows, columns, inputs, outputs = shape
    return WeightRule(
        tensor,
        (outputs, inputs, rows, columns),
        [kernel],
        lambda t: [t.transpose(2, 3, 1, 0)],
    )


def _vector(variable: str, tensor: str, shape: tuple[int, ...]) -> WeightRule:
    return WeightRule(tensor, shape, [variable], lambda t: [t])


def _convolution(layer: keras.layers.Layer, shapes: Shapes) -> list[WeightRule]:
    return [_kernel("kernel", "weight", shapes["kernel"])]


def _dense(layer: keras.layers.Layer, shapes: Shapes) -> list[WeightRule]:
    kernel = WeightRule("weight", shapes["kernel"][::-1], ["kernel"], lambda t: [t.T])
    return [kernel, _vector("bias", "bias", shapes["bias"])]


def _norm(
    layer: keras.layers.Layer, shapes: Shapes, ours: str = "", theirs: str = ""
) -> list[WeightRule]:
    return [
        _vector(f"{ours}{a}", f"{theirs}{b}", shapes[f"{ours}{a}"])
        for a, b in BATCH_NORM.items()
    ]


def _squeeze_excite(layer: keras.layers.Layer, shapes: Shapes) -> list[WeightRule]:
    rules = []
    for part, name in (("reduce", "fc1"), ("expand", "fc2")):
        kernel = f"{part}/kernel"
        bias = f"{part}/bias"
        rules.append(_kernel(kernel, f"{name}.weight", shapes[kernel]))
        rules.append(_vector(bias, f"{name}.bias", shapes[bias]))
    return rules


def _efficient_channel_attention(
    layer: keras.layers.Layer, shapes: Shapes
) -> list[WeightRule]:
    size = shapes["kernel"][0]
    return [
        WeightRule(
            "conv.weight", (1, 1, size), ["kernel"], lambda t: [t.reshape(size, 1, 1)]
        )
    ]


def _projections(
    tensor: str, shapes: Shapes, *kernels: str, heads: int = 1
) -> WeightRule:
    """Projections that are concatenated in one tensor, within each of its heads."""
    present = [f"{kernel}/kernel" for kernel in kernels if f"{kernel}/kernel" in shapes]
    inputs = shapes[present[0]][0]
    widths = [shapes[kernel][1] // heads for kernel in present]

    def convert(t: np.ndarray) -> list[np.ndarray]:
        kernels = np.split(
            t.reshape(heads, sum(widths), inputs), np.cumsum(widths)[:-1], axis=1
        )
        return [kernel.reshape(-1, inputs).T for kernel in kernels]

    return WeightRule(tensor, (heads * sum(widths), inputs, 1, 1), present, convert)


def _lambda_layer(layer: LambdaLayer, shapes: Shapes) -> list[WeightRule]:
    rules = [_projections("qkv.weight", shapes, "queries", "keys", "values")]
    for ours, theirs in (("queries_norm/", "norm_q."), ("values_norm/", "norm_v.")):
        if f"{ours}gamma" in shapes:
            rules += _norm(layer, shapes, ours, theirs)
    table = shapes.get("position/table", ())
    # The kernel of a convolution over height, width and the value's channels.
    if "position/bias" in shapes:
        *scope, depth = table
        kernel = WeightRule(
            "conv_lambda.weight",
            (depth, 1, *scope, 1),
            ["position/table"],
            lambda t: [t[:, 0, :, :, 0].transpose(1, 2, 0)],
        )
        return [*rules, kernel, _vector("position/bias", "conv_lambda.bias", (depth,))]
    if table:
        rules.append(
            WeightRule(
                "pos_emb", table, ["position/table"], lambda t: [t], resizable=True
            )
        )
    return rules


def _tables(
    shapes: Shapes, rotation: int = 0, resizable: bool = False
) -> list[WeightRule]:
    """The two tables of offsets, [length, depth] each, rotated by a number of offsets."""

    def convert(t: np.ndarray) -> list[np.ndarray]:
        # timm divides the products with keys by the root of the depth, our layers also those with tables.
        return [np.roll(t, -rotation, axis=0) * math.sqrt(t.shape[-1])]

    return [
        WeightRule(
            f"pos_embed.{axis}_rel",
            shapes[f"{axis}_table"],
            [f"{axis}_table"],
            convert,
            resizable,
        )
        for axis in ("height", "width")
    ]


def _halo_attention(layer: HaloAttention, shapes: Shapes) -> list[WeightRule]:
    return [
        _projections("q.weight", shapes, "queries"),
        _projections("kv.weight", shapes, "keys", "values", heads=layer.num_heads),
        *_tables(shapes, rotation=layer.halo_size),
    ]


def _global_attention(layer: GlobalAttention, shapes: Shapes) -> list[WeightRule]:
    return [
        _projections("qkv.weight", shapes, "queries", "keys", "values"),
        *_tables(shapes, resizable=True),
    ]


RULES: dict[type, Callable[..., list[WeightRule]]] = {
    keras.layers.Conv2D: _convolution,
    keras.layers.Dense: _dense,
    keras.layers.BatchNormalization: _norm,
    OnePassBatchNormalization: _norm,
    SqueezeExcite: _squeeze_excite,
    EfficientChannelAttention: _efficient_channel_attention,
    LambdaLayer: _lambda_layer,
    HaloAttention: _halo_attention,
    GlobalAttention: _global_attention,
}
