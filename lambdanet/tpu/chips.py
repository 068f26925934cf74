# SPDX-License-Identifier: Apache-2.0
"""The TPU chips and topologies that a step can be compiled for."""

import dataclasses

from lambdanet.errors import check_known

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device of TensorFlow: a core of a v2, v3 or v4, a whole chip otherwise.

    Attributes:
      name: the name, such as "TPU v3 core".
      clock: cycles per second.
      peak: bfloat16 FLOPs per second of the matrix units.
      hbm: the size of the memory in bytes.
    """

    name: str
    clock: float
    peak: float
    hbm: int


# The published peak of a chip, divided by its cores on v2 to v4. The clock is that peak divided by the FLOPs
# per cycle of the matrix units, which do 128 x 128 multiply-adds each (256 x 256 on v6e).
CHIPS = {
    "v2": Chip("TPU v2 core", 700e6, 23e12, 8 * GIB),
    "v3": Chip("TPU v3 core", 940e6, 61.5e12, 16 * GIB),
    "v4": Chip("TPU v4 core", 1050e6, 137.5e12, 16 * GIB),
    "v5e": Chip("TPU v5e", 1500e6, 197e12, 16 * GIB),
    "v5p": Chip("TPU v5p", 1750e6, 459e12, 95 * GIB),
    "v6e": Chip("TPU v6e", 1750e6, 918e12, 32 * GIB),
}

# The chips along each axis of a slice. The papers measured on the 8 cores of `v3:2x2`.
TOPOLOGIES = (
    *(
        f"{kind}:{shape}"
        for kind in ("v2", "v3")
        for shape in ("2x2", "4x4", "4x8", "8x8")
    ),
    *(
        f"{kind}:{shape}"
        for kind in ("v4", "v5p")
        for shape in ("2x2x1", "2x2x2", "2x2x4")
    ),
    *(
        f"{kind}:{shape}"
        for kind in ("v5e", "v6e")
        for shape in ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8")
    ),
)


def chip_of(topology: str) -> Chip:
    """Returns the chip of a name from `TOPOLOGIES`; raises `InputError` for other names."""
    check_known("topology", topology, TOPOLOGIES)
    return CHIPS[topology.partition(":")[0]]
