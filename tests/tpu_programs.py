# SPDX-License-Identifier: Apache-2.0
"""Small programs for the tests of tpu-check, to compile in another process."""

import collections
import contextlib
import dataclasses
import functools
import multiprocessing
import re
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import tensorflow as tf
from programs.run_on_engine import constant_initializers
from programs.small_model import TWO_BLOCKS

import lambdanet
from lambdanet import configs
from lambdanet.errors import InputError
from lambdanet.models import zoo
from lambdanet.tpu_estimates import check, compiler, steps
from lambdanet.training.train import train

N, TRIPS, INNER = 512, 7, 3


def product(a, b):
    return tf.matmul(a, b)


def mapped(stack):
    return tf.map_fn(lambda a: tf.matmul(a, a), stack)


def nested(stack):
    return tf.map_fn(
        lambda a: tf.while_loop(
            lambda i, x: i < INNER, lambda i, x: (i + 1, tf.matmul(x, x)), (0, a)
        )[1],
        stack,
    )


def unbounded(a, trips):
    return tf.while_loop(
        lambda i, x: i < trips, lambda i, x: (i + 1, tf.matmul(x, x)), (0, a)
    )[1]


def networks(images, kernel):
    """Two layers in two nested models."""
    with tf.name_scope("outer"), tf.name_scope("inner"):
        with tf.name_scope("first"):
            images = tf.nn.relu(tf.nn.conv2d(images, kernel, 1, "SAME"))
        with tf.name_scope("second"):
            return tf.nn.conv2d(images, kernel, 2, "SAME")


def too_large(images, kernel):
    with tf.name_scope("outer"), tf.name_scope("greedy"):
        sorted_images = tf.sort(tf.nn.conv2d(images, kernel, 1, "SAME"), axis=0)
    return tf.reduce_sum(sorted_images * images), sorted_images


def texts(images):
    with tf.name_scope("outer"), tf.name_scope("wordy"):
        return tf.strings.as_string(images)


@functools.cache
def attention() -> lambdanet.HaloAttention:
    layer = lambdanet.HaloAttention(
        128, num_heads=8, name="attention", dtype="mixed_bfloat16"
    )
    layer.build([None, None, None, 128])
    return layer


def halos(images):
    """A layer of the third stage of HaloNet H1, on a quarter of its map, with its gradients."""
    with tf.GradientTape() as tape:
        tape.watch(images)
        loss = tf.reduce_sum(attention()(images))
    return tape.gradient(loss, [images, *attention().trainable_variables])


def _square(*shape: int) -> tf.TensorSpec:
    return tf.TensorSpec(shape, tf.bfloat16)


KERNEL = _square(3, 3, 128, 128)
PROGRAMS = {
    "product": (product, [_square(8192, 8192)] * 2),
    "mapped": (mapped, [_square(TRIPS, N, N)]),
    "nested": (nested, [_square(TRIPS, N, N)]),
    "once": (product, [_square(N, N)] * 2),
    "unbounded": (unbounded, [_square(N, N), tf.TensorSpec([], tf.int32)]),
    "networks": (networks, [_square(8, 32, 32, 128), KERNEL]),
    "too_large": (too_large, [_square(4096, 128, 128, 128), KERNEL]),
    "texts": (texts, [_square(8)]),
    "halos": (halos, [_square(2, 16, 16, 128)]),
}


def two_block_step(recipe, mode, batch_size):
    """Returns the step of a recipe with a smaller network, whose initializers need no compilation."""
    zoo.MODELS[recipe.model] = TWO_BLOCKS
    with constant_initializers():
        return steps.recipe_step(recipe, mode, batch_size)


class Traced(Exception):
    """Ends a run at its first step."""


def lower_both(folder: str) -> list[dict[str, Any]]:
    """Returns what `describe_program` does for the step of `lambdanet train`, and for that of `tpu-check`.

    In a process with Keras on JAX, whose devices share each batch.
    """
    import jax
    from keras.src.backend.jax import trainer

    recipe = dataclasses.replace(
        configs.get_recipe("digits"),
        input_size=16,
        mixed_precision=True,
        ema_decay=0.5,
        accumulate_steps=2,
        epochs=1,
        train_split="train[:32]",
        eval_split="test[:8]",
        global_batch_size=32,
    )
    found = []

    def jit(function, **options):
        def trace(*arguments):
            found.append(
                describe_program(
                    jax.jit(function, **options).lower(*arguments).as_text()
                )
            )
            raise Traced

        return trace

    zoo.MODELS[recipe.model] = TWO_BLOCKS
    with mock.patch.object(trainer, "jit", jit), contextlib.suppress(Traced):
        train(recipe, f"{folder}/run", folder, distribute="mirrored")
    batch = recipe.global_batch_size // len(jax.devices())
    step = two_block_step(recipe, "train", batch)
    lowered = compiler.lower(
        step.function,
        step.inputs,
        jax.devices(),
        functools.partial(check._distribution, step),
    )
    return [*found, describe_program(lowered.as_text())]


def describe_program(text: str) -> dict[str, Any]:
    """Returns the types, layouts and donations of arguments and results, and counts of operations."""
    signature = re.search(
        r"func.func public @main\((.*)\) -> \((.*)\) {$", text, re.MULTILINE
    )
    operations = re.findall(
        r"(convolution|dot_general|sharding_constraint|rsqrt|exponential|while)\b", text
    )
    return {
        "devices": int(re.search(r"num_partitions = (\d+)", text)[1]),
        "arguments": re.split(r"(?:, )?%arg\d+: ", signature[1])[1:],
        "results": signature[2].split(", tensor"),
        "operations": dict(collections.Counter(operations)),
    }


def compile_program(name: str, topology: str, folder: str) -> tuple[Any, float | None]:
    """Returns the report or error of a program, and its HBM traffic by the compiler's own count.

    The traffic is None if nothing was compiled, since the cache in `folder` has the program.
    """
    traffic = [None]
    describe = compiler.describe

    def counted(executable, num_devices):
        traffic.append(executable.cost_analysis()["bytes accessed"])
        return describe(executable, num_devices)

    attention()  # creates the variables
    function, inputs = PROGRAMS[name]
    step = steps.TpuStep(name, function, tuple(inputs), 1, ("outer", "inner"))
    with mock.patch.object(compiler, "describe", counted):
        try:
            report = check.check_step(step, topology, compiler.Cache(Path(folder)))
        except InputError as error:
            report = error
    return report, traffic[-1]


def start_worker(log: str, sender: Connection) -> None:
    """Waits as a process that `tpu-check` starts to compile in."""
    check._start_worker(log)
    sender.send("started")
    time.sleep(900)


def wait_for_worker(log: str, sender: Connection) -> None:
    """Runs `start_worker` in a child, and waits."""
    multiprocessing.Process(target=start_worker, args=(log, sender)).start()
    time.sleep(900)
