# SPDX-License-Identifier: Apache-2.0
"""A worker of a Beam pipeline that is killed once."""

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class KillOnce:
    """Kills the process that predicts a part, unless a file shows that it was done before."""

    marker: Path
    number: int

    def __call__(self, part: Any, names: Any, rows: Any) -> None:
        if part.number == self.number and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
