# SPDX-License-Identifier: Apache-2.0
"""Tests of the Beam pipeline with real processes: the same answer, and what is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from programs.kill_once import KillOnce

from lambdanet.errors import InputError
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.inference import pipeline
from lambdanet.training.inference.inputs import open_inputs
from lambdanet.training.inference.progress import Progress
from lambdanet.training.pseudo_labels.label import pseudo_label

TESTS = Path(__file__).parents[2]
SETTINGS = {"min_confidence": 0, "per_class": 5, "shard_size": 3, "batch_size": 2}
IN_PROCESS = ["--direct_num_workers=1"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Twenty pictures of random colors, and a damaged one."""
    root = tmp_path_factory.mktemp("pictures")
    for index, color in enumerate(
        np.random.default_rng(0).integers(0, 256, [20, 3], np.uint8)
    ):
        Image.fromarray(np.tile(color, (4, 5, 1))).save(root / f"{index:02d}.png")
    (root / "20.png").write_bytes(b"\x89PNG nothing")
    return root


@pytest.fixture(scope="module")
def labeled(color_teacher, pictures, tmp_path_factory):
    """The labels of one process."""
    out = tmp_path_factory.mktemp("labeled")
    pseudo_label(color_teacher, str(pictures), out, **SETTINGS, beam_options=IN_PROCESS)
    return out


def _records(folder):
    """Returns the label, picture and probabilities of each record."""
    files = sorted(map(str, folder.glob("*.tfrecord")))
    for text in tf.data.TFRecordDataset(files).as_numpy_iterator():
        fields = tf.train.Example.FromString(text).features.feature
        (label,), (picture,) = (
            fields["image/class/label"].int64_list.value,
            fields["image/encoded"].bytes_list.value,
        )
        yield label, picture, fields["image/class/probabilities"].float_list.value


@pytest.mark.slow
def test_killed_run_continues_and_writes_the_same_records(
    color_teacher, pictures, labeled, tmp_path
):
    flags = [f"--{name}={value}" for name, value in SETTINGS.items()]
    paths = [
        f"--saved_model={color_teacher}",
        f"--data={pictures}",
        f"--out={tmp_path}",
    ]
    command = [
        sys.executable,
        "-m",
        "lambdanet.cli",
        "pseudo-label",
        *paths,
        *flags,
        "--",
        "--direct_num_workers=2",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        while (
            not (parts := list(tmp_path.glob(".progress/*.npz")))
            and process.poll() is None
        ):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert parts
    written = {path: path.stat().st_ino for path in parts}
    saved = []
    save = Progress.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Progress,
            "save",
            lambda self, part, rows: saved.append(part) or save(self, part, rows),
        )
        pseudo_label(
            color_teacher, str(pictures), tmp_path, **SETTINGS, beam_options=IN_PROCESS
        )
    assert not {f"part-{number:06d}.npz" for number in saved} & {
        path.name for path in written
    }
    found, expected = (list(_records(folder)) for folder in (tmp_path, labeled))
    assert [record[:2] for record in found] == [record[:2] for record in expected]
    for (*_, left), (*_, right) in zip(found, expected, strict=True):
        # `quick_graphs` round otherwise
        np.testing.assert_allclose(left, right, rtol=1e-5)


@pytest.mark.slow
def test_parts_of_a_killed_worker_are_repeated(
    color_teacher, pictures, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), str(TESTS.parent)]))
    bad_records = BadRecords()
    inputs = open_inputs(str(pictures), "train", None, 3, None, bad_records)
    progress = Progress(str(tmp_path), {})
    kill = KillOnce(tmp_path / "killed", number=2)
    task = pipeline.Task(str(color_teacher), 2, bad_records.limit, progress, write=kill)
    pipeline.run(
        pipeline.Job(inputs, task, str, ["--direct_num_workers=2"]), bad_records
    )
    assert kill.marker.exists()
    assert progress.finished() == set(range(7)) and bad_records.names == ["20.png"]
    assert (
        capsys.readouterr().err
        == "a worker process was killed; what it did not finish is repeated\n"
    )


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--runner=Fast", "options of Beam: Unexpected pipeline runner: Fast"),
        (
            "--direct_running_mode=fast",
            "option of Beam: argument --direct_running_mode: invalid choice: 'fast'",
        ),
        (
            "--direct_num_worker=2",
            "unknown option of Beam 'direct_num_worker'; did you mean direct_num_workers",
        ),
        (
            "--direct_num_workers=-1",
            "direct_num_workers must be zero or a positive integer, got -1",
        ),
        ("word", "option of Beam: unexpected 'word'"),
        ("--", "option of Beam: unexpected '--'"),
    ],
)
def test_wrong_option_of_beam_is_one_line(
    color_teacher, pictures, tmp_path, option, message
):
    with pytest.raises(InputError, match=message) as caught:
        pseudo_label(color_teacher, str(pictures), tmp_path, beam_options=[option])
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())
