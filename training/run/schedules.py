# SPDX-License-Identifier: Apache-2.0
"""Learning rate schedules."""

import dataclasses
import math
import pkgutil

from lambdanet import backend as K
from lambdanet.backend import Tensor, keras
from lambdanet.configs.recipe_values import SCHEDULES
from lambdanet.errors import check_known


@keras.saving.register_keras_serializable("lambdanet")
@dataclasses.dataclass(eq=False)
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises linearly from 0 to its peak and then follows a shape.

        step < warmup_steps:  peak * step / warmup_steps
        constant:             peak
        cosine:               peak * (floor + (1 - floor) * (1 + cos(pi * progress)) / 2)
        exponential:          peak * decay_rate ** floor((step - warmup_steps) / decay_steps)

    with progress = (step - warmup_steps) / (total_steps - warmup_steps). `InputError` for an unknown shape.

    Example:
      >>> schedule = WarmupSchedule(0.1, total_steps=100, warmup_steps=10)
      >>> [round(float(schedule(step)), 4) for step in (0, 5, 10, 55, 100)]
      [0.0, 0.05, 0.1, 0.05, 0.0]
    """

    peak: float  # the largest learning rate
    total_steps: int  # of the whole run, after which the rate is constant
    warmup_steps: int = 0  # of the linear rise, from 0 (none) to `total_steps`
    shape: str = "cosine"  # a name in `SCHEDULES`
    floor: float = 0.0  # the end of the cosine, as a fraction of the peak
    decay_rate: float = 1.0  # the factor per stair of the exponential
    decay_steps: float = 1.0  # the steps per stair, not necessarily an integer

    def __post_init__(self) -> None:
        check_known("schedule", self.shape, SCHEDULES)

    def __call__(self, step: Tensor | int) -> Tensor:
        step = K.minimum(K.cast(step, "float32"), float(self.total_steps))
        rise = step / max(self.warmup_steps, 1)
        after = K.maximum(step - self.warmup_steps, 0.0)
        factor = pkgutil.resolve_name(SCHEDULES[self.shape])(self, after)
        return self.peak * K.where(step < self.warmup_steps, rise, factor)

    def get_config(self) -> dict[str, object]:
        return dataclasses.asdict(self)


def constant(schedule: WarmupSchedule, after: Tensor) -> Tensor:
    """Returns the factor on the peak, `after` steps after the warm-up: 1."""
    return K.ones_like(after)


def cosine(schedule: WarmupSchedule, after: Tensor) -> Tensor:
    """Returns the factor on the peak, which falls to `floor` along half a cosine."""
    progress = after / max(schedule.total_steps - schedule.warmup_steps, 1)
    return schedule.floor + (1 - schedule.floor) * 0.5 * (1 + K.cos(math.pi * progress))


def exponential(schedule: WarmupSchedule, after: Tensor) -> Tensor:
    """Returns the factor on the peak, which falls by `decay_rate` every `decay_steps` steps."""
    return schedule.decay_rate ** K.floor(after / schedule.decay_steps)
