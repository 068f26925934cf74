# SPDX-License-Identifier: Apache-2.0
"""Fits the rates of a device, by which layers choose their form, to times measured on it."""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from lambdanet.backend.device import Speed
from lambdanet.ops.position_term import Form, Sizes


@dataclasses.dataclass(frozen=True)
class Timing:
    """The seconds that a form takes in a case, which is anything hashable."""

    case: Any
    sizes: Sizes
    form: Form
    seconds: float


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
