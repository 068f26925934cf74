# SPDX-License-Identifier: Apache-2.0
"""Pseudo-labels of a teacher that names colours: chosen, balanced, written, resumed, and trained on."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from PIL import Image

from lambdanet import cli, configs
from lambdanet.errors import InputError
from lambdanet.training.data import records
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.pseudo_labels import label, selection
from lambdanet.training.pseudo_labels.label import pseudo_label
from lambdanet.training.pseudo_labels.teacher import Teacher
from lambdanet.training.serving.export import export_saved_model

NAMES = ("red", "green", "blue")
# How many pictures of each colour there are, sure ones; and grey ones, of which the teacher is not sure.
SURE = {"red": 12, "green": 5, "blue": 2}
GREY = 4


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """Its logits are the means of the channels, times a factor that makes it sure."""
    model = keras.Sequential(
        [
            keras.Input([None, None, 3]),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Rescaling(2.0),
        ]
    )
    out = tmp_path_factory.mktemp("teacher") / "colours"
    return export_saved_model(model, out, 8, (0.5,) * 3, (0.5,) * 3, NAMES)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Pictures of the colours, in several formats, and one that is damaged."""
    root = tmp_path_factory.mktemp("pictures")
    for channel, (name, count) in enumerate(SURE.items()):
        for index in range(count):
            colour = np.zeros(3, np.uint8)
            colour[channel] = 255 - 6 * index  # the first ones are the surest
            _write(root / name / f"{index:02d}.{('png', 'jpg', 'bmp')[index % 3]}", colour)
    for index in range(GREY):
        _write(root / "grey" / f"{index}.png", np.full(3, 100 + index))
    (root / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing more")
    return root


def _write(path, colour):
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(np.tile(np.asarray(colour, np.uint8), (9, 12, 1))).save(path)


@pytest.fixture(scope="module")
def labelled(teacher, pictures, tmp_path_factory):
    """What the command writes: soft labels, four of each class, in parts of ten pictures."""
    out = tmp_path_factory.mktemp("labelled")
    flags = ["--min_confidence=0.5", "--per_class=4", "--shard_size=10", "--batch_size=4"]
    command = ["pseudo-label", f"--teacher={teacher}", f"--data={pictures}", f"--out={out}", *flags]
    assert cli.main(command) == 0
    return out, json.loads((out / "manifest.json").read_text())


def _records(folder):
    """The label, the probabilities and the colour of each record."""
    found = []
    for path in sorted(folder.glob("*.tfrecord")):
        for text in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            features = tf.train.Example.FromString(text).features.feature
            image = tf.io.decode_image(features["image/encoded"].bytes_list.value[0], channels=3)
            probabilities = tuple(features["image/class/probabilities"].float_list.value)
            found.append(
                (features["image/class/label"].int64_list.value[0], probabilities, image[4, 6].numpy())
            )
    return found


def test_as_many_of_each_class_the_surest_first_and_copies_where_there_are_fewer(labelled):
    out, manifest = labelled
    counts = manifest["per_class"]
    assert {name: row["candidates"] for name, row in counts.items()} == SURE
    assert {name: row["taken"] for name, row in counts.items()} == {"red": 4, "green": 4, "blue": 2}
    assert {row["records"] for row in counts.values()} == {4}
    found = _records(out)
    assert np.bincount([index for index, _, _ in found]).tolist() == [4, 4, 4]
    for index, probabilities, colour in found:
        assert int(np.argmax(colour)) == index == int(np.argmax(probabilities))
        assert sum(probabilities) == pytest.approx(1, abs=1e-5) and max(probabilities) >= 0.5
    reds = sorted(int(colour[0]) for index, _, colour in found if index == 0)
    assert reds[0] > 255 - 6 * 4 - 3  # but for what JPEG changes


def test_the_manifest_tells_what_was_seen_and_left_out(labelled, capsys):
    out, manifest = labelled
    assert manifest["seen"] == sum(SURE.values()) + GREY + 1
    assert manifest["below"] == GREY and manifest["unreadable"] == ["broken.jpg"]
    assert sum(manifest["confidences"]["counts"]) == sum(SURE.values()) + GREY
    assert manifest["settings"]["teacher_sha256"] and manifest["labels"] == "soft"
    assert [records.count_records(out / shard["file"]) for shard in manifest["shards"]] == [
        shard["records"] for shard in manifest["shards"]
    ]
    with Image.open(out / "pseudo_labels.png") as picture:
        assert picture.size[0] > 1000
    assert not (out / ".progress").exists()


def test_the_same_call_again_does_nothing_and_another_one_is_refused(labelled, teacher, pictures, capsys):
    out, manifest = labelled
    before = {file: file.stat().st_mtime_ns for file in out.iterdir()}
    same = {"min_confidence": 0.5, "per_class": 4, "shard_size": 10}
    assert pseudo_label(teacher, str(pictures), out, **same) == manifest
    assert "finished already: 12 records of 10 pictures" in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in out.iterdir()} == before
    with pytest.raises(InputError, match=r"was begun with per_class 4, not 5"):
        pseudo_label(teacher, str(pictures), out, **{**same, "per_class": 5})


