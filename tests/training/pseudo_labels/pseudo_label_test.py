# SPDX-License-Identifier: Apache-2.0
"""Tests of pseudo-labels with a teacher of colors: selection, files, resumption, and training."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from helpers import damage_record, write_picture
from PIL import Image
from refusals import refused

from lambdanet import cli, configs
from lambdanet.errors import InputError
from lambdanet.training.data import records
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.inference.classifier import Classifier
from lambdanet.training.pseudo_labels import selection
from lambdanet.training.pseudo_labels.label import pseudo_label

NAMES = ("red", "green", "blue")
ANSWER = Path(__file__).parents[2] / "saved" / "pseudo_labels.json"
# Pictures per color with confident predictions, and gray ones without.
CONFIDENT = {"red": 12, "green": 5, "blue": 2}
GRAY = 4
SAME = {"min_confidence": 0.5, "per_class": 4, "shard_size": 10, "batch_size": 4}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Pictures of the colors in two formats, and a damaged one."""
    root = tmp_path_factory.mktemp("pictures")
    for channel, (name, count) in enumerate(CONFIDENT.items()):
        for index in range(count):
            color = [0, 0, 0]
            color[channel] = 255 - 6 * index  # in descending order of confidence
            ending = ("png", "bmp")[index % 2]
            write_picture(root / name / f"{index:02d}.{ending}", color)
    for index in range(GRAY):
        write_picture(root / "gray" / f"{index}.png", [100 + index] * 3)
    (root / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing more")
    return root


@pytest.fixture(scope="module")
def labeled(color_teacher, pictures, tmp_path_factory):
    """The output of the command: soft labels, four records per class, in parts of ten pictures."""
    out = tmp_path_factory.mktemp("labeled")
    paths = [f"--saved_model={color_teacher}", f"--data={pictures}", f"--out={out}"]
    flags = [f"--{name}={value}" for name, value in SAME.items()]
    assert cli.main(["pseudo-label", *paths, *flags]) == 0
    return out, json.loads((out / "manifest.json").read_text())


def _cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def _records(folder):
    """Returns the label, probabilities and color of each record in the files of a folder."""
    found = []
    files = sorted(map(str, folder.glob("*.tfrecord")))
    for text in tf.data.TFRecordDataset(files).as_numpy_iterator():
        features = tf.train.Example.FromString(text).features.feature
        (contents,) = features[records.IMAGE].bytes_list.value
        (label,) = features[records.LABEL].int64_list.value
        probabilities = tuple(features[records.PROBABILITIES].float_list.value)
        image = tf.io.decode_image(contents, channels=3).numpy()
        found.append((label, probabilities, image[4, 4]))
    return found


def _names(folder):
    """Returns the label of each record, and the color and number of its picture."""
    return [
        f"{label}:{NAMES[int(np.argmax(color))]}{(255 - int(color.max())) // 6:02d}"
        for label, _, color in _records(folder)
    ]


def test_balanced_records_of_the_most_confident(labeled):
    out, manifest = labeled
    counts = manifest["per_class"]
    assert {name: row["candidates"] for name, row in counts.items()} == CONFIDENT
    assert [row["taken"] for row in counts.values()] == [4, 4, 2]
    assert [row["records"] for row in counts.values()] == [4, 4, 4]
    found = _records(out)
    assert np.bincount([index for index, _, _ in found]).tolist() == [4, 4, 4]
    for index, probabilities, color in found:
        assert int(np.argmax(color)) == index == int(np.argmax(probabilities))
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
        assert max(probabilities) >= 0.5
    reds = sorted(name for name in _names(out) if name.startswith("0"))
    assert reds == ["0:red00", "0:red01", "0:red02", "0:red03"]


def test_manifest_counts_pictures(labeled):
    out, manifest = labeled
    assert manifest["seen"] == sum(CONFIDENT.values()) + GRAY + 1
    assert manifest["below"] == GRAY and manifest["unreadable"] == ["broken.jpg"]
    assert sum(manifest["confidences"]["counts"]) == sum(CONFIDENT.values()) + GRAY
    assert manifest["settings"]["teacher_sha256"] and manifest["labels"] == "soft"
    for shard in manifest["shards"]:
        assert records.count_records(out / shard["file"]) == shard["records"]
    with Image.open(out / "pseudo_labels.png") as picture:
        assert picture.size[0] > 1000
    assert not (out / ".progress").exists()


def test_same_call_does_nothing_and_other_settings_are_rejected(
    labeled, color_teacher, pictures, capsys
):
    out, manifest = labeled
    before = {file: file.stat().st_mtime_ns for file in out.iterdir()}
    assert pseudo_label(color_teacher, str(pictures), out, **SAME) == manifest
    assert "already finished: 12 records of 10 pictures" in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in out.iterdir()} == before
    with refused(r"per_class must be 4 as in the run in .*, got 5"):
        pseudo_label(color_teacher, str(pictures), out, **{**SAME, "per_class": 5})


