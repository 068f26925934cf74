# SPDX-License-Identifier: Apache-2.0
"""Parts of the data that the machines of a run read."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shard:
    """The part of the data that one of several machines reads; by default there is one machine."""

    index: int = 0  # the number of the machine
    count: int = 1  # the number of machines
    replicas: int = 1  # the number of training devices on all machines together
    pad_last_batch: bool = False  # whether evaluation also has full batches, the same number per device


SINGLE_MACHINE = Shard()
