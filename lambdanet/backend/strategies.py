# SPDX-License-Identifier: Apache-2.0
"""The variables of Keras 3 on the devices of a distribution strategy of TensorFlow."""

import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

SEEDS = "seed_generator"  # in the paths of variables that are no weights


def average_on_read(create: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
    """Creates a variable; of moving averages, which differ between devices, checkpoints have the mean.

    They are batch statistics, and the averages of weights and of these statistics over the steps. Keras 3.15
    would read those of the first device.
    """
    if re.search("^moving_|_average$", options["name"] or ""):
        options["synchronization"] = tf.VariableSynchronization.ON_READ
        options["aggregation"] = tf.VariableAggregation.MEAN
    return create(**options)


def draw_different_numbers(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Adds the number of the device to the seeds of a Keras 3 model that was built within a strategy.

    A checkpoint has the seeds and the draws so far of the first device, so this comes after each restore.
    """
    states = [variable.value for variable in model.variables if SEEDS in variable.path]

    def add_number() -> None:
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        for state in states:
            state.assign_add(tf.cast([number, 0], state.dtype))

    if states:
        tf.function(lambda: strategy.run(add_number), autograph=False)()
