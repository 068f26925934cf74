# SPDX-License-Identifier: Apache-2.0
"""Tests of pseudo-labels with a teacher of colors: selection, files, resumption, and training."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from helpers import damage_record
from PIL import Image

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


@pytest.fixture(scope="module")
def teacher(color_teacher):
    """The classifier of colors."""
    return color_teacher


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Pictures of the colors in several formats, and a damaged one."""
    root = tmp_path_factory.mktemp("pictures")
    for channel, (name, count) in enumerate(CONFIDENT.items()):
        for index in range(count):
            color = np.zeros(3, np.uint8)
            color[channel] = 255 - 6 * index  # in descending order of confidence
            _write(
                root / name / f"{index:02d}.{('png', 'jpg', 'bmp')[index % 3]}", color
            )
    for index in range(GRAY):
        _write(root / "gray" / f"{index}.png", np.full(3, 100 + index))
    (root / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing more")
    return root


def _write(path, color):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.tile(np.asarray(color, np.uint8), (9, 12, 1))).save(path)


@pytest.fixture(scope="module")
def labeled(teacher, pictures, tmp_path_factory):
    """The output of the command: soft labels, four records per class, in parts of ten pictures."""
    out = tmp_path_factory.mktemp("labeled")
    flags = [
        "--min_confidence=0.5",
        "--per_class=4",
        "--shard_size=10",
        "--batch_size=4",
    ]
    command = [
        "pseudo-label",
        f"--saved_model={teacher}",
        f"--data={pictures}",
        f"--out={out}",
        *flags,
    ]
    assert cli.main(command) == 0
    return out, json.loads((out / "manifest.json").read_text())


def _cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def _records(folder):
    """Returns the label, probabilities and color of each record in a file, or in the files of a folder."""
    found = []
    for path in sorted(folder.glob("*.tfrecord")) if folder.is_dir() else [folder]:
        for text in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            features = tf.train.Example.FromString(text).features.feature
            image = tf.io.decode_image(
                features["image/encoded"].bytes_list.value[0], channels=3
            )
            probabilities = tuple(
                features["image/class/probabilities"].float_list.value
            )
            (index,) = features["image/class/label"].int64_list.value
            found.append((index, probabilities, image[4, 6].numpy()))
    return found


def test_balanced_records_of_the_most_confident(labeled):
    out, manifest = labeled
    counts = manifest["per_class"]
    assert {name: row["candidates"] for name, row in counts.items()} == CONFIDENT
    assert {name: row["taken"] for name, row in counts.items()} == {
        "red": 4,
        "green": 4,
        "blue": 2,
    }
    assert {row["records"] for row in counts.values()} == {4}
    found = _records(out)
    assert np.bincount([index for index, _, _ in found]).tolist() == [4, 4, 4]
    for index, probabilities, color in found:
        assert int(np.argmax(color)) == index == int(np.argmax(probabilities))
        assert (
            sum(probabilities) == pytest.approx(1, abs=1e-5)
            and max(probabilities) >= 0.5
        )
    reds = sorted(int(color[0]) for index, _, color in found if index == 0)
    assert reds[0] > 255 - 6 * 4 - 3  # 3: the error of JPEG


def test_manifest_counts_pictures(labeled, capsys):
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
    labeled, teacher, pictures, capsys
):
    out, manifest = labeled
    before = {file: file.stat().st_mtime_ns for file in out.iterdir()}
    same = {"min_confidence": 0.5, "per_class": 4, "shard_size": 10}
    assert pseudo_label(teacher, str(pictures), out, **same) == manifest
    assert "already finished: 12 records of 10 pictures" in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in out.iterdir()} == before
    with pytest.raises(
        InputError, match=r"per_class must be 4 as in the run in .*, got 5"
    ):
        pseudo_label(teacher, str(pictures), out, **{**same, "per_class": 5})


