# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.detection`: the step times of detectors, compared within one run."""

import resource
import statistics
import sys
import time
from collections.abc import Sequence

from benchmarks import program
from lambdanet import command_line
from lambdanet.errors import check_counts

EXPERIMENTS = ("lambda_resnet/maskrcnn_resnetfpn_coco", "maskrcnn_resnetfpn_coco")


def benchmark_detection(
    experiments: Sequence[str] = EXPERIMENTS,
    size: int = 512,
    batch_size: int = 1,
    steps: int = 5,
) -> None:
    """Times training steps of experiments in turns, in float32 on the default device.

    Prints the seconds per step, their ratio, and the peak memory of the process.

    Args:
      experiments: names of `experiments.list_experiments()`, one or two.
      size: the side of the images, in pixels.
      batch_size: the number of images per step.
      steps: the number of timed steps per experiment, after one that also traces.
    """
    check_counts(size=size, batch_size=batch_size, steps=steps)
    from lambdanet.detection.run import train_step

    override = (
        f"task.model.input_size=[{size},{size},3],runtime.mixed_precision_dtype=float32,"
        "task.train_data.dtype=float32"
    )
    built = [
        train_step.build_train_step(experiment, override, batch_size)
        for experiment in experiments
    ]
    seconds: list[list[float]] = [[] for _ in experiments]
    for turn in range(steps + 1):
        for step, times in zip(built, seconds, strict=True):
            start = time.perf_counter()
            float(step.function(*step.inputs))  # waits for the result
            if turn:
                times.append(time.perf_counter() - start)
    medians = [statistics.median(times) for times in seconds]
    width = max(map(len, experiments))
    for experiment, median, times in zip(experiments, medians, seconds, strict=True):
        print(
            f"{experiment:<{width}}  {median:8.3f} s per step  ({min(times):.3f} to {max(times):.3f})"
        )
    if len(experiments) == 2:
        ratios = sorted(a / b for a, b in zip(*seconds, strict=True))
        print(
            f"ratio {medians[0] / medians[1]:.3f}  ({ratios[0]:.3f} to {ratios[-1]:.3f} over the turns)"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of the process: {peak:.1f} GiB")


COMMAND = program("benchmarks.detection", benchmark_detection)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
