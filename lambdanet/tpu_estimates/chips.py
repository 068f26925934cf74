# SPDX-License-Identifier: Apache-2.0
"""The TPU chips and topologies that a step can be compiled for."""

import dataclasses
import re

from lambdanet.core.errors import check_known

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device of JAX and TensorFlow: a core of a v2, v3, v4 or TPU7x, a whole chip otherwise.

    Attributes:
      name: the name, such as "TPU v3 core".
      clock: cycles per second.
      peak: bfloat16 FLOPs per second of the matrix units.
      hbm: the size of the memory in bytes.
      links: bytes per second that its links to other chips send, all together.
      source: where its figures are published.
    """

    name: str
    clock: float
    peak: float
    hbm: int
    links: float
    source: str


# The published figures of a chip, divided by its cores where a device is a core; of bidirectional links, half
# of their bandwidth. The clock is the peak divided by the FLOPs per cycle of the matrix units, which do
# 128 x 128 multiply-adds each (256 x 256 on v6e and TPU7x).
_TRAINING_CHIPS = "Norrie et al. 2021, The Design Process for Google's Training Chips"
CHIPS = {
    "v2": Chip("TPU v2 core", 700e6, 23e12, 8 * GIB, 124e9, _TRAINING_CHIPS),
    "v3": Chip("TPU v3 core", 940e6, 61.5e12, 16 * GIB, 164e9, _TRAINING_CHIPS),
    "v4": Chip(
        "TPU v4 core",
        1050e6,
        137.5e12,
        16 * GIB,
        150e9,
        "Jouppi et al. 2023, TPU v4: An Optically Reconfigurable Supercomputer",
    ),
    "v5e": Chip(
        "TPU v5e", 1500e6, 197e12, 16 * GIB, 200e9, "docs.cloud.google.com/tpu/docs/v5e"
    ),
    "v5p": Chip(
        "TPU v5p", 1750e6, 459e12, 95 * GIB, 600e9, "docs.cloud.google.com/tpu/docs/v5p"
    ),
    "v6e": Chip(
        "TPU v6e", 1750e6, 918e12, 32 * GIB, 400e9, "docs.cloud.google.com/tpu/docs/v6e"
    ),
    "tpu7x": Chip(
        "TPU7x core",
        2200e6,
        1153.5e12,
        96 * GIB,
        300e9,
        "docs.cloud.google.com/tpu/docs/tpu7x",
    ),
}
# The chips along each axis of a slice; the compiler knows larger ones too. The papers measured on the 8 cores
# of `v3:2x2`.
TOPOLOGIES = (
    *(
        f"{kind}:{shape}"
        for kind in ("v2", "v3")
        for shape in ("2x2", "4x4", "4x8", "8x8")
    ),
    *(
        f"{kind}:{shape}"
        for kind in ("v4", "v5p", "tpu7x")
        for shape in ("2x2x1", "2x2x2", "2x2x4")
    ),
    *(
        f"{kind}:{shape}"
        for kind in ("v5e", "v6e")
        for shape in ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8")
    ),
)


def chip_of(topology: str) -> Chip:
    """Returns the chip of a topology; `InputError` unless it is KIND:AxB or KIND:AxBxC of a known kind."""
    kind, _, shape = topology.partition(":")
    if kind not in CHIPS or not re.fullmatch(r"\d+(x\d+){1,2}", shape):
        check_known("topology", topology, TOPOLOGIES)
    return CHIPS[kind]