@pytest.mark.parametrize("when", ["predicting", "writing"])
def test_interrupted_run_resumes(
    labeled, color_teacher, pictures, tmp_path, monkeypatch, when
):
    """Finished parts and files are kept, and the result equals that of an uninterrupted run."""
    out, manifest = labeled
    seen = []
    classify, write = Classifier.classify, records.write_records

    def interrupted_classify(self, contents, batch_size):
        seen.append(len(contents))
        if sum(seen) > 15:
            raise InputError("stop")
        return classify(self, contents, batch_size)

    def interrupted_write(path, contents):
        if "pseudo-00001" in path:
            Path(f"{path}.partial").write_bytes(b"half of it")
            raise InputError("stop")
        write(path, contents)

    with monkeypatch.context() as patch, refused("^stop$"):
        if when == "predicting":
            patch.setattr(Classifier, "classify", interrupted_classify)
        else:
            patch.setattr(records, "write_records", interrupted_write)
        pseudo_label(color_teacher, str(pictures), tmp_path, **SAME)
    assert not (tmp_path / "manifest.json").exists()
    parts = list(tmp_path.rglob("*.npz"))
    files = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.tfrecord")}
    assert files if when == "writing" else parts
    again = []

    def counted(self, contents, batch_size):
        again.extend(contents)
        return classify(self, contents, batch_size)

    monkeypatch.setattr(Classifier, "classify", counted)
    assert pseudo_label(color_teacher, str(pictures), tmp_path, **SAME) == manifest
    rest = manifest["seen"] - 10 * len(parts)
    assert len(again) == (rest if when == "predicting" else 0)
    for file, time in files.items():
        assert file.stat().st_mtime_ns == time
    names = [shard["file"] for shard in manifest["shards"]]
    assert sorted(file.name for file in tmp_path.glob("*.tfrecord")) == names
    for name in names:
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()


@pytest.fixture
def unfinished(color_teacher, pictures, tmp_path, monkeypatch):
    """The call of a run that ended before its first records, on a copy of the pictures."""
    shutil.copytree(pictures / "red", tmp_path / "data")
    call = {
        "saved_model": color_teacher,
        "data": str(tmp_path / "data"),
        "out": tmp_path / "out",
        "per_class": 4,
    }

    def interrupted(path, contents):
        raise InputError("stop")

    with monkeypatch.context() as patch, refused("^stop$"):
        patch.setattr(records, "write_records", interrupted)
        pseudo_label(**call)
    return call


def test_pictures_that_change_after_their_prediction_are_rejected(unfinished):
    picture = Path(unfinished["data"]) / "00.png"
    content = picture.read_bytes()
    picture.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    message = "pictures were changed after they were predicted; remove '(.*)'"
    with refused(message) as caught:
        pseudo_label(**unfinished)
    Path(str(caught.value).split("'")[1]).unlink()
    assert pseudo_label(**unfinished)["seen"] == CONFIDENT["red"]


def test_damaged_progress_is_one_line(unfinished):
    progress = unfinished["out"] / ".progress"
    part = progress / "part-000000.npz"
    _cut(part)
    with refused(r"part-000000.npz' is damaged \(.*\); remove it"):
        pseudo_label(**unfinished)
    part.unlink()
    (progress / "settings.json").write_text("[]")
    with refused("out .* has files of another command or version"):
        pseudo_label(**unfinished)


def test_files_of_another_run_are_not_kept(unfinished):
    file = unfinished["out"] / "pseudo-00000-of-00001.tfrecord"
    file.write_bytes(b"nothing")
    (shard,) = pseudo_label(**unfinished)["shards"]
    assert shard["file"] == file.name
    assert records.count_records(file) == shard["records"]


@pytest.mark.slow
def test_records_equal_those_of_the_loop_before_beam(color_teacher, pictures, tmp_path):
    """The saved answer was written by the program that predicted and selected in one loop."""
    for number, answer in enumerate(json.loads(ANSWER.read_text())):
        out = tmp_path / str(number)
        data = pictures if "split" not in answer["settings"] else tmp_path / "0"
        pseudo_label(color_teacher, str(data), out, **answer["settings"])
        assert _names(out) == " ".join(answer["shards"]).split()
        sizes = [len(shard.split()) for shard in answer["shards"]]
        files = sorted(out.glob("*.tfrecord"))
        assert [records.count_records(file) for file in files] == sizes
        is_hard = answer["settings"].get("label_mode") == "hard"
        for _, probabilities, _ in _records(out):
            assert is_hard == (probabilities == ())


