# SPDX-License-Identifier: Apache-2.0
"""Starts two workers per signal, as forks of a process with all imports; prints their statuses as JSON.

Arguments: FOLDER, the signals as JSON [[signal, step, worker], ...], and flags of `lambdanet train`. The
worker sends itself the signal after the step. Prints also the seconds from that to the end of the other.
"""

import ctypes
import gc
import json
import os
import pathlib
import signal
import socket
import sys
import time

from quick_graphs import trace_quickly
from small_model import small_model
from training_runs import saved_steps

import lambdanet.training.train  # noqa: F401  before the forks
from lambdanet import cli
from lambdanet.models import zoo
from lambdanet.training.run import callbacks

folder, signals, flags = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
zoo.create_model = small_model
trace_quickly()
gc.disable()  # collections take longer than a few steps

os.environ["TF_GRPC_REUSE_PORT"] = "true"
held = []  # sockets that reserve the ports, which the workers bind too


def free_port():
    held.append(socket.socket())
    held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held[-1].bind(("localhost", 0))
    return held[-1].getsockname()[1]


def send_itself(signal_, step):
    original = callbacks.SaveCheckpoints.on_train_batch_end

    def act(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) == step:
            pathlib.Path(f"{folder}/sent").touch()
            signal.raise_signal(signal_)
        original(self, batch, logs)

    callbacks.SaveCheckpoints.on_train_batch_end = act


def work(index, ports, time_):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # once its parent is gone
    task = {"type": "worker", "index": index}
    workers = [f"localhost:{port}" for port in ports]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    log = os.open(f"{folder}/log{time_}_{index}", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    paths = [f"--model_dir={folder}/run", f"--data_dir={folder}"]
    status = cli.main(["train", "--recipe=digits", *paths, *flags])
    sys.stdout.flush()
    sys.exit(status)


def newest():
    return max(saved_steps(pathlib.Path(folder, "run")), default=0)


def start(time_):
    ports, children = [free_port(), free_port()], []
    for index in range(2):
        child = os.fork()
        if not child:
            signal_, step, worker = signals[time_]
            if index == worker:
                send_itself(signal_, step)
            work(index, ports, time_)
        children.append(child)
    return children


reached, statuses, seconds = [], [], []
for time_ in range(len(signals)):
    children = start(time_)
    statuses.append(
        [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    )
    seconds.append(time.time() - os.path.getmtime(f"{folder}/sent"))
    reached.append(newest())
print(json.dumps({"reached": reached, "statuses": statuses, "seconds": seconds}))
