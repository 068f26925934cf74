# SPDX-License-Identifier: Apache-2.0
"""Tests of predictions in files: formats, kinds of inputs, and their order."""

import csv
import json
import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from helpers import write_picture
from refusals import refused

from lambdanet import cli
from lambdanet.files import locked
from lambdanet.training.data import records
from lambdanet.training.inference.classifier import Classifier
from lambdanet.training.inference.predict import predict_files
from lambdanet.training.serving.predict import predict

COLORS = {"a/1.png": (255, 0, 0), "a/2.bmp": (0, 200, 0), "b/3.png": (0, 0, 150)}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Three pictures in two folders, and a damaged one."""
    root = tmp_path_factory.mktemp("pictures")
    for name, color in COLORS.items():
        write_picture(root / name, color)
    (root / "c.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing more")
    return root


@pytest.fixture(scope="module")
def expected(color_teacher, pictures):
    """What `predict` finds for single pictures: the top classes of each name."""
    found = predict(color_teacher, [str(pictures / name) for name in COLORS], top=2)
    return dict(zip(COLORS, (result["top"] for result in found), strict=True))


def _lines(folder, ending):
    texts = [path.read_text() for path in sorted(folder.glob(f"*.{ending}"))]
    return "".join(texts).splitlines()


def test_json_lines_of_a_folder(color_teacher, pictures, expected, tmp_path, capsys):
    command = [
        "predict-many",
        f"--saved_model={color_teacher}",
        f"--out={tmp_path}",
        "--format=jsonl",
        "--top=2",
    ]
    options = ["--shard_size=3", "--batch_size=2", "--", "--runner=DirectRunner"]
    assert cli.main([*command, str(pictures), *options]) == 0
    assert capsys.readouterr().out.endswith(
        "predictions of 3 pictures in 2 files; 1 unreadable\n"
    )
    lines = [json.loads(line) for line in _lines(tmp_path, "jsonl")]
    assert [line["image"] for line in lines] == [*COLORS, "c.jpg"]
    for line in lines[:3]:
        names, probabilities = zip(*expected[line["image"]], strict=True)
        assert tuple(line["classes"]) == names
        np.testing.assert_allclose(line["probabilities"], probabilities, rtol=1e-6)
    assert lines[3] == {"image": "c.jpg", "error": "it cannot be read"}
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["seen"] == 4 and manifest["unreadable"] == ["c.jpg"]
    assert sum(manifest["confidences"]["counts"]) == 3
    files = [f"predictions-0000{number}-of-00002.jsonl" for number in (0, 1)]
    sizes = [
        {"file": file, "pictures": size}
        for file, size in zip(files, (3, 1), strict=True)
    ]
    assert manifest["shards"] == sizes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", *files]
    before = [path.stat().st_mtime_ns for path in sorted(tmp_path.iterdir())]
    assert cli.main([*command, str(pictures), *options]) == 0
    assert "already finished: predictions of 3 pictures" in capsys.readouterr().out
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.iterdir())] == before


def test_records_have_all_probabilities(color_teacher, pictures, expected, tmp_path):
    predict_files(color_teacher, str(pictures), tmp_path, "tfrecord")
    (file,) = tmp_path.glob("*.tfrecord")
    names = []
    for text in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
        fields = tf.train.Example.FromString(text).features.feature
        (name,) = fields["image/filename"].bytes_list.value
        (text,) = fields["image/class/text"].bytes_list.value
        (label,) = fields["image/class/label"].int64_list.value
        probabilities = fields["image/class/probabilities"].float_list.value
        best, probability = expected[name.decode()][0]
        assert (text.decode(), label) == (best, len(names))
        assert probabilities[label] == pytest.approx(probability)
        assert len(probabilities) == 3
        names.append(name.decode())
    assert names == list(COLORS)


def _records_of(pictures, root):
    root.mkdir()
    for number, name in enumerate(("a/1.png", "b/3.png")):
        path = str(root / records.shard_name("train", number, 2))
        records.write_records(
            path, [records.encode_record((pictures / name).read_bytes(), 0)]
        )
    return root


def _table_of(pictures, path):
    path.write_text("file,split\na/1.png,train\nb/3.png,train\na/2.bmp,test\n")
    return path


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("pattern", ["a/1.png", "b/3.png"]),
        ("files", ["a/1.png", "b/3.png"]),
        (
            "records",
            ["train-00000-of-00002.tfrecord:0", "train-00001-of-00002.tfrecord:0"],
        ),
        (
            "pattern of records",
            ["train-00000-of-00002.tfrecord:0", "train-00001-of-00002.tfrecord:0"],
        ),
        ("table", ["a/1.png", "b/3.png"]),
        ("dataset", []),
    ],
)
def test_inputs(color_teacher, pictures, tmp_path, kind, names):
    options = {}
    if kind == "pattern":
        data = str(pictures / "**" / "*.png")
    elif kind == "files":
        data = [str(pictures / "b" / "3.png"), str(pictures / "a" / "1.png")]
    elif "records" in kind:
        root = _records_of(pictures, tmp_path / "records")
        data = str(root / "train-*") if "pattern" in kind else str(root)
    elif kind == "table":
        data, options = (
            str(_table_of(pictures, tmp_path / "t.csv")),
            {"data_dir": str(pictures)},
        )
    else:
        tfds.builder("digits", data_dir=str(tmp_path)).download_and_prepare()
        data, options = "digits", {"data_dir": str(tmp_path), "split": "test[:2]"}
    predict_files(color_teacher, data, tmp_path / "out", "csv", top=1, **options)
    rows = list(csv.DictReader(_lines(tmp_path / "out", "csv")))
    found = [row["image"].removeprefix(f"{pictures}/") for row in rows]
    if kind == "dataset":
        assert len(found) == 2 and all(
            ".tfrecord-" in name and ":" in name for name in found
        )
    else:
        assert found == names and [row["class"] for row in rows] == ["red", "blue"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (["none/*.png"], r"be a pattern that matches files, got 'none/\*.png'"),
        (["DIR", "DIR/no*.png"], r"be a pattern that matches files, got .*no\*.png"),
        (
            ["none/a.png"],
            "data must be a folder of pictures or TFRecords, a table, .*, got 'none/a.png'",
        ),
        (
            ["none.csv"],
            "data must be an existing .csv or .parquet file, got 'none.csv'",
        ),
        (
            ["digts"],
            "there is no file or folder 'digts', and it is an unknown dataset 'digts'",
        ),
    ],
)
def test_wrong_data_is_one_line(color_teacher, pictures, tmp_path, data, message):
    data = [item.replace("DIR", str(pictures)) for item in data]
    with refused(message):
        predict_files(color_teacher, data, tmp_path / "out", "csv")
    assert not (tmp_path / "out").exists()


def test_output_within_data_is_rejected(color_teacher, pictures):
    with refused("out must be a folder outside of the data in"):
        predict_files(color_teacher, str(pictures), pictures / "a" / "out", "csv")
    assert not (pictures / "a" / "out").exists()


def test_unreadable_names_and_pipes_alone_are_one_line(color_teacher, tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    (data / "a\n.png").touch()
    with open(os.fsencode(data) + b"/\xff.png", "wb"):
        pass
    os.mkfifo(data / "pipe.png")
    with refused("^none of 3 pictures can be read$"):
        predict_files(color_teacher, f"{data}/*", out, "csv")
    assert not (out / "manifest.json").exists() and not (out / ".lock").exists()


def test_interrupt_within_beam_ends_the_command(
    color_teacher, pictures, tmp_path, monkeypatch, capsys
):
    def interrupted(self, contents, batch_size):
        raise KeyboardInterrupt

    monkeypatch.setattr(Classifier, "classify", interrupted)
    command = [
        "predict-many",
        f"--saved_model={color_teacher}",
        f"--out={tmp_path}",
        "--format=csv",
        str(pictures),
    ]
    assert cli.main(command) == 130
    assert capsys.readouterr().err == "lambdanet: interrupted\n"


def test_second_run_in_a_folder_is_rejected(color_teacher, pictures, tmp_path):
    with locked(tmp_path), refused("^out .* is in use by process"):
        predict_files(color_teacher, str(pictures), tmp_path, "csv")


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [
        (
            "predict",
            ["--split=train"],
            "unknown flag of `predict` '--split'; did you mean --top or --out or --help or --saved_model?",
        ),
        ("predict-many", ["--out=a.csv"], "out must be a folder, got 'a.csv'"),
        (
            "predict-many",
            ["--format=xml", "--out=out"],
            "unknown format 'xml'; accepted: csv, jsonl, tfrecord",
        ),
    ],
)
def test_wrong_flags_are_one_line(
    color_teacher, pictures, capsys, command, flags, message
):
    picture = str(pictures / "a" / "1.png")
    assert cli.main([command, f"--saved_model={color_teacher}", picture, *flags]) == 2
    assert capsys.readouterr().err == f"lambdanet: error: {message}\n"
