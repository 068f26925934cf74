# SPDX-License-Identifier: Apache-2.0
"""From the tensors of timm's networks, by their names in PyTorch, to the variables of the same networks here.

A tensor has its axes in another order: a convolution is [out, in, height, width] there. Several projections
lie in one tensor. What attention reads off its tables is divided by sqrt(k) with the other logits here and is
not there, so tables are multiplied by sqrt(k). Those of halo layers count offsets from the corner of the
window there and from that of its block here, so they are rotated by the halo.
"""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tf_keras as keras

from lambdanet.errors import InputError
from lambdanet.layers.attention import GlobalAttention
from lambdanet.layers.efficient_channel_attention import EfficientChannelAttention
from lambdanet.layers.halo_attention import HaloAttention
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.layers.squeeze_excite import SqueezeExcite
from lambdanet.models.weights import safetensors, weight_files
from lambdanet.ops import relative_positions

CLASSIFIER = "logits"
# What only the classifier uses, and is left over where a model gives features alone.
HEAD = ("head.", "final_conv.")
COUNTER = ".num_batches_tracked"
SHOWN = 20  # how many names an error lists

# The names of timm for the layers of a block, and for those outside all blocks.
OF_BLOCKS = {
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
OUTSIDE = {
    "stem_conv": "stem.conv",
    "stem_norm": "stem.bn",
    **{
        f"stem{i}_{ours}": f"stem.conv{i}.{theirs}"
        for i in (1, 2, 3)
        for ours, theirs in (("conv", "conv"), ("norm", "bn"))
    },
    "final_conv": "final_conv.conv",
    "final_norm": "final_conv.bn",
    CLASSIFIER: "head.fc",
}


@dataclasses.dataclass(frozen=True)
class Step:
    """One tensor and the variables that it fills.

    Attributes:
      tensor: its name.
      shape: that it must have.
      variables: the names of what it fills.
      convert: makes their values of it.
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
            return shape[-1] == self.shape[-1] and all(length % 2 for length in shape[:-1])
        return shape == self.shape


def load(model: keras.Model, tensors: Mapping[str, np.ndarray], head: bool = True) -> None:
    """Gives a model the tensors of the same network in timm: all of them, each once, or none.

    Tables of relative positions over a whole map are interpolated if the model is for images of another size.

    Args:
      model: of the zoo, by a name that timm has, too. One that gives features leaves out what only the
        classifier uses.
      tensors: by timm's names, as in the `state_dict` of the network.
      head: False leaves the classifier as it is, as for other classes.

    Raises:
      InputError: for tensors that are missing or left over, shapes that do not fit, and variables that
        nothing fills; the message names them, and the model is as it was.

    Example:
      >>> model = create_model("lambda_resnet26t", num_classes=10)
      >>> load(model, tensors, head=False)
    """
    variables = {_name(variable): variable for variable in model.weights}
    has_classifier = any(layer.name == CLASSIFIER for layer in model.layers)
    if has_classifier and not head:
        for variable in model.get_layer(CLASSIFIER).weights:
            del variables[_name(variable)]
    ignored = HEAD if not has_classifier else HEAD[:1] if not head else ()
    given = {n: t for n, t in tensors.items() if not n.endswith(COUNTER) and not n.startswith(ignored)}
    steps = _steps(model, head)
    problems = list(_problems(steps, given, variables))
    if problems:
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        shown = "; ".join(problems[:SHOWN])
        raise InputError(f"the tensors are not those of {model.name!r}: {shown}{more}")
    for step in steps:
        values = step.convert(np.asarray(given[step.tensor]))
        for name, value in zip(step.variables, values, strict=True):
            variable = variables[name]
            variable.assign(tf.cast(_fitted(value, variable.shape), variable.dtype))


def expected(model: keras.Model, head: bool = True) -> dict[str, tuple[int, ...]]:
    """Returns the names and shapes of the tensors that `load` wants.

    Args:
      model: as `load` takes it.
      head: whether those of the classifier are among them.
    """
    return {step.tensor: step.shape for step in _steps(model, head)}


def _problems(
    steps: Sequence[Step], tensors: Mapping[str, np.ndarray], variables: Mapping[str, tf.Variable]
) -> Iterator[str]:
    """What stands in the way of using every tensor and filling every variable exactly once."""
    uses = Counter(step.tensor for step in steps)
    fillings = Counter(name for step in steps for name in step.variables)
    yield from (f"{name} is missing" for name in uses if name not in tensors)
    yield from (f"{name} belongs nowhere" for name in tensors if name not in uses)
    yield from (f"nothing fills {name}" for name in variables if name not in fillings)
    for counts, what in ((uses, "is used"), (fillings, "is filled")):
        yield from (f"{name} {what} {count} times" for name, count in counts.items() if count > 1)
    for step in steps:
        tensor = np.asarray(tensors.get(step.tensor, np.zeros(step.shape, np.float32)))
        if not step.fits(tensor.shape):
            yield f"{step.tensor} has the shape {tensor.shape}, not {step.shape}"
        elif tensor.dtype not in safetensors.FLOATS:
            yield f"{step.tensor} holds {tensor.dtype}, not floating-point numbers"
        elif not weight_files.is_finite(tensor):
            yield f"{step.tensor} holds NaN or infinity"


def _steps(model: keras.Model, head: bool) -> list[Step]:
    """The steps that fill a model; none for a kind of layer that timm's networks have not."""
    layers = {layer.name: layer for layer in model.layers if head or layer.name != CLASSIFIER}
    prefixes = {name: _prefix(name, layers) for name in layers}
    return [
        step
        for name, layer in layers.items()
        if type(layer) in STEPS and prefixes[name]
        for step in _steps_of(layer, prefixes[name])
    ]


def _steps_of(layer: keras.layers.Layer, prefix: str | None) -> list[Step]:
    """The steps that fill a layer, with the whole names of tensors and variables."""
    shapes = {_name(weight).removeprefix(f"{layer.name}/"): tuple(weight.shape) for weight in layer.weights}
    return [
        dataclasses.replace(
            step,
            tensor=f"{prefix}.{step.tensor}",
            variables=[f"{layer.name}/{variable}" for variable in step.variables],
        )
        for step in STEPS[type(layer)](layer, shapes)
    ]


def _prefix(name: str, layers: Mapping[str, keras.layers.Layer]) -> str | None:
    """The name in timm for a layer of this name."""
    match = re.fullmatch(r"c(\d)_block(\d+)_(\w+)", name)
    if match is None:
        return OUTSIDE.get(name)
    level, index, part = match.groups()
    inside = OF_BLOCKS.get(part)
    if part == "spatial_norm" and name.replace("_norm", "_conv") not in layers:
        inside = AFTER_ATTENTION
    return inside and f"stages.{int(level) - 2}.{int(index) - 1}.{inside}"


def _kernel(kernel: str, tensor: str, shape: tuple[int, ...]) -> Step:
    """A convolution, also one of a single position or in groups."""
    if len(shape) == 2:  # a projection here
        return Step(tensor, (*shape[::-1], 1, 1), [kernel], lambda t: [t[:, :, 0, 0].T])
    rows, columns, inputs, outputs = shape
    return Step(tensor, (outputs, inputs, rows, columns), [kernel], lambda t: [t.transpose(2, 3, 1, 0)])


def _vector(variable: str, tensor: str, shape: tuple[int, ...]) -> Step:
    return Step(tensor, shape, [variable], lambda t: [t])


def _convolution(layer, shapes) -> list[Step]:
    return [_kernel("kernel", "weight", shapes["kernel"])]


def _dense(layer, shapes) -> list[Step]:
    kernel = Step("weight", shapes["kernel"][::-1], ["kernel"], lambda t: [t.T])
    return [kernel, _vector("bias", "bias", shapes["bias"])]


def _norm(layer, shapes, ours: str = "", theirs: str = "") -> list[Step]:
    names = {
        "gamma": "weight",
        "beta": "bias",
        "moving_mean": "running_mean",
        "moving_variance": "running_var",
    }
    return [_vector(f"{ours}{a}", f"{theirs}{b}", shapes[f"{ours}{a}"]) for a, b in names.items()]


def _squeeze_excite(layer, shapes) -> list[Step]:
    names = {"reduce": "fc1", "expand": "fc2"}
    kernels = [_kernel(f"{a}/kernel", f"{b}.weight", shapes[f"{a}/kernel"]) for a, b in names.items()]
    return kernels + [_vector(f"{a}/bias", f"{b}.bias", shapes[f"{a}/bias"]) for a, b in names.items()]


def _efficient_channel_attention(layer, shapes) -> list[Step]:
    size = shapes["kernel"][0]
    return [Step("conv.weight", (1, 1, size), ["kernel"], lambda t: [t.reshape(size, 1, 1)])]


def _projections(tensor: str, shapes, *kernels: str, heads: int = 1) -> Step:
    """Projections whose outputs follow one another in a tensor: within each head, where there are several."""
    present = [f"{kernel}/kernel" for kernel in kernels if f"{kernel}/kernel" in shapes]
    inputs = shapes[present[0]][0]
    widths = [shapes[kernel][1] // heads for kernel in present]

    def convert(t):
        parts = np.split(t.reshape(heads, sum(widths), inputs), np.cumsum(widths)[:-1], axis=1)
        return [part.reshape(-1, inputs).T for part in parts]

    return Step(tensor, (heads * sum(widths), inputs, 1, 1), present, convert)


def _lambda_layer(layer: LambdaLayer, shapes) -> list[Step]:
    steps = [_projections("qkv.weight", shapes, "queries", "keys", "values")]
    for ours, theirs in (("queries_norm/", "norm_q."), ("values_norm/", "norm_v.")):
        if f"{ours}gamma" in shapes:
            steps += _norm(layer, shapes, ours, theirs)
    table = shapes.get("position/table", ())
    if "position/bias" in shapes:  # the kernel of a convolution over height, width and the value's channels
        *scope, depth = table
        kernel = Step(
            "conv_lambda.weight",
            (depth, 1, *scope, 1),
            ["position/table"],
            lambda t: [t[:, 0, :, :, 0].transpose(1, 2, 0)],
        )
        return [*steps, kernel, _vector("position/bias", "conv_lambda.bias", (depth,))]
    if table:
        steps.append(Step("pos_emb", table, ["position/table"], lambda t: [t], resizable=True))
    return steps


def _tables(shapes, rotation: int = 0, resizable: bool = False) -> list[Step]:
    def convert(t):
        return [np.roll(t, -rotation, axis=0) * math.sqrt(t.shape[-1])]

    return [
        Step(f"pos_embed.{axis}_rel", shapes[f"{axis}_table"], [f"{axis}_table"], convert, resizable)
        for axis in ("height", "width")
    ]


def _halo_attention(layer: HaloAttention, shapes) -> list[Step]:
    return [
        _projections("q.weight", shapes, "queries"),
        _projections("kv.weight", shapes, "keys", "values", heads=layer.num_heads),
        *_tables(shapes, rotation=layer.halo_size),
    ]


def _global_attention(layer: GlobalAttention, shapes) -> list[Step]:
    return [
        _projections("qkv.weight", shapes, "queries", "keys", "values"),
        *_tables(shapes, resizable=True),
    ]


STEPS: dict[type, Callable[..., list[Step]]] = {
    keras.layers.Conv2D: _convolution,
    keras.layers.Dense: _dense,
    keras.layers.BatchNormalization: _norm,
    SqueezeExcite: _squeeze_excite,
    EfficientChannelAttention: _efficient_channel_attention,
    LambdaLayer: _lambda_layer,
    HaloAttention: _halo_attention,
    GlobalAttention: _global_attention,
}


def _fitted(value: np.ndarray, shape: tf.TensorShape) -> np.ndarray | tf.Tensor:
    """A table interpolated to its variable's lengths, if they are others."""
    if tuple(shape) == value.shape:
        return value
    return relative_positions.resize_table(tf.constant(value), shape[:-1].as_list())


def _name(variable: tf.Variable) -> str:
    return variable.name.removesuffix(":0")