@pytest.mark.parametrize("when", ["asking", "writing"])
def test_killed_and_called_again_it_does_not_do_again_what_is_done(
    labelled, teacher, pictures, tmp_path, monkeypatch, when
):
    """The parts and files that are there stay as they are, and the result is that of a run in one go."""
    same = {"min_confidence": 0.5, "per_class": 4, "shard_size": 10}
    seen = []
    classify, write = Teacher.classify, label._write_file

    def killed_while_asking(self, contents):
        seen.append(len(contents))
        if sum(seen) > 15:
            raise KeyboardInterrupt
        return classify(self, contents)

    def killed_while_writing(path, *rest):
        if path.name.startswith("pseudo-00001"):
            path.with_name(f".{path.name}.partial").write_bytes(b"half of it")
            raise KeyboardInterrupt
        write(path, *rest)

    with monkeypatch.context() as patch:
        if when == "asking":
            patch.setattr(Teacher, "classify", killed_while_asking)
        else:
            patch.setattr(label, "_write_file", killed_while_writing)
        with pytest.raises(KeyboardInterrupt):
            pseudo_label(teacher, str(pictures), tmp_path, **same)
    assert not (tmp_path / "manifest.json").exists()
    kept = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}
    kept = {file: time for file, time in kept.items() if file.suffix in (".npz", ".tfrecord")}
    assert kept
    again = []
    monkeypatch.setattr(
        Teacher, "classify", lambda self, contents: again.extend(contents) or classify(self, contents)
    )
    assert pseudo_label(teacher, str(pictures), tmp_path, **same) == labelled[1]
    assert len(again) == (labelled[1]["seen"] - 10 if when == "asking" else 0)
    for file, time in kept.items():
        assert file.suffix == ".npz" or file.stat().st_mtime_ns == time
    names = [shard["file"] for shard in labelled[1]["shards"]]
    assert sorted(file.name for file in tmp_path.glob("*.tfrecord")) == names
    assert [(tmp_path / name).read_bytes() for name in names] == [
        (labelled[0] / name).read_bytes() for name in names
    ]


def test_one_damaged_picture_more_than_the_limit_ends_it(teacher, pictures, tmp_path):
    with pytest.raises(InputError, match=r"1 records cannot be read, the last of them broken.jpg"):
        pseudo_label(teacher, str(pictures), tmp_path, max_bad_records=0)


