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

# Kills the process when its first part is saved.
KILLED = """
import os, signal, sys
from lambdanet import cli
from lambdanet.training.inference.progress import Progress

save = Progress.save

def save_and_end(self, part, predictions):
    save(self, part, predictions)
    os.kill(os.getpid(), signal.SIGKILL)

Progress.save = save_and_end
cli.main(sys.argv[1:])
"""
# Runs a command on the first cores.
ON_CORES = """
import os, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])
from lambdanet import cli
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Twenty pictures of random colors, and a damaged one."""
    root = tmp_path_factory.mktemp("pictures")
    colors = np.random.default_rng(0).integers(0, 256, [20, 3])
    for index, color in enumerate(colors):
        write_picture(root / f"{index:02d}.png", color)
    (root / "20.png").write_bytes(b"\x89PNG nothing")
    return root


def _command(teacher, pictures, out, num_workers):
    paths = [f"--saved_model={teacher}", f"--out={out}", str(pictures)]
    sizes = ["--shard_size=6", "--batch_size=4", f"--num_workers={num_workers}"]
    return ["predict-many", "--format=tfrecord", *sizes, *paths]


def _contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def predicted(color_teacher, pictures, tmp_path_factory):
    """The files of a run on one core.

    In a process of its own, because TensorFlow's threads are limited when it starts.
    """
    out = tmp_path_factory.mktemp("predicted")
    command = _command(color_teacher, pictures, out, 1)
    subprocess.run([sys.executable, "-c", ON_CORES, "1", *command], check=True)
    assert len(_contents(out)) == 5  # with the manifest
    return _contents(out)


@pytest.mark.slow
def test_bytes_do_not_depend_on_workers_and_cores(
    color_teacher, pictures, predicted, tmp_path
):
    command = _command(color_teacher, pictures, tmp_path, 4)
    subprocess.run([sys.executable, "-c", ON_CORES, "2", *command], check=True)
    assert _contents(tmp_path) == predicted


@pytest.mark.slow
def test_killed_run_continues_and_writes_the_same_files(
    color_teacher, pictures, predicted, tmp_path
):
    command = _command(color_teacher, pictures, tmp_path, 2)
    killed = subprocess.run([sys.executable, "-c", KILLED, *command])
    assert killed.returncode == -9
    (part,) = tmp_path.glob(".progress/*.npz")
    finished = {file.name: file.stat().st_ino for file in tmp_path.glob("*.tfrecord")}
    assert not (tmp_path / "manifest.json").exists()
    saved = []
    save = Progress.save
    with pytest.MonkeyPatch.context() as patch:

        def counted_save(self, part, predictions):
            saved.append(f"part-{part:06d}.npz")
            save(self, part, predictions)

        patch.setattr(Progress, "save", counted_save)
        predict_files(
            color_teacher,
            str(pictures),
            tmp_path,
            "tfrecord",
            batch_size=4,
            shard_size=6,
            num_workers=2,
        )
    assert len(saved) == 3 and part.name not in saved
    for name, inode in finished.items():
        assert (tmp_path / name).stat().st_ino == inode
    # The probabilities of this process may differ in the last digits.
    assert sorted(_contents(tmp_path)) == sorted(predicted)
    assert _contents(tmp_path)["manifest.json"] == predicted["manifest.json"]


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
