# SPDX-License-Identifier: Apache-2.0
"""Starts two workers per signal, as forks of a process with all imports; prints their statuses as JSON.

Arguments: FOLDER, the signals as JSON [[signal, step], ...], and flags of `lambdanet train`. Worker 1 sends
itself the signal after the step.
"""

import ctypes
import functools
import gc
import json
import os
import pathlib
import signal
import socket
import sys

import pytest
from quick_graphs import trace_quickly
from small_model import small_model
from training_runs import act_at, saved_steps

import lambdanet.training.train  # noqa: F401  before the forks
from lambdanet import cli
from lambdanet.models import zoo

folder, signals, flags = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
run = pathlib.Path(folder, "run")
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


def work(index, workers, time):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # once its parent is gone
    task = {"type": "worker", "index": index}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    log = os.open(f"{folder}/log{time}_{index}", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if index == 1:
        number, step = signals[time]
        send = functools.partial(signal.raise_signal, number)
        act_at(pytest.MonkeyPatch(), [step], send)
    folders = [f"--model_dir={run}", f"--data_dir={folder}"]
    status = cli.main(["train", "--recipe=digits", *folders, *flags])
    sys.stdout.flush()
    sys.exit(status)


def start(time):
    workers = [f"localhost:{free_port()}" for _ in range(2)]
    children = []
    for index in range(2):
        child = os.fork()
        if not child:
            work(index, workers, time)
        children.append(child)
    return children


reached, statuses = [], []
for time in range(len(signals)):
    ends = [os.waitpid(child, 0)[1] for child in start(time)]
    statuses.append([os.waitstatus_to_exitcode(end) for end in ends])
    reached.append(max(saved_steps(run), default=0))
print(json.dumps({"reached": reached, "statuses": statuses}))
