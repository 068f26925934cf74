# SPDX-License-Identifier: Apache-2.0
"""Tests of predictions in files: formats, kinds of inputs, continued runs, and unreadable pictures."""

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial

import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from helpers import write_picture
from prediction_files import read_predictions
from refusals import refused

from lambdanet import cli
from lambdanet.core.files import locked
from lambdanet.training.beam.predict import Classifier, predict_files
from lambdanet.training.data import records
from lambdanet.training.serving.predict import predict as predict_single

COLORS = {"a/1.png": (255, 0, 0), "a/2.bmp": (0, 200, 0), "b/3.png": (0, 0, 150)}
# Runs a command, and kills it before the second file of predictions gets its name.
PROGRAM = """
import os, signal, sys
from lambdanet import cli

named = []
replace = os.replace

def replace_or_end(source, target):
    if "predictions-" in str(target):
        named.append(target)
    if len(named) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

os.replace = replace_or_end
cli.main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Three pictures in two folders, and two damaged ones."""
    root = tmp_path_factory.mktemp("pictures")
    for name, color in COLORS.items():
        write_picture(root / name, color)
    for name in ("c.jpg", "d.jpg"):
        (root / name).write_bytes(b"\xff\xd8\xff\xe0 nothing more")
    return root


@pytest.fixture(scope="module")
def expected(color_teacher, pictures):
    """What `predict` finds for single pictures: the top classes of each name."""
    paths = [str(pictures / name) for name in COLORS]
    found = predict_single(color_teacher, paths, top=2)
    return dict(zip(COLORS, (result["top"] for result in found), strict=True))


def _read(folder):
    """Returns the names and top classes in the files of predictions."""
    found = {}
    for path in sorted(folder.glob("predictions-*")):
        if path.suffix in (".csv", ".jsonl"):
            found |= read_predictions(path)
        else:
            for text in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
                fields = tf.train.Example.FromString(text).features.feature
                (name,) = fields["image/filename"].bytes_list.value
                (text,) = fields["image/class/text"].bytes_list.value
                (label,) = fields["image/class/label"].int64_list.value
                rows = fields["image/class/probabilities"].float_list.value
                pairs = zip(("red", "green", "blue"), rows, strict=True)
                top = sorted(pairs, key=lambda pair: -pair[1])
                assert (text.decode(), rows[label]) == top[0]
                found[name.decode()] = top[:2]
    return found


@pytest.mark.parametrize("format", ["csv", "jsonl", "tfrecord"])
def test_formats_equal_predict(
    color_teacher, pictures, expected, tmp_path, capsys, format
):
    command = ["predict-many", f"--saved_model={color_teacher}", f"--out={tmp_path}"]
    command += [f"--format={format}", "--shard_size=4", "--batch_size=2"]
    command += [] if format == "tfrecord" else ["--top=2"]
    command += [str(pictures), "--", "--runner=DirectRunner"]
    assert cli.main(command) == 0
    found = _read(tmp_path)
    if format == "jsonl":
        assert {found.pop(name) for name in ("c.jpg", "d.jpg")} == {"it cannot be read"}
    assert list(found) == list(COLORS)
    for name, top in expected.items():
        assert [label for label, _ in found[name]] == [label for label, _ in top]
        values = [value for _, value in top]
        assert [value for _, value in found[name]] == pytest.approx(values, rel=1e-5)
    summary = "predictions of 3 pictures in 2 files; 2 unreadable\n"
    assert capsys.readouterr().out.endswith(summary)
    unreadable = sorted(tmp_path.glob("unreadable-*.json"))
    assert [json.loads(path.read_text()) for path in unreadable] == [
        ["c.jpg"],
        ["d.jpg"],
    ]
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["classes"] == ["red", "green", "blue"]
    sizes = [
        [name, (pictures / name).stat().st_size] for name in (*COLORS, "c.jpg", "d.jpg")
    ]
    assert manifest["files"] == sizes
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(before) == 5
    assert cli.main(command) == 0
    assert capsys.readouterr().out == summary
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "kind", ["pattern", "files", "records", "pattern of records", "table", "dataset"]
)
def test_inputs(color_teacher, pictures, tmp_path, kind):
    names, options = ["a/1.png", "b/3.png"], {}
    data = [str(pictures / name) for name in reversed(names)]
    if kind == "pattern":
        data = str(pictures / "**/*.png")
    elif "records" in kind:
        root = tmp_path / "records"
        root.mkdir()
        for number, path in enumerate(reversed(data)):
            with open(path, "rb") as file:
                record = records.encode_record(file.read(), 0)
            path = str(root / records.shard_name("train", number, 2))
            records.write_records(path, [record])
        data = str(root / "train-*") if "pattern" in kind else str(root)
        names = [f"train-0000{number}-of-00002.tfrecord:0" for number in (0, 1)]
    elif kind == "table":
        data = str(tmp_path / "table.csv")
        rows = "file,split\na/1.png,train\nb/3.png,train\na/2.bmp,test\n"
        (tmp_path / "table.csv").write_text(rows)
        options = {"data_dir": str(pictures)}
    elif kind == "dataset":
        tfds.builder("digits", data_dir=str(tmp_path)).download_and_prepare()
        data, options = "digits", {"data_dir": str(tmp_path), "split": "test[:0]"}
        with refused("split must be one with pictures in .*, got 'test.:0.'"):
            predict_files(color_teacher, data, tmp_path, "csv", **options)
        options["split"] = "test[:2]"
    out = tmp_path / "out"
    predict_files(color_teacher, data, out, "csv", top=1, shard_size=1, **options)
    found = _read(out)
    if kind == "dataset":
        assert len(found) == 2 and all(".tfrecord-" in name for name in found)
        return
    assert [name.removeprefix(f"{pictures}/") for name in found] == names
    assert [top[0][0] for top in found.values()] == ["red", "blue"]


