# SPDX-License-Identifier: Apache-2.0
"""Trains a cell of the arena, and appends its row to the file of results."""

import functools
import math
import statistics
import time
from typing import Any

import numpy as np

import lambdanet
from experiments.arena.constructions import Examples, count_right
from experiments.arena.network import build_network
from experiments.arena.plan import Cell
from experiments.arena.settings import Setup
from lambdanet.backend import keras
from lambdanet.models import complexity

# Examples per step, steps per epoch.
BATCH = 32
STEPS = 100
NUM_VALIDATION = 500
NUM_TEST = 2000
SOLVED = 0.9


def train(cell: Cell, machine: str = "", epochs: int | None = None) -> dict[str, Any]:
    """Trains a network, and returns the row of its cell.

    Data, their order and initial weights depend on the seed alone. The validation accuracy is measured after
    each epoch; the test accuracy once, at the end. Times are of the processor.
    """
    start = time.process_time()
    task = cell.setup.task
    model, reset = compiled_network(cell.setup)
    reset(cell.seed)
    epochs = epochs or task.epochs
    curve = []
    seconds = []
    validation = task.draw(NUM_VALIDATION, "validation", 0)
    for epoch in range(epochs):
        inputs, answers = task.draw(BATCH * STEPS, "train", 1000 * cell.seed + epoch)
        asked = (answers >= 0).astype(np.float32)
        weights = asked / asked.mean()
        model.optimizer.learning_rate = cell.learning_rate * _schedule(epoch / epochs)
        before = time.process_time()
        model.fit(
            inputs,
            answers.clip(0),
            BATCH,
            sample_weight=weights,
            shuffle=False,
            verbose=0,
        )
        seconds.append(time.process_time() - before)
        curve.append(_accuracy(model, validation))
    solved = [
        STEPS * (number + 1)
        for number, accuracy in enumerate(curve)
        if accuracy >= SOLVED
    ]
    return {
        "task": cell.setup.task_name,
        "operator": cell.setup.operator,
        "settings": cell.setup.settings,
        "seed": cell.seed,
        "learning_rate": cell.learning_rate,
        "parameters": complexity.count_parameters(model),
        "flops": complexity.count_flops(model),
        "step_ms": f"{1000 * statistics.median(seconds) / STEPS:.2f}",
        "steps": STEPS * epochs,
        "validation_accuracy": f"{curve[-1]:.4f}",
        "test_accuracy": f"{_accuracy(model, task.draw(NUM_TEST, 'test', 0)):.4f}",
        "steps_to_90": solved[0] if solved else "",
        "validation_curve": " ".join(f"{accuracy:.3f}" for accuracy in curve),
        "seconds": f"{time.process_time() - start:.1f}",
        "version": lambdanet.__version__,
        "machine": machine,
    }


def _schedule(progress: float) -> float:
    """Returns the factor on the learning rate: a half of a cosine, after a beginning at half of the rate."""
    return (0.5 if progress == 0 else 1) * (1 + math.cos(math.pi * progress)) / 2


def _accuracy(model: keras.Model, examples: Examples) -> float:
    outputs = model.predict(examples.inputs, batch_size=100, verbose=0)
    right, asked = count_right(outputs, examples.answers)
    return right / asked


@functools.lru_cache(maxsize=32)
def compiled_network(setup: Setup) -> tuple[keras.Model, Any]:
    """Returns a compiled network and the function that starts it again from a seed, without compiling."""
    model = build_network(setup)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Faster on a CPU.
    model.compile(keras.optimizers.Adam(global_clipnorm=1.0), loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    beginning = [variable.numpy() for variable in model.optimizer.variables]

    def reset(seed: int) -> None:
        keras.utils.set_random_seed(seed)
        model.set_weights(build_network(setup).get_weights())
        for variable, value in zip(model.optimizer.variables, beginning, strict=True):
            variable.assign(value)

    return model, reset