def test_first_name_is_taken_where_confidences_are_equal(color_teacher, tmp_path):
    # Equal colors, and one pixel that says which it is.
    contents = {}
    for number, name in enumerate("bac"):
        pixels = np.zeros([8, 8, 3])
        pixels[..., 0] = 250
        pixels[0, number, 0] = 249
        path = write_picture(tmp_path / "data" / f"{name}.png", pixels)
        contents[name] = path.read_bytes()
    out = tmp_path / "out"
    pseudo_label(color_teacher, str(tmp_path / "data"), out, per_class=2)
    (file,) = out.glob("*.tfrecord")
    stored = file.read_bytes()
    assert [name for name in "abc" if contents[name] in stored] == ["a", "b"]


def test_too_many_other_files_raise(color_teacher, tmp_path):
    data = tmp_path / "data"
    write_picture(data / "0.png", (255, 0, 0))
    (data / "1.heic").touch()
    call = {"data": str(data), "out": tmp_path / "out"}
    with refused("1 of 2 files in .*; --max_bad_records=1 or more leaves them out"):
        pseudo_label(color_teacher, **call)
    assert not (tmp_path / "out").exists()
    assert pseudo_label(color_teacher, **call, max_bad_records=1)["seen"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_confidence": 1.5}, "min_confidence must be from 0 to 1, got 1.5"),
        ({"label_mode": "firm"}, "unknown label_mode 'firm'; accepted: hard, soft"),
        ({"per_class": -1}, "per_class must be a positive integer"),
        ({"num_workers": 0}, "num_workers must be a positive integer, got 0"),
        (
            {"beam_options": ["--runner=Fast"]},
            "options of Beam: Unexpected pipeline runner: Fast",
        ),
        ({"min_confidence": 0.9999}, "no confidence reaches 0.9999"),
        (
            {"max_bad_records": 0},
            "1 records cannot be read, the last of them broken.jpg",
        ),
    ],
)
def test_wrong_argument_is_one_line(
    color_teacher, pictures, tmp_path, arguments, message
):
    call = {"data": str(pictures), "out": tmp_path / "out", **arguments}
    with refused(message):
        pseudo_label(color_teacher, **call)
    assert not list(tmp_path.rglob("*.tfrecord"))


@pytest.mark.parametrize("folders", ["a a", "a a/b", "a/b a", "a a/../a"])
def test_out_and_data_are_apart(tmp_path, folders):
    data, out = (f"{tmp_path}/{name}" for name in folders.split())
    (tmp_path / "a" / "b").mkdir(parents=True)
    with refused("out must be a folder apart from the data in '.*', got '"):
        pseudo_label("no teacher", data, out)
    assert not (tmp_path / "a" / "b" / ".progress").exists()


def _open(folder, own, bad=None, **changes):
    recipe = dataclasses.replace(PSEUDO, pseudo_labels=str(folder), **changes)
    return Dataset.open(recipe, own, bad)


@pytest.mark.parametrize(
    ("damage", "lost"), [(lambda path: damage_record(path, 1, byte=7), 1), (_cut, -1)]
)
def test_records_missing_from_pseudo_labels_are_counted(
    labeled, own, tmp_path, damage, lost
):
    """The manifest has the number of records, also where the file does not show it."""
    out, manifest = labeled
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    count, file = max((shard["records"], shard["file"]) for shard in manifest["shards"])
    damage(tmp_path / file)
    bad = BadRecords()
    list(_open(tmp_path, own, bad).train())
    names = [f"{file}:{number}" for number in range(lost % count, count)]
    assert sorted(bad.names) == names


def test_damaged_records_to_label_are_counted(color_teacher, own, tmp_path):
    shutil.copytree(own, tmp_path / "data")
    (file,) = (tmp_path / "data").glob("train*")
    damage_record(file, 1)
    call = {
        "saved_model": color_teacher,
        "data": str(tmp_path / "data"),
        "min_confidence": 0,
    }
    manifest = pseudo_label(**call, out=tmp_path / "out")
    assert manifest["seen"] == 8
    assert manifest["unreadable"] == [f"{file.name}:{lost}" for lost in range(1, 8)]
    with refused(f"records cannot be read, the last of them {file.name}:7"):
        pseudo_label(**call, out=tmp_path / "strict", max_bad_records=6)


