# SPDX-License-Identifier: Apache-2.0
"""Finds the largest batch that fits in the memory of a core."""

from collections.abc import Callable

from lambdanet.core.errors import check_counts
from lambdanet.tpu_estimates.check import DoesNotFit
from lambdanet.tpu_estimates.report import Report

MAX_BATCH = 2**14
# A batch expected to need more than this times the memory is not tried.
MEMORY_MARGIN = 1.15
STEPS = 8  # steps between two powers of two: the resolution of the result


def largest_batch(
    check: Callable[[int], Report],
    start: int = 128,
    log: Callable[[str], None] = lambda line: None,
) -> Report:
    """Returns the report of the largest batch that fits, found with few compilations.

    Searches the powers of two first, starting from an extrapolation of the memory of the first batch that
    fits, then in eighths between the largest one that fits and the next. Batches that are expected to be far
    too large are skipped.

    Args:
      check: compiles the step of a batch.
      start: the first batch to try.
      log: called with a line per batch.

    Raises:
      DoesNotFit: a batch of one does not fit.
      DoesNotCompile: the compiler rejects the step for another reason.

    Example:
      >>> largest_batch(lambda batch: check(recipe_step(recipe, "train", batch))).batch
    """
    check_counts(batch_size=start)
    fits: dict[int, Report] = {}
    too_large: set[int] = set()

    def try_batch(batch: int) -> bool:
        if batch in fits or batch in too_large or batch > MAX_BATCH:
            return batch in fits
        try:
            fits[batch] = check(batch)
        except DoesNotFit:
            if batch == 1:
                raise
            log(f"{batch} does not fit")
            too_large.add(batch)
            return False
        log(
            f"{batch} fits: {fits[batch].hbm_needed / 2**30:.2f} GiB, {1e3 * fits[batch].seconds:.1f} ms"
        )
        return True

    batch = min(MAX_BATCH, _power_of_two(start))
    while not try_batch(batch):
        batch //= 2
    guess = min(MAX_BATCH, _power_of_two(_expected_batch(fits[batch])))
    while guess > batch and not try_batch(guess):
        guess //= 2
    batch = max(batch, guess)
    while (
        _required_bytes(fits[batch], 2 * batch) <= MEMORY_MARGIN * fits[batch].chip.hbm
    ):
        if not try_batch(2 * batch):
            break
        batch *= 2
    unit = max(1, batch // STEPS)
    low = batch  # fits
    high = 2 * batch  # does not fit
    while low < MAX_BATCH and high - low > unit:
        probe = _probe(fits, low, high, unit)
        if try_batch(probe):
            low = probe
        else:
            high = probe
    return fits[low]


def _power_of_two(batch: int) -> int:
    """Returns the largest power of two that is at most `batch`."""
    return 2 ** (batch.bit_length() - 1)


def _expected_batch(report: Report) -> int:
    """Returns the largest batch that fits if all memory except the arguments' grows with the batch."""
    fixed, per_example = _memory(report)
    return max(report.batch, int((report.chip.hbm - fixed) / per_example))


def _required_bytes(report: Report, batch: int) -> float:
    """Returns the bytes that another batch needs under this assumption."""
    fixed, per_example = _memory(report)
    return fixed + batch * per_example


def _memory(report: Report) -> tuple[int, float]:
    """Returns the bytes of the arguments, and the other bytes per example."""
    fixed = report.hbm.get("arguments", 0)
    return fixed, max(1, report.hbm_needed - fixed) / report.batch


def _probe(fits: dict[int, Report], low: int, high: int, unit: int) -> int:
    """Returns the batch between two that just fits if memory grows linearly, or else the middle one."""
    steps = (high - low) // unit
    if len(fits) > 1:
        (small, below), (large, above) = sorted(fits.items())[-2:]
        slope = (above.hbm_needed - below.hbm_needed) / (large - small)
        if slope > 0:
            steps_left = (above.chip.hbm - above.hbm_needed) / slope / unit
            return low + unit * min(max(1, int(steps_left)), steps - 1)
    return low + unit * max(1, steps // 2)
