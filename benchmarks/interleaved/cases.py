# SPDX-License-Identifier: Apache-2.0
"""The cases of the benchmarks: maps, scopes and passes of layers, batches and passes of models, pictures.

Imports only the standard library, because the processes of other libraries import it too.
"""

import dataclasses
import re
from collections.abc import Sequence

from lambdanet.core.errors import InputError, check_known, invalid

# The papers' maps: stages c5, c4, c3 and c2 of a 224-pixel image, and c4 of a 1024-pixel one.
PAPER_MAPS = ("7x7x512x8", "14x14x256x8", "28x28x128x8", "56x56x64x1", "64x64x256x1")
DTYPES = ("float32", "bfloat16", "float16")
PASSES = ("forward", "both")

# The number of heads h and the query depth k of lambda layers (appendix F.2 of the paper), the number of
# attention heads, and the sizes of halo attention.
HEADS = 4
KEY_DIM = 16
ATTENTION_HEADS = 8
HALO_BLOCK = 8
HALO = 3

# The pip packages of the contenders from other libraries; the last one has the layer.
PEER_PACKAGES = {
    "peer/lucidrains": ("torch", "lambda-networks"),
    "peer/timm": ("torch", "torchvision", "timm"),
}
# The prefixes of the networks of other libraries.
MODEL_PEERS = ("timm", "timm_compiled")
MODEL_PASSES = ("infer", "train")
# The settings of SGD in a training step.
LEARNING_RATE = 1e-3
MOMENTUM = 0.9


@dataclasses.dataclass(frozen=True)
class ModelCase:
    """A setting in which models are compared, each at its own image size."""

    batch: int  # the batch size
    # Whether to run a training step: batch statistics, gradients and SGD with momentum.
    backward: bool
    dtype: str = "float32"  # or bfloat16 or float16, for mixed precision

    @property
    def pass_name(self) -> str:
        """The name of the pass, "infer" or "train"."""
        return MODEL_PASSES[self.backward]


@dataclasses.dataclass(frozen=True)
class InputCase(ModelCase):
    """A pass of training over pictures, whose number is the `batch`."""

    folder: str = ""  # with the pictures, below `train`
    operations: int = 0  # of RandAugment
    alpha: float = 0.0  # of mixup


@dataclasses.dataclass(frozen=True)
class Case:
    """A setting in which layers, or forms of the position lambda, are compared."""

    height: int  # of the map
    width: int
    channels: int  # d, of the input and output
    batch: int  # the batch size b
    scope: int | None  # r of a local position lambda; None for a global one
    backward: bool  # whether to compute the gradients of all inputs and weights
    dtype: str = "float32"  # or float16 or bfloat16: mixed precision for layers

    @property
    def map(self) -> str:
        """The map and the batch, as in the flag --maps."""
        return f"{self.height}x{self.width}x{self.channels}x{self.batch}"

    @property
    def scope_name(self) -> str:
        """The scope as a word."""
        return "global" if self.scope is None else str(self.scope)

    @property
    def pass_name(self) -> str:
        """The name of the pass."""
        return PASSES[self.backward]


def cases(
    maps: Sequence[str], scopes: Sequence[str], passes: Sequence[str], dtype: str
) -> list[Case]:
    """Returns all combinations of maps, scopes and passes, in this order.

    The arguments are those of `benchmark_layers`; `InputError` for one that is empty or not as described.
    """
    for name, values in (("maps", maps), ("scopes", scopes), ("passes", passes)):
        if not values:
            raise InputError(f"{name} must have at least one value")
    check_known("dtype", dtype, DTYPES)
    for name in passes:
        check_known("pass", name, PASSES)
    return [
        Case(*sizes, scope, name == "both", dtype)
        for sizes in map(_map, dict.fromkeys(maps))
        for scope in map(_scope, dict.fromkeys(scopes))
        for name in dict.fromkeys(passes)
    ]


def _map(text: str) -> tuple[int, int, int, int]:
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", text)
    if not found:
        raise invalid("map", "HEIGHTxWIDTHxCHANNELSxBATCH, such as 14x14x256x8", text)
    height, width, channels, batch = map(int, found.groups())
    if channels % ATTENTION_HEADS:  # a multiple of HEADS
        raise invalid(
            f"channels of map {text!r}", f"a multiple of {ATTENTION_HEADS}", channels
        )
    return height, width, channels, batch


def _scope(text: str) -> int | None:
    if text == "global":
        return None
    if not re.fullmatch(r"\d*[13579]", text):
        raise invalid("scope", "an odd number such as 23, or global", text)
    return int(text)


def packages_of(contender: str) -> tuple[str, ...]:
    """Returns the pip packages of a contender."""
    if contender.partition("/")[0] in MODEL_PEERS:
        return PEER_PACKAGES["peer/timm"]
    return PEER_PACKAGES.get(contender, ("'lambdanet[dev]'",))


def has_own_scope(contender: str) -> bool:
    """Whether a contender does not depend on the scope of the case."""
    return contender.startswith("attention/")
