# SPDX-License-Identifier: Apache-2.0
"""The one residual trunk: bottleneck blocks whose spatial operation, stem and shortcut are injected.

A network is data: for each stage a string with one letter per block, and for each letter an operation.
`("CCC", "CCCC", "CCLCCC", "LLL")` is LambdaResNet-50 in the notation of the paper's Table 12.
"""

import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tf_keras as keras

from lambdanet.errors import InputError
from lambdanet.layers.squeeze_excite import SqueezeExcite
from lambdanet.layers.stochastic_depth import StochasticDepth
from lambdanet.models.layer_builder import Parts
from lambdanet.models.spatial_ops import (
    Layer,
    Operation,
    PerStage,
    Place,
    convolution,
    options_of,
    replacement,
)

# tf_keras walks a functional graph by recursion, one frame a layer, when it builds or loads a model; the
# deepest trunk is a chain of 1,500 layers where Python allows 1,000 frames.
sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))

FILTERS = (64, 128, 256, 512)


def as_given(parts: Parts) -> Parts:
    """The parts of a network that wants no others."""
    return parts


def vanilla_stem(parts: Parts, x, filters: int):
    """7x7 convolution and max-pool (He et al. 2016): [b, h, w, c] -> [b, h/4, w/4, filters]."""
    x = parts.conv_norm_act(x, filters, 7, 2, "stem")
    return keras.layers.MaxPooling2D(3, 2, "same", name="stem_pool")(x)


