# SPDX-License-Identifier: Apache-2.0
"""Tests of the Beam pipeline with real processes: the same answer, also after the end of one."""

import subprocess
import sys
from concurrent.futures import Future

import numpy as np
import pytest
from helpers import write_picture

from lambdanet.training.inference import classifier
from lambdanet.training.inference.predict import predict_files
from lambdanet.training.inference.progress import Progress

# Runs a command on the first cores; with "kill", it kills itself when the first part is saved.
PROGRAM = """
import os, signal, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])
from lambdanet import cli
from lambdanet.training.inference.progress import Progress

save = Progress.save

def save_and_end(self, part, predictions):
    save(self, part, predictions)
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "kill":
    Progress.save = save_and_end
sys.exit(cli.main(sys.argv[3:]))
"""
SIZES = {"shard_size": 6, "batch_size": 4}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Twenty pictures of random colors, and a damaged one."""
    root = tmp_path_factory.mktemp("pictures")
    colors = np.random.default_rng(0).integers(0, 256, [20, 3])
    for index, color in enumerate(colors):
        write_picture(root / f"{index:02d}.png", color)
    (root / "20.png").write_bytes(b"\x89PNG nothing")
    return root


def _contents(folder):
    files = [path for path in folder.iterdir() if path.suffix in (".json", ".tfrecord")]
    return {path.name: path.read_bytes() for path in files}


@pytest.mark.slow
def test_killed_run_continues_with_the_same_bytes(color_teacher, pictures, tmp_path):
    """Processes with other workers and cores: TensorFlow's threads are limited when it starts."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    words = [f"--{name}={value}" for name, value in SIZES.items()]
    words += ["--format=tfrecord", f"--saved_model={color_teacher}", str(pictures)]
    for out, number, how in ((killed, 1, "kill"), (whole, 2, "run")):
        command = [sys.executable, "-c", PROGRAM, str(number), how, "predict-many"]
        own = [f"--out={out}", f"--num_workers={number * number}"]
        done = subprocess.run([*command, *own, *words])
        assert done.returncode == (-9 if how == "kill" else 0)
    expected = _contents(whole)
    assert len(expected) == 5  # with the manifest
    before = _contents(killed)
    assert len(before) == 1 and before.items() < expected.items()
    (file,) = before
    inode = (killed / file).stat().st_ino
    saved = []
    save = Progress.save

    def counted_save(self, part, predictions):
        saved.append(part)
        save(self, part, predictions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "save", counted_save)
        predict_files(color_teacher, str(pictures), killed, "tfrecord", **SIZES)
    assert len(saved) == 3
    assert (killed / file).stat().st_ino == inode
    # The probabilities of this process may differ in the last digits.
    assert _contents(killed).keys() == expected.keys()
    assert _contents(killed)["manifest.json"] == expected["manifest.json"]


def test_model_is_loaded_once(color_teacher, pictures, tmp_path, monkeypatch):
    loaded = []
    load = classifier.load_classifier

    def counted_load(saved_model):
        loaded.append(saved_model)
        return load(saved_model)

    monkeypatch.setattr(classifier, "load_classifier", counted_load)
    data = [str(pictures / f"{number:02d}.png") for number in range(4)]
    predict_files(color_teacher, data, tmp_path, "csv", shard_size=1, num_workers=3)
    assert loaded == [str(color_teacher)]


class ResultOfPair(Future):
    """The result of a batch, which must not be waited for before the next batch is submitted."""

    def result(self, timeout=None):
        assert self.done()
        return super().result(timeout)


class InPairs:
    """Computes batches when two of them wait."""

    def __init__(self, num_workers):
        self._waiting = []

    def submit(self, function, *arguments):
        future = ResultOfPair()
        self._waiting.append((future, function, arguments))
        if len(self._waiting) == 2:
            for waiting, compute, given in self._waiting:
                waiting.set_result(compute(*given))
            self._waiting = []
        return future


def test_calls_overlap(color_teacher, pictures, tmp_path, monkeypatch):
    """The batch of a part is submitted before that of the part before is waited for."""
    monkeypatch.setattr(classifier, "ThreadPoolExecutor", InPairs)
    data = [str(pictures / f"{number:02d}.png") for number in range(4)]
    predict_files(color_teacher, data, tmp_path, "csv", shard_size=1, num_workers=2)
    assert len(list(tmp_path.glob("*.csv"))) == 4