@pytest.mark.slow
def test_killed_run_continues(color_teacher, pictures, expected, tmp_path):
    words = [f"--saved_model={color_teacher}", f"--out={tmp_path}", "--shard_size=1"]
    command = ["predict-many", *words, "--top=2", str(pictures)]
    killed = subprocess.run([sys.executable, "-c", PROGRAM, *command])
    assert killed.returncode == -signal.SIGKILL
    (file,) = tmp_path.glob("predictions-*.csv")
    inode = file.stat().st_ino
    assert cli.main(command) == 0
    assert file.stat().st_ino == inode
    assert len(list(tmp_path.glob("predictions-*.csv"))) == 5
    assert {name: dict(top) for name, top in _read(tmp_path).items()} == {
        name: pytest.approx(dict(top), rel=1e-5) for name, top in expected.items()
    }


def test_another_run_in_a_folder_is_refused(color_teacher, pictures, tmp_path):
    data = write_picture(tmp_path / "data/1.png", (255, 0, 0)).parent
    out = tmp_path / "out"
    repeat = partial(predict_files, color_teacher, str(data), out, "csv")
    repeat()
    with refused("^top must be 5 as in the run in '.*out', got 1; continue with"):
        repeat(top=1)
    with refused(r"^split and data_dir must be left out for .*, got \['x', None\]"):
        repeat(split="x")
    other = tmp_path / "other"
    shutil.copytree(color_teacher, other)
    with (other / "saved_model.pb").open("ab") as file:
        file.write(b"\x7a\x00")  # an unknown field
    with refused("^model_sha256 must be "):
        predict_files(other, str(data), out, "csv")
    write_picture(data / "2.png", (0, 0, 255))
    with refused("^data has other files than in the run in '.*out', or some of other"):
        repeat()
    (out / "manifest.json").unlink()
    with refused("^out '.*out' has predictions without a manifest; give another"):
        repeat()
    with locked(tmp_path / "new"), refused("^out .* is in use by process"):
        predict_files(color_teacher, str(data), tmp_path / "new", "csv")


def test_unreadable_pictures_are_limited_over_all_runs(
    color_teacher, pictures, tmp_path
):
    call = {"format": "csv", "shard_size": 1, "max_bad_records": 1}
    message = (
        r"^2 records cannot be read, the last of them [cd]\.jpg; max_bad_records is 1"
    )
    for _ in range(2):  # the second run meets one of them, the first run met the other
        with refused(message):
            predict_files(color_teacher, str(pictures), tmp_path, **call)
    call["max_bad_records"] = 2
    done = predict_files(color_teacher, str(pictures), tmp_path, **call)
    assert done.unreadable == ["c.jpg", "d.jpg"]


def test_unreadable_names_and_pipes_alone_are_one_line(color_teacher, tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    (data / "a\n.png").touch()
    with open(os.fsencode(data) + b"/\xff.png", "wb"):
        pass
    os.mkfifo(data / "pipe.png")
    with refused("^none of 3 pictures can be read$"):
        predict_files(color_teacher, f"{data}/*", out, "csv")
    assert not (out / ".lock").exists()


def test_interrupt_within_beam_ends_the_command(
    color_teacher, pictures, tmp_path, monkeypatch, capsys
):
    def interrupted(self, pictures):
        raise KeyboardInterrupt

    monkeypatch.setattr(Classifier, "classify", interrupted)
    words = [f"--saved_model={color_teacher}", f"--out={tmp_path}", str(pictures)]
    assert cli.main(["predict-many", *words]) == 130
    assert capsys.readouterr().err == "lambdanet: interrupted\n"


@pytest.mark.parametrize(
    ("data", "out", "message"),
    [
        (
            "none/*.png",
            "out",
            r"^data must be a folder or pattern .*, got 'none/\*.png'",
        ),
        ("none.csv", "out", "^data must be an existing .csv or .parquet file"),
        ("digts", "out", "^there is no file or folder 'digts', and it is an unknown"),
        ("DIR", "DIR/a/out", "^out must be a path outside of the data in"),
    ],
)
def test_wrong_argument_is_one_line(
    color_teacher, pictures, tmp_path, data, out, message
):
    data, out = (text.replace("DIR", str(pictures)) for text in (data, out))
    with refused(message):
        predict_files(color_teacher, data, tmp_path / out, "csv")
    assert not (tmp_path / out).exists()
