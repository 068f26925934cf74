# SPDX-License-Identifier: Apache-2.0
"""The largest batch that fits in the memory of a core."""

from collections.abc import Callable

from lambdanet.errors import check_counts
from lambdanet.training.tpu.check import DoesNotFit
from lambdanet.training.tpu.report import Report

LARGEST = 2**14
SURE = 1.15  # times the memory: what would need more is not tried
STEPS = 8  # the result is within one of so many steps from its power of two to the next


def largest_batch(
    check: Callable[[int], Report],
    start: int = 128,
    told: Callable[[str], None] = lambda line: None,
    refine: bool = True,
) -> Report:
    """Returns the report of the largest batch that fits, found with few compilations.

    First the largest power of two, beginning where the memory of the first that fits says that it will be;
    then, in eighths, what fits between that and the next. A power that memory says is far too large is not
    tried.

    Args:
      check: compiles a step of a batch.
      start: the batch to begin with.
      told: is given a line on each batch.
      refine: whether to look between two powers of two.

    Raises:
      DoesNotFit: a batch of one does not.
      DoesNotCompile: the compiler refuses the step for another reason.

    Example:
      >>> largest_batch(lambda batch: check(of_recipe(recipe, "train", batch))).batch
    """
    check_counts(batch=start)
    fits: dict[int, Report] = {}
    too_large: set[int] = set()

    def tried(batch: int) -> bool:
        if batch in fits or batch in too_large or batch > LARGEST:
            return batch in fits
        try:
            fits[batch] = check(batch)
        except DoesNotFit:
            if batch == 1:
                raise
            told(f"{batch} does not fit")
            too_large.add(batch)
            return False
        told(f"{batch} fits: {fits[batch].hbm_needed / 2**30:.2f} GiB, {1e3 * fits[batch].seconds:.1f} ms")
        return True

    batch = min(LARGEST, _power(start))
    while not tried(batch):
        batch //= 2
    guess = min(LARGEST, _power(_expected(fits[batch])))
    while guess > batch and not tried(guess):
        guess //= 2
    batch = max(batch, guess)
    while _need(fits[batch], 2 * batch) <= SURE * fits[batch].chip.hbm and tried(2 * batch):
        batch *= 2
    if not refine:
        return fits[batch]
    unit = max(1, batch // STEPS)
    least, most = batch, 2 * batch  # fits, does not fit
    while least < LARGEST and most - least > unit:
        probe = _probe(fits, least, most, unit)
        least, most = (probe, most) if tried(probe) else (least, probe)
    return fits[least]


def _power(batch: int) -> int:
    """Returns the largest power of two up to a batch."""
    return 2 ** (batch.bit_length() - 1)


def _expected(report: Report) -> int:
    """Returns the batch that would just fit if all memory but that of the arguments grew with it."""
    fixed, an_example = _memory(report)
    return max(report.batch, int((report.chip.hbm - fixed) / an_example))


def _need(report: Report, batch: int) -> float:
    """Returns the bytes that another batch would need then."""
    fixed, an_example = _memory(report)
    return fixed + batch * an_example


def _memory(report: Report) -> tuple[int, float]:
    """Returns the bytes of the arguments, and those of an example."""
    fixed = report.hbm.get("arguments", 0)
    return fixed, max(1, report.hbm_needed - fixed) / report.batch


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
