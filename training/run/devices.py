# SPDX-License-Identifier: Apache-2.0
"""Devices of a run: of this machine, of a TPU, or of several machines."""

import atexit
import contextlib
import functools
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from lambdanet.backend import ENGINE, keras
from lambdanet.backend.strategies import average_on_read, draw_different_numbers
from lambdanet.core.errors import InputError, Preempted, check_known, invalid, one_line
from lambdanet.core.files import cache_dir, writable_dir
from lambdanet.training.data.sources import SINGLE_MACHINE, Shard

PARTING_SECONDS = 2.0
EXAMPLE = '{"cluster": {"worker": ["host0:12345", "host1:12345"]}, "task": {"type": "worker", "index": 0}}'


class Devices:
    """The devices of a run, and the communication between the processes of several machines; here of one."""

    def __init__(self, replicas: int = 1, workers: int = 1, worker: int = 0):
        self.replicas = replicas  # the number of devices on all machines together
        self.workers = workers  # the number of processes, each on a machine of its own
        self.worker = worker  # the number of this process, from 0
        self.chief = worker == 0  # whether this process is the one that writes files

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the context in which a model is built and trained."""
        return contextlib.nullcontext()

    def shard(self) -> Shard:
        """Returns the part of the data that this process reads."""
        return SINGLE_MACHINE

    def distribute_dataset(self, load: Callable[[Shard], tf.data.Dataset]) -> Any:
        """Returns data for `keras.Model.fit`; each machine loads the batches of its own shard."""
        return load(self.shard())

    def prepare(self, model: keras.Model) -> None:
        """Prepares a restored model, so that devices with seeds of their own draw different numbers."""

    def any_worker(self, flag: bool) -> bool:
        """Returns whether the flag is true in any process. All of them have to call it, and wait here."""
        return flag if self.workers == 1 else self._mean(flag) > 0

    def workers_differ(self, number: float) -> bool:
        """Returns whether processes have different numbers. All of them have to call it."""
        return self.any_worker(self.workers > 1 and self._mean(number) != number)

    @contextlib.contextmanager
    def chief_first(self) -> Iterator[None]:
        """Runs a block, such as the preparation of a dataset, in the chief before the other processes."""
        if not self.chief:
            self.any_worker(False)
        yield
        if self.chief:
            self.any_worker(False)

    @contextlib.contextmanager
    def raise_if_worker_lost(self) -> Iterator[None]:
        """Raises `Preempted` if another worker is lost, because the run cannot continue without it."""
        try:
            yield
            self._part()
        except Preempted:
            self._part()
            raise
        except self._worker_lost() as error:
            if self.workers == 1:
                raise
            reason = one_line(error)[:160]
            self._leave()
            raise Preempted(
                f"worker {self.worker} of {self.workers} stopped because another one was lost ({reason}); "
                "the same command on every machine resumes from the last checkpoint"
            ) from None

    def _mean(self, number: float) -> float:
        """Returns the mean of a number over all processes."""
        return float(number)

    def _worker_lost(self) -> tuple[type[Exception], ...]:
        """Returns what the remaining workers raise, depending on the operation that fails."""
        return ()

    def _part(self) -> None:
        """Ends the communication of all processes, when they have reached the same step."""

    def _leave(self) -> None:
        """Prepares the exit of a process whose peers are gone."""


class StrategyDevices(Devices):
    """The devices of a distribution strategy of TensorFlow."""

    def __init__(self, strategy: tf.distribute.Strategy):
        is_multi_worker = isinstance(
            strategy, tf.distribute.MultiWorkerMirroredStrategy
        )
        super().__init__(
            strategy.num_replicas_in_sync, *(read_task()[:2] if is_multi_worker else ())
        )
        self._strategy = strategy
        # Keras 3.15 averages the logs of a step, which are scalars, along an axis
        if is_multi_worker:
            strategy.reduce = lambda op, value, axis: type(strategy).reduce(
                strategy, op, value, axis=None
            )

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        with self._strategy.scope(), tf.variable_creator_scope(average_on_read):
            yield

    def shard(self) -> Shard:
        return Shard(self.worker, self.workers, self.replicas, pad_last_batch=True)

    def distribute_dataset(self, load: Callable[[Shard], tf.data.Dataset]) -> Any:
        def load_shard(context: tf.distribute.InputContext) -> tf.data.Dataset:
            machines = context.num_input_pipelines
            return load(
                Shard(
                    context.input_pipeline_id,
                    machines,
                    self.replicas,
                    pad_last_batch=True,
                )
            )

        return self._strategy.distribute_datasets_from_function(load_shard)

    def prepare(self, model: keras.Model) -> None:
        draw_different_numbers(model, self._strategy)

    def _mean(self, number: float) -> float:
        numbers = self._strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(number, tf.float64)
        )
        return float(
            self._strategy.reduce(tf.distribute.ReduceOp.MEAN, numbers, axis=None)
        )

    def _worker_lost(self) -> tuple[type[Exception], ...]:
        names = [
            "Aborted",
            "Cancelled",
            "DeadlineExceeded",
            "FailedPrecondition",
            "Internal",
            "Unavailable",
        ]
        return tuple(getattr(tf.errors, f"{name}Error") for name in names)


class JaxDevices(Devices):
    """All devices of all processes of JAX, or the first; Keras splits the batch of a process over its own."""

    def __init__(self, parallel: bool):
        import jax

        count = (len(jax.devices()), jax.process_count(), jax.process_index())
        super().__init__(*(count if parallel else ()))
        self._parallel = parallel

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        if not self._parallel:
            return super().scope()
        return keras.distribution.DataParallel(auto_shard_dataset=False).scope()

    def shard(self) -> Shard:
        # A batch is that of a process. The last one is padded, because another shape is compiled again.
        return Shard(self.worker, self.workers, self.workers, pad_last_batch=True)

    def _mean(self, number: float) -> float:
        from jax.experimental import multihost_utils

        return float(multihost_utils.process_allgather(np.float32(number)).mean())

    def _worker_lost(self) -> tuple[type[Exception], ...]:
        import jax

        return (jax.errors.JaxRuntimeError,)

    def _part(self) -> None:
        import jax

        if self.workers > 1:
            self.any_worker(False)
            # Coordinates the others, which abort if it leaves before them.
            if self.chief:
                time.sleep(PARTING_SECONDS)
            jax.distributed.shutdown()

    def _leave(self) -> None:
        # At its exit, JAX would wait a minute for the others, and abort.
        atexit.register(_exit_at_once)


def _exit_at_once() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(75)


ONE_DEVICE = Devices()


def read_task() -> tuple[int, int, str]:
    """Returns the number of workers in TF_CONFIG, this process's number, and the address of the first."""
    text = os.environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text)
        cluster = config["cluster"]
        task = config["task"]
        # The chief comes first.
        jobs = [job for job in ("chief", "worker") if job in cluster]
        before = sum(len(cluster[job]) for job in jobs[: jobs.index(task["type"])])
        worker = before + range(len(cluster[task["type"]]))[int(task["index"])]
        addresses = [address for job in jobs for address in cluster[job]]
        return len(addresses), worker, addresses[0]
    except (
        AttributeError,
        IndexError,
        KeyError,
        RecursionError,
        TypeError,
        ValueError,
    ):
        name = "the environment variable TF_CONFIG"
        raise invalid(name, f"a cluster and a task, such as {EXAMPLE}", text) from None


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
    if name == "auto" and not tpu and "TF_CONFIG" in os.environ and read_task()[0] > 1:
        name = "multi_worker"
    create = _create_jax_devices if ENGINE == "jax" else _create_strategy_devices
    devices = create(name, tpu)
    if global_batch_size % devices.replicas:
        accepted = f"a multiple of {devices.replicas}, the number of devices with --distribute={name}"
        raise invalid("global_batch_size", accepted, global_batch_size)
    return devices


def _create_strategy_devices(name: str, tpu: str | None) -> Devices:
    if tpu or name == "tpu":
        return StrategyDevices(_tpu(tpu or "local"))
    if name == "multi_worker":
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
    if name == "multi_worker":
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
    # Errors of TensorFlow, of the client of Google Cloud, and of the network.
    except Exception as error:
        accepted = "local on a TPU VM with tensorflow-tpu, the name of a TPU in Google Cloud, or grpc://HOST:PORT"
        raise invalid(
            "tpu", accepted, name, f"it cannot be reached ({one_line(error)[:160]})"
        ) from None
    return tf.distribute.TPUStrategy(resolver)
