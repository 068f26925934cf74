# SPDX-License-Identifier: Apache-2.0
"""The program that times training steps of detectors: `python -m lambdanet.detection.benchmark`."""

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
    """Times training steps of experiments in turns, in float32 on the device at hand.

    Args:
      experiments: of `experiments.available()`.
      size: the side of the images, in pixels.
      batch_size: images in a step.
      steps: how many of each are timed; one more comes before, which also traces.

    Returns:
      The seconds of each step, for each experiment.
    """
    from lambdanet.detection.run import train_step

    override = (
        f"task.model.input_size=[{size},{size},3],runtime.mixed_precision_dtype=float32,"
        "task.train_data.dtype=float32"
    )
    built = [train_step.build(experiment, override, batch_size) for experiment in experiments]
    seconds: list[list[float]] = [[] for _ in experiments]
    for turn in range(steps + 1):
        for (run, inputs), times in zip(built, seconds, strict=True):
            start = time.perf_counter()
            float(run(*inputs))  # waits for the result
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
        print(f"{experiment:<{width}}  {median:8.3f} s a step  ({min(times):.3f} to {max(times):.3f})")
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
        Flag("experiment", "NAME", f"what is measured (default: {EXPERIMENTS[0]})", default=EXPERIMENTS[0]),
        Flag(
            "against",
            "NAME",
            f"with what it is compared; empty: nothing (default: {EXPERIMENTS[1]})",
            default=EXPERIMENTS[1],
        ),
        Flag("size", "N", "side of the images (default: 512)", define=flags.DEFINE_integer, default=512),
        Flag("batch_size", "N", "images in a step (default: 1)", define=flags.DEFINE_integer, default=1),
        Flag("steps", "N", "timed steps of each (default: 5)", define=flags.DEFINE_integer, default=5),
    ),
    examples=(
        "python -m lambdanet.detection.benchmark",
        "python -m lambdanet.detection.benchmark --experiment=maskrcnn_lambda_resnet_coco --against= "
        "--size=1024",
    ),
    module="lambdanet.detection.benchmark",
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