@pytest.mark.parametrize("when", ["predicting", "writing"])
def test_interrupted_run_resumes(
    labeled, teacher, pictures, tmp_path, monkeypatch, when
):
    """Finished parts and files are kept, and the result equals that of an uninterrupted run."""
    same = {"min_confidence": 0.5, "per_class": 4, "shard_size": 10, "batch_size": 4}
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

    with monkeypatch.context() as patch:
        if when == "predicting":
            patch.setattr(Classifier, "classify", interrupted_classify)
        else:
            patch.setattr(records, "write_records", interrupted_write)
        with pytest.raises(InputError, match="^stop$"):
            pseudo_label(teacher, str(pictures), tmp_path, **same)
    assert not (tmp_path / "manifest.json").exists()
    kept = {
        file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()
    }
    kept = {
        file: time
        for file, time in kept.items()
        if file.suffix in (".npz", ".tfrecord")
    }
    assert kept
    again = []

    def counted(self, contents, batch_size):
        again.extend(contents)
        return classify(self, contents, batch_size)

    monkeypatch.setattr(Classifier, "classify", counted)
    assert pseudo_label(teacher, str(pictures), tmp_path, **same) == labeled[1]
    assert len(again) == (
        labeled[1]["seen"] - 10 * len(kept) if when == "predicting" else 0
    )
    for file, time in kept.items():
        assert file.suffix == ".npz" or file.stat().st_mtime_ns == time
    names = [shard["file"] for shard in labeled[1]["shards"]]
    assert sorted(file.name for file in tmp_path.glob("*.tfrecord")) == names
    for name in names:
        assert (tmp_path / name).read_bytes() == (labeled[0] / name).read_bytes()


@pytest.fixture
def unfinished(teacher, pictures, tmp_path, monkeypatch):
    """A run that ended before its first records, with its call and a copy of the pictures."""
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(pictures / "red", data)
    same = {"data": str(data), "out": out, "min_confidence": 0.5, "per_class": 4}

    def interrupted(path, contents):
        raise InputError("stop")

    with monkeypatch.context() as patch, pytest.raises(InputError, match="^stop$"):
        patch.setattr(records, "write_records", interrupted)
        pseudo_label(teacher, **same)
    return same


def test_pictures_that_change_after_their_prediction_are_rejected(teacher, unfinished):
    picture = Path(unfinished["data"]) / "00.png"
    content = picture.read_bytes()
    picture.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(
        InputError,
        match="pictures were changed after they were predicted; remove '(.*)'",
    ) as caught:
        pseudo_label(teacher, **unfinished)
    Path(str(caught.value).split("'")[1]).unlink()
    assert pseudo_label(teacher, **unfinished)["seen"] == CONFIDENT["red"]


def test_damaged_progress_is_one_line(teacher, unfinished):
    progress = unfinished["out"] / ".progress"
    _cut(part := progress / "part-000000.npz")
    with pytest.raises(
        InputError, match=r"part-000000.npz' is damaged \(.*\); remove it"
    ):
        pseudo_label(teacher, **unfinished)
    part.unlink()
    (progress / "settings.json").write_text("[]")
    with pytest.raises(
        InputError, match="out .* has files of another command or version"
    ):
        pseudo_label(teacher, **unfinished)


def test_files_of_another_run_are_not_kept(teacher, unfinished):
    file = unfinished["out"] / "pseudo-00000-of-00001.tfrecord"
    file.write_bytes(b"nothing")
    manifest = pseudo_label(teacher, **unfinished)
    assert (
        manifest["shards"][0]["file"] == file.name
        and len(_records(file)) == manifest["shards"][0]["records"]
    )


def test_records_equal_those_of_the_loop_before_beam(teacher, tmp_path):
    """The saved answer was written by the program that predicted and selected in one loop."""
    data = tmp_path / "data"
    data.mkdir()
    for channel, (name, count) in enumerate(CONFIDENT.items()):
        for index in range(count):
            color = np.zeros(3, np.uint8)
            color[channel] = 255 - 6 * index
            _write(data / name / f"{index:02d}.{('png', 'bmp')[index % 2]}", color)
    for index in range(GRAY):
        _write(data / "gray" / f"{index}.png", np.full(3, 100 + index))
    (data / "broken.jpg").write_bytes(b"nothing")
    for number, answer in enumerate(json.loads(ANSWER.read_text())):
        out = tmp_path / str(number)
        source = data if "split" not in answer["settings"] else tmp_path / "0"
        pseudo_label(teacher, str(source), out, **answer["settings"])
        shards = sorted(out.glob("*.tfrecord"))
        assert [" ".join(_names(shard)) for shard in shards] == answer["shards"]


def _names(shard):
    """Yields the label of each record in a file, and the color and number of its picture."""
    for label, _, color in _records(shard):
        yield f"{label}:{NAMES[int(np.argmax(color))]}{(255 - int(color.max())) // 6:02d}"


def test_first_name_is_taken_where_confidences_are_equal(teacher, tmp_path):
    # Equal colors, and one pixel that says which it is.
    for name in ("b.png", "a.png", "c.png"):
        pixels = np.zeros([8, 8, 3], np.uint8)
        pixels[..., 0] = 250
        pixels[0, "abc".index(name[0]), 0] = 249
        (tmp_path / "data").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "data" / name)
    pseudo_label(
        teacher, str(tmp_path / "data"), tmp_path / "out", per_class=2, shard_size=1
    )
    files = sorted((tmp_path / "out").glob("*.tfrecord"))
    images = {
        tf.train.Example.FromString(
            next(tf.data.TFRecordDataset(str(file)).as_numpy_iterator())
        )
        .features.feature["image/encoded"]
        .bytes_list.value[0]
        for file in files
    }
    assert images == {
        (tmp_path / "data" / name).read_bytes() for name in ("a.png", "b.png")
    }


