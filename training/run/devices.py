# SPDX-License-Identifier: Apache-2.0
"""Devices of a run: of this machine, of a TPU, or of several machines."""

import contextlib
import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from lambdanet.errors import Preempted, check_known, invalid, one_line
from lambdanet.training.data.sources import SINGLE_MACHINE, Shard

CHOICES = ("auto", "mirrored", "multi_worker", "one_device", "tpu")
EXAMPLE = '{"cluster": {"worker": ["host0:12345", "host1:12345"]}, "task": {"type": "worker", "index": 0}}'

_DEFAULT = tf.distribute.get_strategy()  # one device

# Raised by TensorFlow on the remaining workers, depending on the operation that fails.
_WORKER_LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)


class Devices:
    """The devices of a run, and the communication between the processes of several machines.

    Attributes:
      strategy: the distribution strategy of TensorFlow.
      replicas: the number of devices on all machines together.
      workers: the number of processes, each on a machine of its own.
      worker: the number of this process, from 0.
      chief: whether this process is the one that writes files.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.replicas: int = strategy.num_replicas_in_sync
        self.workers, self.worker = 1, 0
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            self.workers, self.worker = _read_task()
        self.chief = self.worker == 0

    def shard(self) -> Shard:
        """Returns the part of the data that this process reads."""
        if self.strategy is _DEFAULT:
            return SINGLE_MACHINE
        return Shard(self.worker, self.workers, self.replicas, pad_last_batch=True)

    def distribute_dataset(self, load: Callable[[Shard], tf.data.Dataset]) -> Any:
        """Returns data for `keras.Model.fit`; each machine loads the batches of its own shard."""
        if self.strategy is _DEFAULT:
            return load(SINGLE_MACHINE)

        def load_shard(context: tf.distribute.InputContext) -> tf.data.Dataset:
            machines = context.num_input_pipelines
            return load(Shard(context.input_pipeline_id, machines, self.replicas, pad_last_batch=True))

        return self.strategy.distribute_datasets_from_function(load_shard)

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
        except _WORKER_LOST as error:
            if self.workers == 1:
                raise
            found = re.search(r"aborted by: (.*)", str(error.message))
            reason = found[1].strip() if found else type(error).__name__
            raise Preempted(
                f"worker {self.worker} of {self.workers} stopped because another one was lost ({reason}); "
                "the same command on every machine resumes from the last checkpoint"
            ) from None

    def _mean(self, number: float) -> float:
        """Returns the mean of a number over all replicas."""
        numbers = self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(number, tf.float64)
        )
        return float(self.strategy.reduce(tf.distribute.ReduceOp.MEAN, numbers, axis=None))


ONE_DEVICE = Devices(_DEFAULT)


def create_devices(name: str, global_batch_size: int, tpu: str | None = None) -> Devices:
    """Returns the devices of a run.

    Args:
      name: the kind of devices. "one_device": the first GPU, or the CPU. "mirrored": every GPU of this
        machine, or every logical CPU device without a GPU, each with a part of every batch. "multi_worker":
        the devices of all machines in the environment variable TF_CONFIG; must be chosen before TensorFlow
        does anything else. "tpu": the cores of a TPU. "auto": tpu where one is given, multi_worker where
        TF_CONFIG has several machines, mirrored where there are several GPUs.
      global_batch_size: the batch size of all devices together.
      tpu: "local" for the TPU of this machine, the name of a TPU in Google Cloud, or "grpc://HOST:PORT".

    Raises:
      InputError: an unknown name, a TPU that cannot be reached, no TF_CONFIG, or a batch that cannot be
        divided evenly.

    Example:
      >>> with create_devices("auto", 64).strategy.scope():
      ...     model = build_model(recipe)
    """
    check_known("distribute", name, CHOICES)
    if tpu and name not in ("auto", "tpu"):
        raise invalid("distribute", "auto or tpu where a tpu is given", name)
    if tpu or name == "tpu":
        return _create(_tpu(tpu or "local"), global_batch_size, "tpu")
    if name == "multi_worker" or (name == "auto" and "TF_CONFIG" in os.environ and _read_task()[0] > 1):
        _read_task()  # checks TF_CONFIG before TensorFlow reads it
        return _create(tf.distribute.MultiWorkerMirroredStrategy(), global_batch_size, name)
    gpus = tf.config.list_logical_devices("GPU")
    if name == "one_device" or (name == "auto" and len(gpus) < 2):
        return ONE_DEVICE
    devices = [device.name for device in gpus or tf.config.list_logical_devices("CPU")]
    _check_divides(global_batch_size, len(devices), name)
    return Devices(tf.distribute.MirroredStrategy(devices))


def _create(strategy: tf.distribute.Strategy, global_batch_size: int, name: str) -> Devices:
    _check_divides(global_batch_size, strategy.num_replicas_in_sync, name)
    return Devices(strategy)


def _check_divides(global_batch_size: int, replicas: int, name: str) -> None:
    if global_batch_size % replicas:
        accepted = f"a multiple of {replicas}, the number of devices with --distribute={name}"
        raise invalid("global_batch_size", accepted, global_batch_size)


def _read_task() -> tuple[int, int]:
    """Returns the number of workers in TF_CONFIG, and the number of this process among them."""
    text = os.environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        jobs = [job for job in ("chief", "worker") if job in cluster]  # the chief comes first
        before = sum(len(cluster[job]) for job in jobs[: jobs.index(task["type"])])
        worker = before + range(len(cluster[task["type"]]))[int(task["index"])]
        return sum(len(cluster[job]) for job in jobs), worker
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError):
        name = "the environment variable TF_CONFIG"
        raise invalid(name, f"a cluster and a task, such as {EXAMPLE}", text) from None


def _tpu(name: str) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != "local":
            # Where no server answers, TensorFlow would wait forever.
            host, _, port = resolver.master().removeprefix("grpc://").rpartition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except Exception as error:  # of TensorFlow, of the client of Google Cloud, of the network
        accepted = (
            "local on a TPU VM with tensorflow-tpu, the name of a TPU in Google Cloud, or grpc://HOST:PORT"
        )
        raise invalid("tpu", accepted, name, f"it cannot be reached ({one_line(error)[:160]})") from None
    return tf.distribute.TPUStrategy(resolver)