def test_selection_takes_the_most_confident_and_copies_evenly():
    labels = np.array([0, 0, 0, 0, 1, 1, 3])
    confidences = np.array([0.5, 0.9, 0.7, 0.9, 0.4, 0.6, 0.8], np.float32)
    keys = selection.candidate_keys(confidences, np.arange(7))
    firsts = selection.keep_first(labels, keys, 3)
    assert firsts[0].tolist() == [0, 0, 0, 1, 1, 3]
    chosen = {
        label: selection.select(firsts[1][firsts[0] == label], label, 3, 0)
        for label in (0, 1, 3)
    }
    copies = selection.count_copies(keys, labels, chosen)
    assert copies[:4].tolist() == [0, 1, 1, 1]
    assert sorted(copies[4:6].tolist()) == [1, 2] and copies[6] == 3
    assert [chosen[label].taken for label in (0, 1, 3)] == [3, 2, 1]


PSEUDO = dataclasses.replace(
    configs.get_recipe("digits"),
    dataset="tfrecord",
    train_split="train",
    eval_split="train",
    num_classes=3,
    input_size=8,
    global_batch_size=8,
    pseudo_share=0.5,
    epochs=5,
    augmentation="none",
    label_smoothing=0.0,
)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Eight labeled white pictures."""
    root = tmp_path_factory.mktemp("own")
    white = tf.io.encode_png(np.full([8, 8, 3], 255, np.uint8)).numpy()
    contents = [records.encode_record(white, index % 3) for index in range(8)]
    records.write_records(str(root / records.shard_name("train", 0, 1)), contents)
    (root / "classes.txt").write_text("\n".join(NAMES))
    return str(root)


def test_batches_have_the_share_of_pseudo_labels(labeled, own):
    dataset = _open(labeled[0], own)
    assert dataset.steps_per_epoch == 2
    batches = [(x.numpy(), y.numpy()) for x, y in dataset.train()]
    assert len(batches) == 10
    white = (1 - np.array(PSEUDO.mean)) / PSEUDO.std
    for images, targets in batches:
        assert images.shape == (8, 8, 8, 3) and targets.shape == (8, 3)
        expected = np.broadcast_to(white, [4, 8, 8, 3])
        np.testing.assert_allclose(images[:4], expected, atol=1e-5)
        np.testing.assert_allclose(targets.sum(axis=1), 1, atol=1e-5)
        assert set(np.unique(targets[:4])) == {0.0, 1.0} and (targets[4:] > 0).all()
    pairs = (pair for x, y in batches for pair in zip(x[4:], y[4:], strict=True))
    seen = [image.tobytes() + target.tobytes() for image, target in pairs]
    # Three passes of 12 in 40.
    first, second = (set(seen[begin : begin + 12]) for begin in (0, 12))
    assert first == second
    for left, right in zip(dataset.train(5), batches[5:], strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("", "pseudo_labels must be a folder that `lambdanet pseudo-label` wrote, got"),
        ("/none", "data_dir must be the folder of the TFRecords: .*, got '/none'"),
    ],
)
def test_recipe_without_pseudo_labels_is_rejected(own, folder, message):
    with refused(message):
        _open(folder, own).train()


@pytest.mark.parametrize("labels", ["hard", "soft"])
def test_pseudo_labels_in_another_order_are_matched_by_name(
    labeled, own, tmp_path, capsys, labels
):
    """Their numbers, and the columns of soft labels, become those of the dataset."""
    out, manifest = labeled
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    order = ["blue", "red", "green"]
    (tmp_path / "classes.txt").write_text("\n".join(order))
    changed = {**manifest, "labels": labels, "classes": order}
    (tmp_path / "manifest.json").write_text(json.dumps(changed))
    dataset = _open(tmp_path, own)
    source = dataset._pseudo_labels
    said = "the data has the classes of dataset tfrecord in another order"
    assert said in capsys.readouterr().out
    assert (source.class_names, source.soft) == (list(NAMES), labels == "soft")
    examples = source.examples(records.PSEUDO, None)
    # In the dataset, by the number in the records.
    numbers = [NAMES.index(name) for name in order]
    for example, record in zip(examples, _records(tmp_path), strict=True):
        label, probabilities, _ = record
        assert int(source.label(example)) == numbers[label]
        found = np.take(source.probabilities(example), numbers)
        np.testing.assert_array_equal(found, probabilities)
    assert len(list(dataset.train())) == 10


def test_pseudo_labels_of_other_classes_are_rejected(labeled, own, tmp_path):
    shutil.copytree(labeled[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "classes.txt").write_text("red\ngreen\nviolet\n")
    with refused("class 2 of pseudo_labels .* must be 'blue', .* got 'violet'"):
        _open(tmp_path, own).train()