def test_too_many_other_files_raise(teacher, tmp_path, capsys):
    for index in range(24):
        _write(tmp_path / "data" / f"{index:02d}.png", (255, 0, 0))
    for path in sorted((tmp_path / "data").iterdir())[:20]:
        path.rename(path.with_suffix(".heic"))
    folder = tmp_path / "data"
    command = [
        "pseudo-label",
        f"--saved_model={teacher}",
        f"--data={folder}",
        f"--out={tmp_path / 'out'}",
    ]
    left_out = (
        f"20 of 24 files in '{folder}' are no pictures, such as '{folder / '00.heic'}'"
    )
    left_out += " (HEIC has to be converted, to JPEG for example)"
    assert cli.main(command) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.endswith(f"{left_out}; --max_bad_records=20 or more leaves them out")
    assert not (tmp_path / "out").exists()
    assert cli.main([*command, "--max_bad_records=20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"left out: {left_out}" in lines and "4 pictures seen" in lines[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_confidence": 1.5}, "min_confidence must be from 0 to 1, got 1.5"),
        ({"label_mode": "firm"}, "unknown label_mode 'firm'; accepted: hard, soft"),
        ({"per_class": -1}, "per_class must be a positive integer"),
        (
            {"data": "/no/such"},
            "data must be a folder of pictures or TFRecords, .*, got '/no/such'",
        ),
        ({"data": "digts"}, "unknown dataset 'digts'; did you mean digits"),
        ({"min_confidence": 0.9999}, "no confidence reaches 0.9999"),
        (
            {"max_bad_records": 0},
            "1 records cannot be read, the last of them broken.jpg",
        ),
    ],
)
def test_wrong_argument_is_one_line(teacher, pictures, tmp_path, arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        pseudo_label(
            teacher, **{"data": str(pictures), "out": tmp_path / "out", **arguments}
        )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("folders", ["a a", "a a/b", "a/b a", "a a/../a"])
def test_out_and_data_are_apart(tmp_path, folders):
    data, out = (f"{tmp_path}/{name}" for name in folders.split())
    (tmp_path / "a" / "b").mkdir(parents=True)
    _write(Path(data) / "red.png", (255, 0, 0))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        InputError, match="out must be a folder apart from the data in '.*', got '"
    ):
        pseudo_label("no teacher", data, out)
    assert sorted(tmp_path.rglob("*")) == before


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
    list(
        Dataset.open(
            dataclasses.replace(PSEUDO, pseudo_labels=str(tmp_path)), own, bad
        ).train()
    )
    assert sorted(bad.names) == [
        f"{file}:{number}" for number in range(lost % count, count)
    ]


@pytest.mark.parametrize(("data", "number"), [("tfrecord", 1), ("digits", 7)])
def test_damaged_records_to_label_are_counted(teacher, own, tmp_path, data, number):
    root = tmp_path / "data"
    if data == "digits":
        tfds.builder(data, data_dir=str(root)).download_and_prepare()
        (file,) = root.glob("**/*test*tfrecord*")
        arguments = {"data": data, "data_dir": str(root), "split": "test[:8]"}
    else:
        shutil.copytree(own, root)
        (file,) = root.glob("train*")
        arguments = {"data": str(root)}
    damage_record(file, number)
    arguments |= {"saved_model": teacher, "min_confidence": 0}
    manifest = pseudo_label(**arguments, out=tmp_path / "out")
    assert manifest["seen"] == 8
    assert manifest["unreadable"] == [
        f"{file.name}:{lost}" for lost in range(number, 8)
    ]
    with pytest.raises(
        InputError, match=f"records cannot be read, the last of them {file.name}:7"
    ):
        pseudo_label(**arguments, out=tmp_path / "strict", max_bad_records=7 - number)


