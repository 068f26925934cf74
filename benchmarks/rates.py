# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.rates`: the rates of this CPU, by which layers choose their form."""

import dataclasses
import statistics
import sys
import time
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from benchmarks import program
from benchmarks.interleaved import results
from benchmarks.interleaved.cases import HEADS, KEY_DIM, Case, cases
from benchmarks.interleaved.contenders import Run, run_position_lambdas
from lambdanet import backend as K
from lambdanet.backend import Tensor, device
from lambdanet.backend.device import Device, Speed
from lambdanet.core import command_line
from lambdanet.core.errors import check_counts
from lambdanet.ops import convolution, products
from lambdanet.ops.kernels import choose_fastest
from lambdanet.ops.position_term import Form, PositionTerm, Sizes

MAPS = (
    "7x7x512x8",
    "14x14x256x8",
    "20x20x128x8",
    "28x28x128x8",
    "40x40x128x2",
    "56x56x64x1",
    "64x64x256x1",
)
SCOPE = 23
PRUNED = 3.0  # forms whose estimate is this many times the shortest are not measured
MIN_SECONDS = 0.006  # of a turn


@dataclasses.dataclass(frozen=True)
class Timing:
    """The seconds that a form takes in a case, which is anything hashable."""

    case: Any
    sizes: Sizes
    form: Form
    seconds: float


def measure_rates(maps: Sequence[str] = MAPS, repeats: int = 3) -> tuple[Speed, Speed]:
    """Measures the forms of position lambdas, and fits the rates of this CPU to them.

    Takes minutes, and the machine must be idle. Prints a row per map and pass: the form that takes the least
    time, the form that the fitted rates choose, and its time relative to the least. The last line sets the
    rates for programs that are started after it.

    Args:
      maps: HEIGHTxWIDTHxCHANNELSxBATCH; default: seven from 7x7 to 64x64.
      repeats: the number of turns per form.

    Returns:
      The rates of both passes, and those of a forward pass.

    Raises:
      InputError: an argument is not as described.

    Example:
      >>> training, inference = measure_rates(["14x14x256x8"], repeats=1)
    """
    check_counts(repeats=repeats)
    todo = cases(maps, [str(SCOPE)], ["both", "forward"], "float32")
    results.announce("float32")
    speeds = []
    here = device.DEVICES["CPU"]
    for backward, start in ((True, here.training), (False, here.inference)):
        timings = []
        for case in todo:
            if case.backward == backward:
                timings += measure_case(case, here, repeats)
        speed = fit(timings, start)
        speeds.append(speed)
        fitted = dataclasses.replace(here, training=speed, inference=speed)
        for case in dict.fromkeys(timing.case for timing in timings):
            print(
                summary([timing for timing in timings if timing.case == case], fitted)
            )
    numbers = [
        f"{number:.2g}" for speed in speeds for number in dataclasses.astuple(speed)[:4]
    ]
    print(f"export {device.RATES}={','.join(numbers)}")
    return speeds[0], speeds[1]


def measure_case(case: Case, cpu: Device, repeats: int) -> list[Timing]:
    """Returns the times of all forms of a case that may be chosen; the forms take turns."""
    size = case.height, case.width
    v = case.channels // HEADS
    shape = case.batch, size, size, (SCOPE, SCOPE), HEADS, KEY_DIM, v
    sizes = Sizes(*shape, needs_gradient=case.backward)
    forms: list[Form] = [*products.candidates(sizes)]
    if not case.backward:
        forms += convolution.candidates(sizes)
    speed = cpu.speed(case.backward, by_xla=False)
    limit = PRUNED * min(form.seconds(sizes, speed) for form in forms)
    forms = [form for form in forms if form.seconds(sizes, speed) <= limit]
    runs = {form: _compile(form, cpu, case) for form in forms}
    seconds: dict[Form, list[float]] = {form: [] for form in forms}
    for run in runs.values():
        run()
    for _ in range(repeats):
        for form, run in runs.items():
            seconds[form].append(_time(run))
    return [
        Timing(case, sizes, form, statistics.median(times))
        for form, times in seconds.items()
    ]


def _compile(form: Form, cpu: Device, case: Case) -> Run:
    """Returns a function that computes the outputs or, for both passes, all gradients."""

    def compute(queries: Tensor, values: Tensor, table: Tensor) -> Tensor:
        by_depth = values[..., K.newaxis], table[..., K.newaxis]
        term = PositionTerm(queries, *by_depth, needs_gradient=case.backward)
        return form.compute(term, cpu)

    return run_position_lambdas(compute, case)


def _time(run: Run) -> float:
    """Returns the seconds per call, after a call that is not timed."""
    run()
    calls = 0
    start = time.perf_counter()
    while time.perf_counter() - start < MIN_SECONDS or calls == 0:
        run()
        calls += 1
    return (time.perf_counter() - start) / calls


def fit(timings: Sequence[Timing], start: Speed) -> Speed:
    """Returns the rates with the least error of the logarithm of the time.

    Forms near the fastest of their case count most, as only they are chosen.

    Args:
      timings: the times; estimates of these forms must be above 0.
      start: the rates to start from, whose tile is kept.
    """
    from scipy import optimize

    fastest: dict[Hashable, float] = {}
    for timing in timings:
        fastest[timing.case] = min(
            timing.seconds, fastest.get(timing.case, timing.seconds)
        )

    def speed(logarithms: np.ndarray) -> Speed:
        # A rate that no timing depends on wanders, and must stay finite.
        rates = np.exp(np.clip(logarithms, 0, 100)).tolist()
        return dataclasses.replace(Speed(*rates), tile=start.tile)

    def error(logarithms: np.ndarray) -> float:
        total = 0.0
        for timing in timings:
            estimate = timing.form.seconds(timing.sizes, speed(logarithms))
            weight = (fastest[timing.case] / timing.seconds) ** 2
            total += weight * abs(np.log(estimate / timing.seconds))
        return total

    rates = np.log(dataclasses.astuple(start)[:4])
    for _ in range(3):  # from where the simplex has shrunk too early
        rates = optimize.minimize(
            error, rates, method="Nelder-Mead", options={"maxiter": 2000}
        ).x
    return speed(rates)


def summary(timings: Sequence[Timing], fitted: Device) -> str:
    """Returns a line with the fastest form of a case, and the one that is chosen by the fitted rates."""
    best = min(timings, key=lambda timing: timing.seconds)
    by_form = {timing.form: timing for timing in timings}
    case = timings[0].case
    speed = fitted.speed(case.backward, by_xla=False)
    chosen = by_form[choose_fastest(list(by_form), timings[0].sizes, speed, fitted)]
    ratio = chosen.seconds / best.seconds
    return (
        f"{case.map} {case.pass_name}: of {len(timings)} forms, {best.form} is the fastest, "
        f"{1e3 * best.seconds:.1f} ms; the choice {chosen.form} takes {ratio:.2f} times as long"
    )


COMMAND = program("benchmarks.rates", measure_rates)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
