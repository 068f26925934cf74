# SPDX-License-Identifier: Apache-2.0
"""Creates the devices of a run, by the name of their kind."""

import functools
import os
import socket

import tensorflow as tf

from lambdanet.backend import keras
from lambdanet.errors import InputError, check_known, invalid, one_line
from lambdanet.files import cache_dir, writable_dir
from lambdanet.training.run.devices import (
    ONE_DEVICE,
    Devices,
    JaxDevices,
    StrategyDevices,
    read_task,
)

CHOICES = ("auto", "mirrored", "multi_worker", "one_device", "tpu")


def create_devices(
    name: str, global_batch_size: int, tpu: str | None = None
) -> Devices:
    """Returns the devices of a run.

    Args:
      name: the kind of devices. "one_device": the first accelerator, or the CPU. "mirrored": every
        accelerator of this machine, or every logical CPU device without one, each with a part of every batch.
        "multi_worker": the devices of all machines in the environment variable TF_CONFIG; must be chosen
        before TensorFlow or JAX does anything else. "tpu": the cores of a TPU; on JAX, of all hosts of its
        slice. "auto": tpu where one is given, multi_worker where TF_CONFIG has several machines, else all
        accelerators.
      global_batch_size: the batch size of all devices together.
      tpu: "local" for the TPU of this machine; on TensorFlow also the name of a TPU in Google Cloud, or
        "grpc://HOST:PORT".

    Raises:
      InputError: an unknown name, a TPU that cannot be reached, no TF_CONFIG, or a batch that cannot be
        divided evenly.

    Example:
      >>> with create_devices("auto", 64).scope():
      ...     model = build_model(recipe)
    """
    check_known("distribute", name, CHOICES)
    if tpu and name not in ("auto", "tpu"):
        raise invalid("distribute", "auto or tpu where a tpu is given", name)
    if keras.config.backend() == "jax":
        devices = _create_jax_devices(name, tpu)
    else:
        devices = _create_strategy_devices(name, tpu)
    if global_batch_size % devices.replicas:
        accepted = f"a multiple of {devices.replicas}, the number of devices with --distribute={name}"
        raise invalid("global_batch_size", accepted, global_batch_size)
    return devices


def _create_strategy_devices(name: str, tpu: str | None) -> Devices:
    if tpu or name == "tpu":
        return StrategyDevices(_tpu(tpu or "local"))
    if name == "multi_worker" or (
        name == "auto" and "TF_CONFIG" in os.environ and read_task()[0] > 1
    ):
        read_task()  # checks TF_CONFIG before TensorFlow reads it
        return StrategyDevices(tf.distribute.MultiWorkerMirroredStrategy())
    gpus = tf.config.list_logical_devices("GPU")
    if name == "one_device" or (name == "auto" and len(gpus) < 2):
        return ONE_DEVICE
    devices = gpus or tf.config.list_logical_devices("CPU")
    return StrategyDevices(_mirrored_strategy(*(device.name for device in devices)))


@functools.cache
def _mirrored_strategy(*names: str) -> tf.distribute.Strategy:
    """Returns the only one of the process: a second one would number its all-reduces as the first."""
    return tf.distribute.MirroredStrategy(names)


def _create_jax_devices(name: str, tpu: str | None) -> Devices:
    import jax

    tf.config.set_visible_devices([], "GPU")  # TensorFlow reads the data on the CPU
    keep_compiled_programs()
    if tpu not in (None, "local"):
        raise invalid(
            "tpu", "local on JAX, which runs on every host of a TPU slice", tpu
        )
    if name == "multi_worker" or (
        name == "auto" and "TF_CONFIG" in os.environ and read_task()[0] > 1
    ):
        workers, worker, address = read_task()
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        # Else the loss of a worker aborts the others.
        jax.config.update("jax_enable_recoverability", True)
        jax.distributed.initialize(address, workers, worker)
    platform = jax.default_backend()
    if (tpu or name == "tpu") and platform != "tpu":
        raise invalid(
            "tpu",
            "local on a TPU VM with jax[tpu]",
            tpu or "local",
            f"JAX runs on {platform}",
        )
    several = jax.process_count() > 1 or (platform != "cpu" and len(jax.devices()) > 1)
    return JaxDevices(parallel=several if name == "auto" else name != "one_device")


def keep_compiled_programs() -> None:
    """Makes JAX keep what it compiles in the cache of lambdanet, unless the user chose a folder."""
    import jax

    if jax.config.values["jax_compilation_cache_dir"]:
        return
    try:
        folder = writable_dir(cache_dir() / "jax")
    except InputError:  # each process compiles again
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def _tpu(name: str) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != "local":
            # Where no server answers, TensorFlow would wait forever.
            host, _, port = resolver.master().removeprefix("grpc://").rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    # Of TensorFlow, of the client of Google Cloud, of the network.
    except Exception as error:
        accepted = "local on a TPU VM with tensorflow-tpu, the name of a TPU in Google Cloud, or grpc://HOST:PORT"
        raise invalid(
            "tpu", accepted, name, f"it cannot be reached ({one_line(error)[:160]})"
        ) from None
    return tf.distribute.TPUStrategy(resolver)
