# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.loop`: the step time of `train`, compared with a hand-written loop."""

import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
import tf_keras as keras

from benchmarks import program
from lambdanet import command_line, configs
from lambdanet.command_line import Flag, IntegerFlag, RepeatedFlag
from lambdanet.configs.recipe import Recipe, override
from lambdanet.errors import check_counts
from lambdanet.training.benchmark import results
from lambdanet.training.benchmark.layers import announce
from lambdanet.training.run import build, callbacks
from lambdanet.training.run import model_dir as model_dirs
from lambdanet.training.run.checkpoints import Checkpoints
from lambdanet.training.run.preemption import StopRequest

NEVER = 10**9  # steps

# Runs a number of steps and returns the seconds per step, without the first.
Loop = Callable[[int], float]


def benchmark_loop(
    recipe: str = "digits", set: Sequence[str] = (), steps: int = 50, repeats: int = 9
) -> dict[str, float]:
    """Measures how much longer a step takes in `train` than in a hand-written loop.

    Both train the recipe's model on the same batch of noise, so neither waits for data. `train` is
    `keras.Model.fit` with all callbacks, but without the evaluation and checkpoint at the end of an epoch.
    The other loop is a `tf.function` with a gradient tape. They take turns in alternating order; the ratio is
    the median over the rounds.

    Args:
      recipe: the name of a recipe of `lambdanet train`.
      set: changes of its fields, "key=value".
      steps: the number of steps per turn.
      repeats: the number of turns of each loop.

    Returns:
      `train_ms` and `by_hand_ms`, the median step times, and `ratio`.

    Raises:
      InputError: an argument is not as described.

    Example:
      >>> benchmark_loop(steps=20, repeats=3)["ratio"]
      1.01
    """
    check_counts(steps=steps, repeats=repeats)
    chosen = override(configs.get_recipe(recipe), set)
    chosen = dataclasses.replace(chosen, num_classes=chosen.num_classes or 10)
    announce(
        results.describe_machine(results.num_cores()), "bfloat16" if chosen.mixed_precision else "float32"
    )
    data = _batches(chosen)
    with tempfile.TemporaryDirectory() as folder:
        loops = {"train": _train(chosen, data, folder), "by_hand": _by_hand(chosen, data)}
        times: dict[str, list[float]] = {name: [] for name in loops}
        for loop in loops.values():
            loop(2)  # compiles
        for round_ in range(repeats):
            for name in sorted(loops, reverse=round_ % 2 == 0):
                times[name].append(loops[name](steps + 1))
    result = {f"{name}_ms": 1000 * statistics.median(found) for name, found in times.items()}
    result["ratio"] = statistics.median(np.divide(times["train"], times["by_hand"]).tolist())
    print(
        f"{chosen.model}, batches of {chosen.global_batch_size}, {repeats} turns of {steps} steps: "
        f"{result['train_ms']:.2f} ms per step in train, {result['by_hand_ms']:.2f} by hand; "
        f"train takes {100 * (result['ratio'] - 1):+.1f} %"
    )
    return result


def _batches(recipe: Recipe) -> tf.data.Dataset:
    random = np.random.default_rng(0)
    size, batch = recipe.input_size, recipe.global_batch_size
    images = random.standard_normal([batch, size, size, len(recipe.mean)], np.float32)
    labels = random.integers(0, recipe.num_classes, batch)
    return tf.data.Dataset.from_tensors((images, labels)).cache().repeat().prefetch(2)


class _Timer(keras.callbacks.Callback):
    """Records the end of each step, after all other callbacks."""

    _supports_tf_logs = True

    def on_train_begin(self, logs: dict | None = None) -> None:
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.ends.append(time.perf_counter())


def _train(recipe: Recipe, data: tf.data.Dataset, folder: str) -> Loop:
    """Returns the loop of `lambdanet train`."""
    model, optimizer = build.build_model(recipe), build.build_optimizer(recipe, NEVER // recipe.epochs)
    build.compile_model(recipe, model, optimizer)
    path = model_dirs.claim(folder, recipe)
    checkpoints = Checkpoints(path / model_dirs.CHECKPOINTS, model, optimizer)

    def loop(steps: int) -> float:
        timer, done = _Timer(), int(optimizer.iterations)
        run = callbacks.create_callbacks(recipe, path, checkpoints, done, NEVER, NEVER, StopRequest())
        model.fit(data, steps_per_epoch=steps, epochs=1, callbacks=[*run, timer], verbose=0)
        tf.test.experimental.sync_devices()
        return (timer.ends[-1] - timer.ends[0]) / (steps - 1)

    return loop


def _by_hand(recipe: Recipe, data: tf.data.Dataset) -> Loop:
    """Returns the hand-written loop with the same steps."""
    model, optimizer = build.build_model(recipe), build.build_optimizer(recipe, NEVER // recipe.epochs)
    optimizer.build(model.trainable_variables)
    cross_entropy = build.build_loss(recipe)
    mean, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()

    @tf.function(autograph=False)
    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.add_n([cross_entropy(labels, logits), *model.losses])
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        mean.update_state(loss)
        accuracy.update_state(labels, logits)

    def loop(steps: int) -> float:
        ends = []
        for images, labels in data.take(steps):
            step(images, labels)
            ends.append(time.perf_counter())
        tf.test.experimental.sync_devices()
        return (ends[-1] - ends[0]) / (steps - 1)

    return loop


COMMAND = program(
    "loop",
    "measures a training step of `train`, compared with a hand-written loop",
    benchmark_loop,
    Flag("recipe", "NAME", "the recipe to train (default: digits)"),
    RepeatedFlag("set", "KEY=VALUE", "change a field of the recipe; may be repeated"),
    IntegerFlag("steps", "N", "steps per turn (default: 50)"),
    IntegerFlag("repeats", "N", "turns of each loop (default: 9)"),
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
