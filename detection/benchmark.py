# SPDX-License-Identifier: Apache-2.0
"""Times training steps of detectors: `python -m lambdanet.detection.benchmark`."""

import resource
import statistics
import sys
import time
from collections.abc import Sequence

from absl import flags

from lambdanet import command_line
from lambdanet.command_line import Command, Flag
from lambdanet.errors import check_counts

EXPERIMENTS = ("lambda_resnet/maskrcnn_resnetfpn_coco", "maskrcnn_resnetfpn_coco")


def measure(
    experiments: Sequence[str], size: int = 512, batch_size: int = 1, steps: int = 5
) -> list[list[float]]:
    """Times training steps of experiments in turns, in float32 on the default device.

    Args:
      experiments: names of `experiments.list_experiments()`.
      size: the side of the images, in pixels.
      batch_size: the number of images per step.
      steps: the number of timed steps per experiment, after one that also traces.

    Returns:
      The seconds of each step, per experiment.
    """
    from lambdanet.detection.run import train_step

    override = (
        f"task.model.input_size=[{size},{size},3],runtime.mixed_precision_dtype=float32,"
        "task.train_data.dtype=float32"
    )
    built = [train_step.build(experiment, override, batch_size) for experiment in experiments]
    seconds: list[list[float]] = [[] for _ in experiments]
    for turn in range(steps + 1):
        for step, times in zip(built, seconds, strict=True):
            start = time.perf_counter()
            float(step.function(*step.inputs))  # waits for the result
            if turn:
                times.append(time.perf_counter() - start)
    return seconds


def _run(values: flags.FlagValues, arguments: list[str]) -> None:
    check_counts(size=values.size, batch_size=values.batch_size, steps=values.steps)
    experiments = [name for name in (values.experiment, values.against) if name]
    seconds = measure(experiments, values.size, values.batch_size, values.steps)
    medians = [statistics.median(times) for times in seconds]
    width = max(map(len, experiments))
    for experiment, median, times in zip(experiments, medians, seconds, strict=True):
        print(f"{experiment:<{width}}  {median:8.3f} s per step  ({min(times):.3f} to {max(times):.3f})")
    if len(experiments) == 2:
        ratios = sorted(a / b for a, b in zip(*seconds, strict=True))
        print(f"ratio {medians[0] / medians[1]:.3f}  ({ratios[0]:.3f} to {ratios[-1]:.3f} over the turns)")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of the process: {peak:.1f} GiB")


COMMAND = Command(
    "benchmark",
    "times the training steps of two detection experiments in turns, and prints their ratio",
    _run,
    flags=(
        Flag(
            "experiment", "NAME", f"experiment to measure (default: {EXPERIMENTS[0]})", default=EXPERIMENTS[0]
        ),
        Flag(
            "against",
            "NAME",
            f"experiment to compare with, or empty (default: {EXPERIMENTS[1]})",
            default=EXPERIMENTS[1],
        ),
        Flag(
            "size",
            "N",
            "side of the images in pixels (default: 512)",
            define=flags.DEFINE_integer,
            default=512,
        ),
        Flag("batch_size", "N", "images per step (default: 1)", define=flags.DEFINE_integer, default=1),
        Flag("steps", "N", "timed steps per experiment (default: 5)", define=flags.DEFINE_integer, default=5),
    ),
    examples=(
        "python -m lambdanet.detection.benchmark",
        "python -m lambdanet.detection.benchmark --experiment=maskrcnn_lambda_resnet_coco --against= "
        "--size=1024",
    ),
    module="lambdanet.detection.benchmark",
    extra="detection",
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
