# SPDX-License-Identifier: Apache-2.0
"""Measures which operations of TensorFlow the time of a model goes to, on the CPU.

    python docs/results/operations.py

Writes operations.csv: the share of each group of operations in the time of all, and the part of it that is
inside lambda layers or halo attention. TensorFlow's profiler measures it, over a few steps of what
`python -m benchmarks.models` runs.
"""

import collections
import csv
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from benchmarks.turns.cases import ModelCase
from benchmarks.turns.model_contenders import build

FILE = Path(__file__).with_name("operations.csv")
SETTINGS = (  # model, pass, images
    ("lambda_resnet26t", "infer", 1),
    ("lambda_resnet26t", "infer", 8),
    ("lambda_resnet50ts", "infer", 8),
    ("halonet50ts", "infer", 8),
    ("lambda_resnet50ts", "train", 8),
    ("halonet50ts", "train", 8),
)
STEPS = 5
GROUPS = {  # patterns of the names of operations; the first that is found counts
    "convolutions": "Conv2D",
    "batch norms": "BatchNorm",
    "matrix products": "MatMul|Einsum",
    "activations": "Swish|Sigmoid|Relu|Mul$",
    "others": "",
}
# As the profiler names an event.
OPERATION = re.compile(r"(?P<path>[\w./]+):(?P<operation>_?[A-Z]\w+)")
# The lambda layers and halo attention of these models.
LAYER = re.compile(r"_spatial(_\d+)?/")


def main() -> None:
    """Writes operations.csv."""
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            [
                "model",
                "pass",
                "batch",
                "operations",
                "share",
                "share in lambda or halo layers",
            ]
        )
        for name, pass_name, batch in SETTINGS:
            for group, share, inside in shares(name, pass_name, batch):
                writer.writerow(
                    [name, pass_name, batch, group, f"{share:.3f}", f"{inside:.3f}"]
                )


def shares(name: str, pass_name: str, batch: int) -> Iterator[tuple[str, float, float]]:
    """Yields the groups with their shares of the time of all operations, in all and inside the layers."""
    step = build(name, ModelCase(batch, pass_name == "train"))
    total: collections.Counter[str] = collections.Counter()
    inside: collections.Counter[str] = collections.Counter()
    for path, operation, seconds in profile(step):
        group = next(
            group for group, pattern in GROUPS.items() if re.search(pattern, operation)
        )
        total[group] += seconds
        inside[group] += seconds * bool(LAYER.search(path))
    for group in GROUPS:
        yield group, total[group] / total.total(), inside[group] / total.total()


def profile(step: Callable[[], object]) -> Iterator[tuple[str, str, float]]:
    """Yields the path, the type and the seconds of each operation that ran in `STEPS` steps."""
    step()
    step()
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            for _ in range(STEPS):
                step()
        (file,) = Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(file.read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if found := OPERATION.fullmatch(name):
                    yield found["path"], found["operation"], event.duration_ps / 1e12


if __name__ == "__main__":
    main()
