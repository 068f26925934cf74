# SPDX-License-Identifier: Apache-2.0
"""On which devices a run computes: of this machine, of a TPU, or of several machines."""

import contextlib
import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from lambdanet.errors import InputError, Preempted, one_line, unknown
from lambdanet.training.data.shards import WHOLE, Share

CHOICES = ("auto", "mirrored", "multi_worker", "one_device", "tpu")
EXAMPLE = '{"cluster": {"worker": ["host0:12345", "host1:12345"]}, "task": {"type": "worker", "index": 0}}'
PATIENCE = 10  # seconds until a TPU has to answer

_DEFAULT = tf.distribute.get_strategy()  # one device

# What TensorFlow raises on the workers that are left, by when it notices.
_PEER_IS_GONE = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)


class Devices:
    """The devices of a run, and what the processes of several machines settle among themselves.

    Args:
      strategy: as TensorFlow has it.

    Attributes:
      strategy: the same.
      replicas: devices, of all machines together.
      workers: processes, each on a machine of its own.
      worker: this one of them, from 0.
      chief: whether this process is the one that writes.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.replicas: int = strategy.num_replicas_in_sync
        self.workers, self.worker = 1, 0
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            task = _task()
            self.workers, self.worker = task.workers, task.worker
        self.chief = self.worker == 0

    def share(self) -> Share:
        """Returns what this process reads, if it is all of its machine."""
        if self.strategy is _DEFAULT:
            return WHOLE
        return Share(self.worker, self.workers, self.replicas, even=True)

    def feed(self, load: Callable[[Share], tf.data.Dataset]) -> Any:
        """Returns data as `keras.Model.fit` takes it, for each machine its own share.

        Args:
          load: returns the batches of a share.
        """
        if self.strategy is _DEFAULT:
            return load(WHOLE)

        def share(context: tf.distribute.InputContext) -> tf.data.Dataset:
            machines = context.num_input_pipelines
            return load(Share(context.input_pipeline_id, machines, self.replicas, even=True))

        return self.strategy.distribute_datasets_from_function(share)

    def anyone(self, flag: bool) -> bool:
        """Returns whether a flag is up in any process; all of them have to ask, and wait for each other."""
        return flag if self.workers == 1 else self._mean(flag) > 0

    def differ(self, number: float) -> bool:
        """Returns whether some process has another number; all of them have to ask."""
        return self.anyone(self.workers > 1 and self._mean(number) != number)

    @contextlib.contextmanager
    def chief_first(self) -> Iterator[None]:
        """Lets the chief do something, such as preparing a dataset, before the others do it."""
        if not self.chief:
            self.anyone(False)
        yield
        if self.chief:
            self.anyone(False)

    @contextlib.contextmanager
    def noticing_who_is_gone(self) -> Iterator[None]:
        """Ends the run with `Preempted` once another worker is gone: it cannot go on without it."""
        try:
            yield
        except _PEER_IS_GONE as error:
            if self.workers == 1:
                raise
            found = re.search(r"aborted by: (.*)", str(error.message))
            reason = found[1].strip() if found else type(error).__name__
            raise Preempted(
                f"worker {self.worker} of {self.workers} stopped, as another one is gone ({reason}); the "
                "same command on every machine goes on at the last checkpoint"
            ) from None

    def _mean(self, number: float) -> float:
        """Returns the mean of a number over all replicas."""
        numbers = self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(number, tf.float64)
        )
        return float(self.strategy.reduce(tf.distribute.ReduceOp.MEAN, numbers, axis=None))


ONE_DEVICE = Devices(_DEFAULT)


def choose(name: str, global_batch_size: int, tpu: str | None = None) -> Devices:
    """Returns the devices of a run.

    Args:
      name: "one_device": the first GPU, or the CPU. "mirrored": every GPU of this machine, or every logical
        CPU device where there is none, each with a part of every batch. "multi_worker": those of all machines
        that the environment variable TF_CONFIG names; it has to come before TensorFlow does anything else.
        "tpu": the cores of a TPU. "auto": tpu where one is given, multi_worker where TF_CONFIG names several
        machines, mirrored where there are several GPUs.
      global_batch_size: of all devices together.
      tpu: "local" for the one of this machine, the name of one in Google Cloud, or its "grpc://HOST:PORT".

    Raises:
      InputError: an unknown name, a TPU that cannot be reached, no TF_CONFIG, or a batch that cannot be
        divided evenly.

    Example:
      >>> with choose("auto", 64).strategy.scope():
      ...     model = build_model(recipe)
    """
    if name not in CHOICES:
        raise unknown("distribute", name, CHOICES)
    if tpu and name not in ("auto", "tpu"):
        raise InputError(f"distribute is {name!r} and tpu {tpu!r}; accepted: --distribute=tpu beside a tpu")
    if tpu or name == "tpu":
        return _divided(_tpu(tpu or "local"), global_batch_size, "tpu")
    if name == "multi_worker" or (name == "auto" and "TF_CONFIG" in os.environ and _task().workers > 1):
        _task()
        return _divided(tf.distribute.MultiWorkerMirroredStrategy(), global_batch_size, name)
    gpus = tf.config.list_logical_devices("GPU")
    if name == "one_device" or (name == "auto" and len(gpus) < 2):
        return ONE_DEVICE
    devices = [device.name for device in gpus or tf.config.list_logical_devices("CPU")]
    _check_divides(global_batch_size, len(devices), name)
    return Devices(tf.distribute.MirroredStrategy(devices))


def _divided(strategy: tf.distribute.Strategy, global_batch_size: int, name: str) -> Devices:
    _check_divides(global_batch_size, strategy.num_replicas_in_sync, name)
    return Devices(strategy)


def _check_divides(global_batch_size: int, replicas: int, name: str) -> None:
    if global_batch_size % replicas:
        raise InputError(
            f"global_batch_size is {global_batch_size}; accepted: a multiple of {replicas}, the devices of "
            f"--distribute={name}"
        )


class _Task:
    """What TF_CONFIG says: how many workers there are, and which of them this process is."""

    def __init__(self, config: dict[str, Any]):
        cluster, task = config["cluster"], config["task"]
        jobs = [job for job in ("chief", "worker") if job in cluster]  # the chief comes first
        self.workers = sum(len(cluster[job]) for job in jobs)
        before = sum(len(cluster[job]) for job in jobs[: jobs.index(task["type"])])
        self.worker = before + range(len(cluster[task["type"]]))[int(task["index"])]


def _task() -> _Task:
    text = os.environ.get("TF_CONFIG", "")
    try:
        return _Task(json.loads(text))
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError):
        given = f"is {text[:1000]!r}" if text else "is not set"
        raise InputError(
            f"several workers need the environment variable TF_CONFIG, which {given}; accepted: {EXAMPLE}"
        ) from None


def _tpu(name: str) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != "local":
            _knock(resolver.master())
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except Exception as error:  # of TensorFlow, of the client of Google Cloud, of the network
        reason = one_line(error)
        raise InputError(
            f"no TPU can be reached as tpu {name!r} ({reason[:160]}); accepted: local on a TPU VM with "
            "tensorflow-tpu, the name of a TPU in Google Cloud, or grpc://HOST:PORT"
        ) from None
    return tf.distribute.TPUStrategy(resolver)


def _knock(address: str) -> None:
    """Raises `OSError` where nobody answers, for which TensorFlow would wait for ever."""
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    socket.create_connection((host, int(port)), PATIENCE).close()
