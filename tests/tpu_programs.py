# SPDX-License-Identifier: Apache-2.0
"""Small programs for the tests of tpu-check, to compile in another process."""

import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import tensorflow as tf
from programs.run_on_engine import constant_initializers
from programs.small_model import TWO_BLOCKS

from lambdanet.core.errors import InputError
from lambdanet.models import zoo
from lambdanet.tpu_estimates import check, compiler, steps

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
}


def two_block_step(recipe, mode, batch_size):
    """Returns the step of a recipe with a smaller network, whose initializers need no compilation."""
    zoo.MODELS[recipe.model] = TWO_BLOCKS
    with constant_initializers():
        return steps.recipe_step(recipe, mode, batch_size)


def compile_program(name: str, topology: str, folder: str) -> tuple[Any, float | None]:
    """Returns the report or error of a program, and its HBM traffic by the compiler's own count.

    The traffic is None if nothing was compiled, since the cache in `folder` has the program.
    """
    traffic = [None]
    describe = compiler.describe

    def counted(executable, num_devices):
        traffic.append(executable.cost_analysis()["bytes accessed"])
        return describe(executable, num_devices)

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
