# SPDX-License-Identifier: Apache-2.0
"""Tests of pseudo-labels with a teacher of colors: selection, files, continued runs, and training."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_close, assert_equal_batches, damage_record, write_picture
from refusals import refused
from training_runs import open_dataset, recipe_with

from lambdanet import cli
from lambdanet.core.errors import InputError
from lambdanet.training.beam.predict import Classifier
from lambdanet.training.beam.pseudo_labels import pseudo_label, select
from lambdanet.training.data import records
from lambdanet.training.data.bad_records import BadRecords

NAMES = ("red", "green", "blue")
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
            # In descending order of confidence.
            color = (255 - 6 * index) * np.eye(3)[channel]
            ending = ("png", "bmp")[index % 2]
            write_picture(root / name / f"{index:02d}.{ending}", color)
    for index in range(GRAY):
        write_picture(root / f"gray/{index}.png", [100 + index] * 3)
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


@pytest.mark.parametrize(("number", "per_class"), [(200, 7), (200, 40), (5, 3)])
def test_selection_equals_a_loop(number, per_class):
    """The most confident of each class, the first where they are equal, and copies in turn."""
    random = np.random.default_rng(0)
    labels = random.integers(-1, 4, number)
    labels[labels == 2] = 3
    confidences = (random.integers(0, 20, number) / 20).astype(np.float32)
    copies = select(labels, confidences, per_class, seed=1)
    left = copies.tolist()
    for label in (0, 1, 3):
        members = [place for place in range(number) if labels[place] == label]
        members.sort(key=lambda place: (-confidences[place], place))
        for place in members[:per_class]:
            assert left[place] - per_class // len(members[:per_class]) in (0, 1)
            left[place] = 0
        if members:
            assert copies[labels == label].sum() == per_class
    assert not any(left)  # nor of other classes


def test_balanced_records_of_the_most_confident(labeled):
    out, manifest = labeled
    counts = manifest["per_class"]
    assert {name: row["candidates"] for name, row in counts.items()} == CONFIDENT
    assert [row["taken"] for row in counts.values()] == [4, 4, 2]
    assert [row["records"] for row in counts.values()] == [4, 4, 4]
    found = _records(out)
    names = []
    for label, probabilities, color in found:
        assert int(np.argmax(color)) == label == int(np.argmax(probabilities))
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
        names.append((label, (255 - int(color.max())) // 6))
    expected = [(label, index) for label in (0, 1) for index in range(4)]
    assert sorted(names) == expected + [(2, 0)] * 2 + [(2, 1)] * 2
    assert manifest["seen"] == sum(CONFIDENT.values()) + GRAY + 1
    assert manifest["below"] == GRAY and manifest["unreadable"] == ["broken.jpg"]
    assert manifest["settings"]["model_sha256"] and manifest["labels"] == "soft"
    for shard in manifest["shards"]:
        assert records.count_records(out / shard["file"]) == shard["records"]


def test_hard_labels_and_the_mean_per_class(color_teacher, pictures, tmp_path):
    manifest = pseudo_label(
        color_teacher, str(pictures), tmp_path, min_confidence=0.5, label_mode="hard"
    )
    assert manifest["records_of_each_class"] == 6  # of 19 in 3
    found = _records(tmp_path)
    assert sorted(label for label, _, _ in found) == [0] * 6 + [1] * 6 + [2] * 6
    assert {probabilities for _, probabilities, _ in found} == {()}


def test_same_call_does_nothing_and_other_settings_are_rejected(
    labeled, color_teacher, pictures
):
    out, manifest = labeled
    files = sorted(file for file in out.rglob("*") if file.is_file())
    before = [file.stat().st_mtime_ns for file in files]
    assert pseudo_label(color_teacher, str(pictures), out, **SAME) == manifest
    assert [file.stat().st_mtime_ns for file in files] == before
    with refused(r"per_class must be 4 as in the run in .*, got 5"):
        pseudo_label(color_teacher, str(pictures), out, **{**SAME, "per_class": 5})


def test_run_that_ended_while_writing_continues(
    labeled, color_teacher, pictures, tmp_path, monkeypatch
):
    """It predicts nothing again, and equals the run that was not interrupted."""
    out, manifest = labeled
    write = records.write_records

    def interrupted(path, contents):
        if "pseudo-00001" in path:
            raise InputError("stop")
        write(path, contents)

    with monkeypatch.context() as patch, refused("^stop$"):
        patch.setattr(records, "write_records", interrupted)
        # Of another selection.
        pseudo_label(color_teacher, str(pictures), tmp_path, **{**SAME, "per_class": 9})
    assert not (tmp_path / "manifest.json").exists()
    monkeypatch.setattr(Classifier, "classify", None)
    assert pseudo_label(color_teacher, str(pictures), tmp_path, **SAME) == manifest
    files = sorted(tmp_path.glob("*.tfrecord"))
    assert [file.name for file in files] == [
        shard["file"] for shard in manifest["shards"]
    ]
    for file in files:
        assert file.read_bytes() == (out / file.name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_confidence": 1.5}, "min_confidence must be from 0 to 1, got 1.5"),
        ({"label_mode": "firm"}, "unknown label_mode 'firm'; accepted: hard, soft"),
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
    with refused(message):
        pseudo_label(color_teacher, str(pictures), tmp_path / "out", **arguments)
    assert not list(tmp_path.rglob("pseudo-*"))


def test_too_many_other_files_raise(color_teacher, tmp_path):
    data = tmp_path / "data"
    write_picture(data / "0.png", (255, 0, 0))
    (data / "1.heic").touch()
    call = {"data": str(data), "out": tmp_path / "out"}
    with refused("1 of 2 files in .*; --max_bad_records=1 or more leaves them out"):
        pseudo_label(color_teacher, **call)
    assert not (tmp_path / "out").exists()
    assert pseudo_label(color_teacher, **call, max_bad_records=1)["seen"] == 1


def _open(folder, own, bad=None, **changes):
    recipe = dataclasses.replace(PSEUDO, pseudo_labels=str(folder), **changes)
    return open_dataset(recipe, own, bad)


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


PSEUDO = recipe_with(
    "digits",
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
        assert_close(images[:4], expected, 1e-5)
        assert_close(targets.sum(axis=1), 1, 1e-5)
        assert set(np.unique(targets[:4])) == {0.0, 1.0} and (targets[4:] > 0).all()
    pairs = (pair for x, y in batches for pair in zip(x[4:], y[4:], strict=True))
    seen = [image.tobytes() + target.tobytes() for image, target in pairs]
    # Three passes of 12 in 40.
    first, second = (set(seen[begin : begin + 12]) for begin in (0, 12))
    assert first == second
    assert_equal_batches(dataset.train(5), batches[5:])


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
    examples = source.examples(records.PSEUDO, None)
    # In the dataset, by the number in the records.
    numbers = [NAMES.index(name) for name in order]
    assert (source.numbers, source.soft) == (numbers, labels == "soft")
    for example, record in zip(examples, _records(tmp_path), strict=True):
        label, probabilities, _ = record
        assert int(dataset.task.read(source, example)) == numbers[label]
        found = np.take(source.probabilities(example), numbers)
        np.testing.assert_array_equal(found, probabilities)
    assert len(list(dataset.train())) == 10


def test_pseudo_labels_of_other_classes_are_rejected(labeled, own, tmp_path):
    shutil.copytree(labeled[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "classes.txt").write_text("red\ngreen\nviolet\n")
    with refused("class 2 of pseudo_labels .* must be 'blue', .* got 'violet'"):
        _open(tmp_path, own).train()
