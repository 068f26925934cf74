# SPDX-License-Identifier: Apache-2.0
"""The largest batch that fits in the memory of a core."""

from collections.abc import Callable

from lambdanet.errors import check_counts
from lambdanet.training.tpu.check import DoesNotFit
from lambdanet.training.tpu.report import Report

LARGEST = 2**14
STEPS = 8  # the result is within one of so many steps from its power of two to the next


def largest_batch(
    check: Callable[[int], Report], start: int = 128, told: Callable[[str], None] = lambda line: None
) -> Report:
    """Returns the report of the largest batch that fits, found with few compilations.

    First by powers of two; then between that and the next, in eighths, beginning where the memory of the
    batches that fit says that it will end.

    Args:
      check: compiles a step of a batch.
      start: the batch to begin with.
      told: is given a line on each batch.

    Raises:
      DoesNotFit: a batch of one does not.
      DoesNotCompile: the compiler refuses the step for another reason.

    Example:
      >>> largest_batch(lambda batch: check(of_recipe(recipe, "train", batch))).batch
    """
    fits: dict[int, Report] = {}

    def tried(batch: int) -> bool:
        try:
            fits[batch] = check(batch)
        except DoesNotFit:
            if batch == 1:
                raise
            told(f"{batch} does not fit")
            return False
        told(f"{batch} fits: {fits[batch].hbm_needed / 2**30:.2f} GiB, {1e3 * fits[batch].seconds:.1f} ms")
        return True

    check_counts(batch=start)
    batch = min(LARGEST, 2 ** (start.bit_length() - 1))
    if tried(batch):
        while batch < LARGEST and tried(2 * batch):
            batch *= 2
    else:
        while not tried(batch // 2):
            batch //= 2
        batch //= 2
    unit = max(1, batch // STEPS)
    least, most = batch, 2 * batch  # fits, does not fit
    while least < LARGEST and most - least > unit:
        probe = _probe(fits, least, most, unit)
        least, most = (probe, most) if tried(probe) else (least, probe)
    return fits[least]


def _probe(fits: dict[int, Report], least: int, most: int, unit: int) -> int:
    """Returns the batch between two that would just fit if memory grew evenly; else that in the middle."""
    steps = (most - least) // unit
    if len(fits) > 1:
        (small, below), (large, above) = sorted(fits.items())[-2:]
        slope = (above.hbm_needed - below.hbm_needed) / (large - small)
        if slope > 0:
            steps_left = (above.chip.hbm - above.hbm_needed) / slope / unit
            return least + unit * min(max(1, int(steps_left)), steps - 1)
    return least + unit * max(1, steps // 2)