def rs_stem(parts: Parts, x, filters: int):
    """Three 3x3 convolutions as in ResNet-D, then a strided one for the max-pool (ResNet-RS): as above."""
    x = parts.conv_norm_act(x, filters // 2, 3, 2, "stem1")
    x = parts.conv_norm_act(x, filters // 2, 3, 1, "stem2")
    x = parts.conv_norm_act(x, filters, 3, 1, "stem3")
    return parts.conv_norm_act(x, filters, 3, 2, "stem4")


def patch_stem(parts: Parts, x, filters: int):
    """A projection of 4x4 patches that do not overlap (Vaswani et al. 2021, appendix C.3): as above."""
    return parts.norm(parts.convolution(x, filters, 4, 4, "stem_conv"), "stem_norm")


def strided_shortcut(parts: Parts, x, filters: int, strides: int, name: str):
    """A strided 1x1 convolution (He et al. 2016)."""
    return parts.norm(parts.convolution(x, filters, 1, strides, f"{name}_conv"), f"{name}_norm")


def pooled_shortcut(parts: Parts, x, filters: int, strides: int, name: str):
    """A 2x2 average-pool before a 1x1 convolution, so that no position is skipped (ResNet-D)."""
    if strides > 1:
        x = keras.layers.AveragePooling2D(2, strides, "same", name=f"{name}_pool")(x)
    return strided_shortcut(parts, x, filters, 1, name)


def no_shortcut(parts: Parts, x, filters: int, strides: int, name: str):
    """None: the first block of a stage has no residual (RegNetZ in timm)."""
    return None


def activated_sum(parts: Parts, x, residual, name: str):
    """The end of a block as in ResNet: the sum with its residual, activated."""
    return parts.act(keras.layers.Add(name=f"{name}_add")([x, residual]), f"{name}_act")


def linear_sum(parts: Parts, x, residual, name: str):
    """The end of a block as in RegNetZ: the sum with its residual, if it has one."""
    return x if residual is None else keras.layers.Add(name=f"{name}_add")([x, residual])


def bottleneck(
    net: "ResNet", parts: Parts, letter: str, spatial: Operation, drop_rate: float, place, name, x
):
    """1x1, spatial operation, 1x1, squeeze-and-excitation, residual: -> [b, h/s, w/s, outputs]."""
    residual, outputs, se_ratio = x, net.outputs(place.stage), net.se_ratios[place.stage]
    if place.index == 1:
        residual = net.shortcut(parts, x, outputs, place.strides, f"{name}_shortcut")
    x = parts.conv_norm_act(x, place.filters, 1, 1, f"{name}_reduce")
    x = spatial(x, place)
    x = parts.act(parts.norm(x, f"{name}_spatial_norm"), f"{name}_spatial_act")
    if letter in net.gates:
        x = net.gates[letter](parts, x, f"{name}_gate")
    x = parts.convolution(x, outputs, 1, 1, f"{name}_expand_conv")
    x = parts.norm(x, f"{name}_expand_norm", zero=residual is not None, pooled=bool(se_ratio))
    if se_ratio:
        x = SqueezeExcite(se_ratio, kernel_regularizer=parts.kernel_regularizer, name=f"{name}_se")(x)
    if drop_rate and residual is not None:
        x = StochasticDepth(drop_rate, name=f"{name}_drop")(x)
    return net.end(parts, x, residual, name)


@dataclasses.dataclass(frozen=True)
class ResNet:
    """An architecture of the residual family, as data.

    Attributes:
      stages: for each of c2 ... c5 a string with one letter per block; "C" is the 3x3 convolution.
      source: where the architecture and its size come from.
      input_size: the side of the square images it is measured at, in pixels.
      layers: for letters the class of layer that takes the place of the convolution (see `replacement`).
      options: for letters of `layers`, the options that differ from the layer's defaults.
      operations: for other letters what makes their spatial operation of `Parts`.
      gates: for letters what follows their spatial operation, normalised and activated: takes parts, the map
        and a name, returns the map.
      additions: the same for what follows a block of theirs.
      pool_size: of the average-pool that follows a layer where the block downsamples (see `replacement`).
      se_ratios: the ratio of squeeze-and-excitation in each stage; 0 for none.
      stem: brings the images to stride 4, or less where the strides of the stages make up for it.
      shortcut: the residual of the first block of each stage.
      end: of a block: joins it with its residual.
      strides: of the first block of each stage.
      filters: the width of the bottleneck in each stage.
      first_filters: the same in the first block of each stage, where that differs.
      expansion: of the block's outputs to `filters`, for all stages or `PerStage`.
      stem_filters: the width of the stem.
      final_filters: of a 1x1 convolution before the classifier; 0 for none.
      dress: makes the parts of this network from those that a caller gave, with an activation, say.
    """

    stages: tuple[str, ...]
    source: str
    input_size: int = 224
    layers: Mapping[str, Layer] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    operations: Mapping[str, Callable[[Parts], Operation]] = dataclasses.field(default_factory=dict)
    gates: Mapping[str, Callable[[Parts, Any, str], Any]] = dataclasses.field(default_factory=dict)
    additions: Mapping[str, Callable[[Parts, Any, str], Any]] = dataclasses.field(default_factory=dict)
    pool_size: int = 3
    se_ratios: tuple[float, ...] = (0, 0, 0, 0)
    stem: Callable = rs_stem
    shortcut: Callable = pooled_shortcut
    end: Callable = activated_sum
    strides: tuple[int, ...] = (1, 2, 2, 2)
    filters: tuple[int, ...] = FILTERS
    first_filters: tuple[int, ...] = ()
    expansion: float | PerStage = 4
    stem_filters: int = 64
    final_filters: int = 0
    dress: Callable[[Parts], Parts] = as_given

    def outputs(self, stage: int) -> int:
        """The channels that the blocks of a stage, counted from 0 for c2, give."""
        expansion = self.expansion[stage] if isinstance(self.expansion, PerStage) else self.expansion
        return round(expansion * self.filters[stage])

    def overrides(self) -> set[str]:
        """The names of the layer options that a caller may override."""
        return set().union(*(options_of(layer) for layer in self.layers.values()))

    def endpoints(
        self, images, parts: Parts, stochastic_depth_rate: float = 0.0, **overrides: Any
    ) -> dict[str, Any]:
        """Builds the trunk: images [b, h, w, c] -> {"2": ..., "5": ...} at strides 4, 8, 16 and 32.

        The stochastic depth rate rises over the stages as in the authors' ResNet-RS code: rate * i / 5
        in stage c_i.
        """
        parts = self.dress(parts)
        operations = self._operations(parts, overrides)
        x = self.stem(parts, images, self.stem_filters)
        endpoints = {}
        for letter, name, place in self._blocks():
            level = place.stage + 2
            drop_rate = stochastic_depth_rate * level / 5
            x = bottleneck(self, parts, letter, operations[letter], drop_rate, place, name, x)
            if letter in self.additions:
                x = self.additions[letter](parts, x, f"{name}_addition")
            endpoints[str(level)] = x
        return endpoints

    def logits(self, endpoints: Mapping[str, Any], parts: Parts, num_classes: int, dropout_rate: float = 0.0):
        """The classifier: mean over the map, dropout, projection -> float32 [b, num_classes]."""
        x, parts = endpoints["5"], self.dress(parts)
        if self.final_filters:
            x = parts.conv_norm_act(x, self.final_filters, 1, 1, "final")
        return parts.classifier(x, num_classes, dropout_rate)

    def abridged(self) -> tuple["ResNet", dict[str, int]]:
        """Returns a network with each kind of block once, and how often this one has them.

        The blocks of a stage differ in their letter and in whether they are the first of it, and in nothing
        else. What is a sum over blocks can therefore be read off the abridged network.

        Returns:
          the network, and for the blocks of it that stand for several, such as "c4_block2", their number.
        """
        stages: list[str] = []
        repeats: dict[str, int] = {}
        for level, letters in enumerate(self.stages, start=2):
            kinds = Counter(letters[1:])
            stages.append(letters[0] + "".join(kinds))
            repeats |= {f"c{level}_block{i}": count for i, count in enumerate(kinds.values(), start=2)}
        return dataclasses.replace(self, stages=tuple(stages)), repeats

    def _blocks(self) -> Iterator[tuple[str, str, Place]]:
        """Yields the letter, the name and the place of each block, in order."""
        side = -(-self.input_size * math.prod(self.strides) // 32)
        for stage, letters in enumerate(self.stages):
            for index, letter in enumerate(letters, start=1):
                name = f"c{stage + 2}_block{index}"
                strides = self.strides[stage] if index == 1 else 1
                filters = (self.first_filters if index == 1 else ()) or self.filters
                yield letter, name, Place(f"{name}_spatial", filters[stage], strides, stage, index, side)
                side = -(-side // strides)

    def _operations(self, parts: Parts, overrides: Mapping[str, Any]) -> dict[str, Operation]:
        operations = {"C": convolution(parts)}
        operations |= {letter: make(parts) for letter, make in self.operations.items()}
        for letter, layer in self.layers.items():
            given = {name: value for name, value in overrides.items() if name in options_of(layer)}
            if given.get("share_positions") and "position" in given:
                raise InputError("share_positions and position= exclude each other; give one of them")
            options = {**self.options.get(letter, {}), **given}
            operations[letter] = replacement(layer, parts, options, self.pool_size)
        return operations
