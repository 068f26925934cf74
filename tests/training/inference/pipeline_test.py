# SPDX-License-Identifier: Apache-2.0
"""Tests of the Beam pipeline with real processes: the same answer, also after the end of one."""

import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from lambdanet.errors import InputError
from lambdanet.training.inference import classifier
from lambdanet.training.inference.classifier import Classifier
from lambdanet.training.inference.predict import predict_files
from lambdanet.training.inference.progress import Progress
from lambdanet.training.pseudo_labels.label import pseudo_label

SETTINGS = {"min_confidence": 0, "per_class": 5, "shard_size": 3, "batch_size": 2}


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
    """The labels of a run to its end."""
    out = tmp_path_factory.mktemp("labeled")
    pseudo_label(color_teacher, str(pictures), out, **SETTINGS)
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
        "--num_workers=2",
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
        pseudo_label(color_teacher, str(pictures), tmp_path, **SETTINGS)
    assert not {f"part-{number:06d}.npz" for number in saved} & {
        path.name for path in written
    }
    found, expected = (list(_records(folder)) for folder in (tmp_path, labeled))
    assert [record[:2] for record in found] == [record[:2] for record in expected]
    for (*_, left), (*_, right) in zip(found, expected, strict=True):
        # `quick_graphs` round otherwise
        np.testing.assert_allclose(left, right, rtol=1e-5)


@pytest.mark.slow
def test_bytes_do_not_depend_on_workers_and_cores(color_teacher, pictures, tmp_path):
    """In processes of their own, because TensorFlow's threads are limited when it starts."""
    flags = ["--format=tfrecord", "--shard_size=12", "--batch_size=4"]
    contents = []
    for num_workers, cores in ((1, 1), (1, 2), (2, 2), (4, 2)):
        out = tmp_path / f"{num_workers}_{cores}"
        start = f"import os; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{cores}])"
        run = "from lambdanet import cli; raise SystemExit(cli.main())"
        command = [sys.executable, "-c", f"{start}; {run}", "predict-many", *flags]
        paths = [f"--saved_model={color_teacher}", f"--out={out}", str(pictures)]
        subprocess.run([*command, f"--num_workers={num_workers}", *paths], check=True)
        contents.append([path.read_bytes() for path in sorted(out.iterdir())])
    assert len(contents[0]) == 3  # with the manifest
    assert all(found == contents[0] for found in contents)


def test_model_is_loaded_once(color_teacher, pictures, tmp_path, monkeypatch):
    loaded = []
    load = classifier.load_classifier

    def counted_load(saved_model):
        loaded.append(saved_model)
        return load(saved_model)

    monkeypatch.setattr(classifier, "load_classifier", counted_load)
    pseudo_label(color_teacher, str(pictures), tmp_path, **SETTINGS, num_workers=3)
    assert loaded == [str(color_teacher)]


def test_calls_overlap(color_teacher, pictures, tmp_path, monkeypatch):
    """No batch is classified before two of them are, of two parts: the barrier would break."""
    barrier = threading.Barrier(2, timeout=60)
    classify = Classifier.classify

    def classify_in_pairs(self, contents, batch_size):
        barrier.wait()
        return classify(self, contents, batch_size)

    monkeypatch.setattr(Classifier, "classify", classify_in_pairs)
    data = [str(pictures / f"{number:02d}.png") for number in range(4)]
    predict_files(color_teacher, data, tmp_path, "csv", shard_size=1, num_workers=2)
    assert not barrier.broken


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"beam_options": ["--runner=Fast"]},
            "options of Beam: Unexpected pipeline runner: Fast",
        ),
        ({"num_workers": 0}, "num_workers must be a positive integer, got 0"),
    ],
)
def test_wrong_option_is_one_line(
    color_teacher, pictures, tmp_path, arguments, message
):
    with pytest.raises(InputError, match=message) as caught:
        pseudo_label(color_teacher, str(pictures), tmp_path, **arguments)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())
