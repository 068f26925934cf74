# SPDX-License-Identifier: Apache-2.0
"""The memory of a process and its descendants, on Linux."""

from pathlib import Path


def largest_resident_mb(root: int) -> float:
    """Returns the largest resident set that a process or one of its descendants has had, in MB."""
    parents = {}
    peaks = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(
                line.partition(":")[::2] for line in status.read_text().splitlines()
            )
        except OSError:  # it has ended
            continue
        process = int(status.parent.name)
        parents[process] = int(fields["PPid"])
        peaks[process] = int(fields.get("VmHWM", "0 kB").split()[0]) / 1024
    return max(
        (peaks[process] for process in peaks if _descends(process, root, parents)),
        default=0,
    )


def _descends(process: int, root: int, parents: dict[int, int]) -> bool:
    while process in parents and process != root:
        process = parents[process]
    return process == root