def test_pictures_of_records_and_datasets(teacher, labeled, tmp_path):
    out, _ = labeled
    settings = {"split": "pseudo", "label_mode": "hard", "shard_size": 5}
    again = pseudo_label(teacher, str(out), tmp_path / "records", **settings)
    assert again["seen"] == 12 and again["labels"] == "hard"
    assert all(
        probabilities == () for _, probabilities, _ in _records(tmp_path / "records")
    )
    arguments = (teacher, "digits", tmp_path / "digits", "test[:30]", str(tmp_path))
    digits = pseudo_label(*arguments, min_confidence=0, shard_size=16)
    assert (
        digits["seen"] == 30
        and sum(row["candidates"] for row in digits["per_class"].values()) == 30
    )


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
    **{
        "dataset": "tfrecord",
        "train_split": "train",
        "eval_split": "train",
        "num_classes": 3,
    },
    **{"input_size": 8, "global_batch_size": 8, "pseudo_share": 0.5, "epochs": 5},
    **{"augmentation": "none", "label_smoothing": 0.0},
)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Eight labeled white pictures."""
    root = tmp_path_factory.mktemp("own")
    white = tf.io.encode_png(np.full([8, 8, 3], 255, np.uint8)).numpy()
    with tf.io.TFRecordWriter(str(root / records.shard_name("train", 0, 1))) as writer:
        for index in range(8):
            writer.write(records.encode_record(white, index % 3))
    (root / "classes.txt").write_text("\n".join(NAMES))
    return str(root)


def test_batches_have_the_share_of_pseudo_labels(labeled, own):
    recipe = dataclasses.replace(PSEUDO, pseudo_labels=str(labeled[0]))
    assert Dataset.open(recipe, own).steps_per_epoch == 2
    batches = [(x.numpy(), y.numpy()) for x, y in Dataset.open(recipe, own).train()]
    assert len(batches) == 10
    white = (1 - np.array(recipe.mean)) / recipe.std
    for images, targets in batches:
        assert images.shape == (8, 8, 8, 3) and targets.shape == (8, 3)
        np.testing.assert_allclose(
            images[:4], np.broadcast_to(white, [4, 8, 8, 3]), atol=1e-5
        )
        np.testing.assert_allclose(targets.sum(axis=1), 1, atol=1e-5)
        assert set(np.unique(targets[:4])) == {0.0, 1.0} and (targets[4:] > 0).all()
    pairs = (pair for x, y in batches for pair in zip(x[4:], y[4:], strict=True))
    seen = [image.tobytes() + target.tobytes() for image, target in pairs]
    # Three passes of 12 in 40.
    first, second = (set(seen[begin : begin + 12]) for begin in (0, 12))
    assert first == second
    rest = [(x.numpy(), y.numpy()) for x, y in Dataset.open(recipe, own).train(5)]
    for left, right in zip(rest, batches[5:], strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {},
            "pseudo_labels must be a folder that `lambdanet pseudo-label` wrote, got ''",
        ),
        (
            {"pseudo_labels": "/none"},
            "data_dir must be the folder of the TFRecords: .*, got '/none'",
        ),
    ],
)
def test_recipe_without_pseudo_labels_is_rejected(own, changes, message):
    with pytest.raises(InputError, match=message):
        Dataset.open(dataclasses.replace(PSEUDO, **changes), own).train()


@pytest.mark.parametrize("labels", ["hard", "soft"])
def test_pseudo_labels_in_another_order_are_matched_by_name(
    labeled, own, tmp_path, capsys, labels
):
    """Their numbers, and the columns of soft labels, become those of the dataset."""
    shutil.copytree(labeled[0], tmp_path, dirs_exist_ok=True)
    order = ["blue", "red", "green"]
    (tmp_path / "classes.txt").write_text("\n".join(order))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(
        json.dumps({**manifest, "labels": labels, "classes": order})
    )
    dataset = Dataset.open(
        dataclasses.replace(PSEUDO, pseudo_labels=str(tmp_path)), own
    )
    source = dataset._pseudo_labels
    assert (
        "the data has the classes of dataset tfrecord in another order"
        in capsys.readouterr().out
    )
    assert (source.class_names, source.soft) == (list(NAMES), labels == "soft")
    examples = list(source.examples(records.PSEUDO, None))
    # In the dataset, by the number in the records.
    numbers = [NAMES.index(name) for name in order]
    for example, (label, probabilities, _) in zip(
        examples, _records(tmp_path), strict=True
    ):
        assert int(source.label(example)) == numbers[label]
        np.testing.assert_array_equal(
            np.take(source.probabilities(example), numbers), probabilities
        )
    assert len(list(dataset.train())) == 10


def test_pseudo_labels_of_other_classes_are_rejected(labeled, own, tmp_path):
    shutil.copytree(labeled[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "classes.txt").write_text("red\ngreen\nviolet\n")
    with pytest.raises(
        InputError, match="class 2 of pseudo_labels .* must be 'blue', .* got 'violet'"
    ):
        Dataset.open(
            dataclasses.replace(PSEUDO, pseudo_labels=str(tmp_path)), own
        ).train()
