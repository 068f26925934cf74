# SPDX-License-Identifier: Apache-2.0
"""Parts of the data that the machines of a run read."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shard:
    """The part of the data that one of several machines reads; by default there is one machine.

    Attributes:
      index: the number of the machine, from 0.
      count: the number of machines.
      replicas: the number of training devices on all machines together.
      pad_last_batch: whether the batches of evaluation, too, are full, and equally many on each device.
    """

    index: int = 0
    count: int = 1
    replicas: int = 1
    pad_last_batch: bool = False


SINGLE_MACHINE = Shard()
