# SPDX-License-Identifier: Apache-2.0
"""What each of several machines reads of the data."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Share:
    """The part of the data that one machine of several reads; by default there is only one.

    Attributes:
      index: of the machine, from 0.
      count: machines.
      replicas: devices that train, of all machines together.
      even: whether the batches of evaluation, too, have to be whole and as many on each device.
    """

    index: int = 0
    count: int = 1
    replicas: int = 1
    even: bool = False


WHOLE = Share()
