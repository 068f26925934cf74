# SPDX-License-Identifier: Apache-2.0
"""The TPUs that a step can be compiled for, and what their makers say that they can do."""

import dataclasses

from lambdanet.errors import InputError

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device, as TensorFlow sees it: a core of a v2, v3 or v4, a whole chip of the others.

    Attributes:
      name: such as "TPU v3 core".
      clock: cycles a second.
      peak: bfloat16 FLOPs a second of its matrix units.
      hbm: bytes of its memory.
    """

    name: str
    clock: float
    peak: float
    hbm: int


# The peak of a chip, shared by its cores where it has two; the clock is the peak over the FLOPs a cycle of
# its matrix units: 128 x 128 multiply-adds each, 256 x 256 on v6e.
CHIPS = {
    "v2": Chip("TPU v2 core", 700e6, 23e12, 8 * GIB),
    "v3": Chip("TPU v3 core", 940e6, 61.5e12, 16 * GIB),
    "v4": Chip("TPU v4 core", 1050e6, 137.5e12, 16 * GIB),
    "v5e": Chip("TPU v5e", 1500e6, 197e12, 16 * GIB),
    "v5p": Chip("TPU v5p", 1750e6, 459e12, 95 * GIB),
    "v6e": Chip("TPU v6e", 1750e6, 918e12, 32 * GIB),
}

# As slices are named: the chips along each axis. `v3:2x2` is the 8 cores of the papers' measurements.
TOPOLOGIES = (
    *(f"{kind}:{shape}" for kind in ("v2", "v3") for shape in ("2x2", "4x4", "4x8", "8x8")),
    *(f"{kind}:{shape}" for kind in ("v4", "v5p") for shape in ("2x2x1", "2x2x2", "2x2x4")),
    *(f"{kind}:{shape}" for kind in ("v5e", "v6e") for shape in ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8")),
)


def chip_of(topology: str) -> Chip:
    """Returns the chip of a topology.

    Args:
      topology: one of `TOPOLOGIES`, such as "v5e:2x2".

    Raises:
      InputError: for another, with those that would do.
    """
    if topology not in TOPOLOGIES:
        raise InputError(f"unknown topology {topology!r}; accepted: {', '.join(TOPOLOGIES)}")
    return CHIPS[topology.partition(":")[0]]
