# SPDX-License-Identifier: Apache-2.0
"""`KERAS_BACKEND=jax python -m experiments.arena.memory`: activation memory of the headline's networks."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import program
from experiments.arena import plan, training
from experiments.arena.network import build_network
from experiments.arena.settings import Setup
from lambdanet import command_line, files, text_table
from lambdanet.backend import keras
from lambdanet.errors import InputError

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "arena_memory.csv"


def measure_memory() -> None:
    """Writes the MiB that XLA reserves for the gradients of a batch, for each task and operator.

    Raises:
      InputError: the backend is not JAX.
    """
    if keras.backend.backend() != "jax":
        raise InputError("memory is measured with KERAS_BACKEND=jax")
    rows = [
        {
            "task": setup.task_name,
            "operator": setup.operator,
            "mib": f"{activation_mib(setup):.1f}",
        }
        for setup in plan.headline()
    ]
    files.write_atomic(RESULTS, text_table.to_csv(rows))


def activation_mib(setup: Setup) -> float:
    """Returns the MiB that XLA reserves for the gradients of a batch."""
    import jax

    model = build_network(setup)
    inputs = np.zeros([training.BATCH, *setup.task.shape], np.float32)
    trained = [weight.value for weight in model.trainable_weights]
    fixed = [weight.value for weight in model.non_trainable_weights]

    def loss(trainable: Any, others: Any, inputs: Any) -> Any:
        return model.stateless_call(trainable, others, inputs, training=True)[0].sum()

    analysis = (
        jax.jit(jax.grad(loss))
        .lower(trained, fixed, inputs)
        .compile()
        .memory_analysis()
    )
    return float(getattr(analysis, "temp_size_in_bytes", np.nan)) / 2**20


COMMAND = program("experiments.arena.memory", measure_memory)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