def test_files_that_are_no_pictures_end_it_or_are_named(teacher, tmp_path, capsys):
    for index in range(24):
        _write(tmp_path / "data" / f"{index:02d}.png", (255, 0, 0))
    for path in sorted((tmp_path / "data").iterdir())[:20]:
        path.rename(path.with_suffix(".heic"))
    command = [
        "pseudo-label",
        f"--teacher={teacher}",
        f"--data={tmp_path / 'data'}",
        f"--out={tmp_path / 'out'}",
    ]
    folder = tmp_path / "data"
    left_out = f"20 of 24 files in '{folder}' are no pictures, such as '{folder / '00.heic'}'"
    assert cli.main(command) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.endswith(f"{left_out}; --max_bad_records=20 or more leaves them out")
    assert not (tmp_path / "out").exists()
    assert cli.main([*command, "--max_bad_records=20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"left out: {left_out}" in lines and "4 were seen" in lines[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_confidence": 1.5}, "min_confidence is 1.5; accepted"),
        ({"labels": "firm"}, "unknown labels 'firm'; accepted: hard, soft"),
        ({"per_class": -1}, "per_class must be a positive integer"),
        ({"data": "/no/such/folder"}, "data '/no/such/folder' is not a directory"),
        ({"data": "digts"}, "unknown dataset 'digts'; did you mean digits"),
        ({"min_confidence": 0.9999}, "sure of no picture: no confidence reaches 0.9999"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(teacher, pictures, tmp_path, arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        pseudo_label(teacher, **{"data": str(pictures), "out": tmp_path / "out", **arguments})
    assert "\n" not in str(caught.value)


def test_records_and_datasets_are_pictures_too(teacher, labelled, tmp_path):
    out, manifest = labelled
    again = pseudo_label(teacher, str(out), tmp_path / "records", split="pseudo", labels="hard", shard_size=5)
    assert again["seen"] == 12 and again["labels"] == "hard"
    assert all(probabilities == () for _, probabilities, _ in _records(tmp_path / "records"))
    digits = pseudo_label(
        teacher, "digits", tmp_path / "digits", "test[:30]", str(tmp_path), min_confidence=0, shard_size=16
    )
    assert digits["seen"] == 30 and sum(row["candidates"] for row in digits["per_class"].values()) == 30


def test_balance_takes_the_surest_and_repeats_evenly():
    labels = np.array([0, 0, 0, 0, 1, 1, 3])
    confidences = np.array([0.5, 0.9, 0.7, 0.9, 0.4, 0.6, 0.8])
    chosen = selection.balance(labels, confidences, 4, 3, seed=0)
    assert chosen.copies[:4].tolist() == [0, 1, 1, 1]
    assert sorted(chosen.copies[4:6].tolist()) == [1, 2] and chosen.copies[6] == 3
    assert chosen.candidates.tolist() == [4, 2, 0, 1] and chosen.taken.tolist() == [3, 2, 0, 1]
    mean = selection.balance(labels, confidences, 4, None, seed=0)
    assert mean.per_class == 2 and mean.copies.sum() == 6  # 7 of 3 classes


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
    """Eight labelled pictures, all of them white."""
    root = tmp_path_factory.mktemp("own")
    white = tf.io.encode_png(np.full([8, 8, 3], 255, np.uint8)).numpy()
    with tf.io.TFRecordWriter(str(root / records.shard_name("train", 0, 1))) as writer:
        for index in range(8):
            writer.write(records.record(white, index % 3))
    (root / "classes.txt").write_text("\n".join(NAMES))
    return str(root)


def test_batches_hold_the_share_of_pseudo_labels_and_epochs_are_of_the_others(labelled, own):
    recipe = dataclasses.replace(PSEUDO, pseudo_labels=str(labelled[0]))
    assert Dataset.open(recipe, own).steps_per_epoch == 2
    batches = [(x.numpy(), y.numpy()) for x, y in Dataset.open(recipe, own).train()]
    assert len(batches) == 10
    white = (1 - np.array(recipe.mean)) / recipe.std
    for images, targets in batches:
        assert images.shape == (8, 8, 8, 3) and targets.shape == (8, 3)
        np.testing.assert_allclose(images[:4], np.broadcast_to(white, [4, 8, 8, 3]), atol=1e-5)
        np.testing.assert_allclose(targets.sum(axis=1), 1, atol=1e-5)
        assert set(np.unique(targets[:4])) == {0.0, 1.0} and (targets[4:] > 0).all()
    seen = [
        image.tobytes() + target.tobytes()
        for x, y in batches
        for image, target in zip(x[4:], y[4:], strict=True)
    ]
    first, second = (set(seen[begin : begin + 12]) for begin in (0, 12))  # three passes of 12 in 40
    assert first == second
    rest = [(x.numpy(), y.numpy()) for x, y in Dataset.open(recipe, own).train(5)]
    for (images, targets), (wanted, wanted_targets) in zip(rest, batches[5:], strict=True):
        np.testing.assert_array_equal(images, wanted)
        np.testing.assert_array_equal(targets, wanted_targets)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "pseudo_labels must be a folder that `lambdanet pseudo-label` wrote, got ''"),
        ({"pseudo_labels": "/none"}, "data_dir must be the folder of the TFRecords: .*, got '/none'"),
    ],
)
def test_recipes_without_their_pseudo_labels_are_refused(own, changes, message):
    with pytest.raises(InputError, match=message):
        Dataset.open(dataclasses.replace(PSEUDO, **changes), own).train()


def test_pseudo_labels_of_other_classes_are_refused(labelled, own, tmp_path):
    for file in labelled[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "classes.txt").write_text("red\ngreen\nviolet\n")
    with pytest.raises(InputError, match="class 2 of pseudo_labels .* is 'violet'; accepted: 'blue'"):
        Dataset.open(dataclasses.replace(PSEUDO, pseudo_labels=str(tmp_path)), own).train()


def test_a_record_with_a_label_of_no_class_is_named(own, tmp_path):
    (tmp_path / "classes.txt").write_text("red\ngreen\n")
    for file in ("train-00000-of-00001.tfrecord",):
        (tmp_path / file).write_bytes((type(tmp_path)(own) / file).read_bytes())
    recipe = dataclasses.replace(PSEUDO, num_classes=2, pseudo_share=0.0)
    bad = BadRecords()
    message = "label of record 'train-00000-of-00001.tfrecord:2' must be the number of a class, got 2"
    with pytest.raises(InputError, match=message), bad.as_input_errors():
        list(Dataset.open(recipe, str(tmp_path), bad).eval())
