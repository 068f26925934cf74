# SPDX-License-Identifier: Apache-2.0
"""Several labels for a picture: tables and records, loss and metric, and a run up to its predictions."""

import csv
import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import keras
import numpy as np
import pyarrow
import pytest
import tensorflow as tf
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
from pyarrow import parquet
from refusals import refused
from sklearn import metrics
from training_runs import (
    IN_FOLDERS,
    ON_TENSORFLOW,
    assert_resumes,
    open_dataset,
    run_exported,
    write_run,
)

from lambdanet.training.data import records
from lambdanet.training.data.class_names import Classes
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.task import task_of
from lambdanet.training.evaluate import evaluate
from lambdanet.training.tasks.losses import (
    NUM_BINS,
    MeanAveragePrecision,
    MultilabelLoss,
)
from lambdanet.training.tasks.multilabel import MultilabelOutputs
from lambdanet.training.train import train

pytestmark = pytest.mark.usefixtures("small_networks")

NAMES = ["red", "green", "blue"]


def draw_labels():
    """Returns labels [96, 3], of which a tenth are unknown."""
    random = default_rng(0)
    is_unknown = random.random([96, 3]) < 0.1
    return np.where(is_unknown, np.nan, random.random([96, 3]) < 0.4)


LABELS = draw_labels()
RECIPE = replace(
    IN_FOLDERS,
    task="multilabel",
    loss="binary_cross_entropy",
    positive_weights="balanced",
    cutmix_alpha=1.0,
)


def write_table(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def split_of(number):
    return "train" if number < 64 else "validation"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Squares of the colors that a picture has on gray, and a table with a column for each."""
    root = tmp_path_factory.mktemp("pictures")
    rows = [["file", *NAMES, "split"]]
    for number, label in enumerate(LABELS):
        pixels = np.full([24, 24, 3], 128, np.uint8)
        for place in np.flatnonzero(label == 1):
            pixels[8 * place : 8 * place + 8, :12] = 255 * np.eye(3)[place]
        keras.utils.save_img(root / f"{number}.png", pixels, scale=False)
        texts = ["" if np.isnan(value) else int(value) for value in label]
        rows.append([f"{number}.png", *texts, split_of(number)])
    write_table(root / "colors.csv", rows)
    return root


@pytest.fixture(scope="module")
def recipe(pictures):
    return replace(RECIPE, labels=str(pictures / "colors.csv"))


@pytest.fixture(scope="module")
def run(recipe, tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    train(recipe, path)
    return path


def open_table(path):
    return Dataset.open(replace(RECIPE, labels=str(path)))


def logits_of(probabilities):
    return np.log(probabilities / (1 - probabilities))


def read_labels(dataset):
    return np.concatenate([labels for _, labels in dataset.eval().as_numpy_iterator()])


def test_columns_of_a_table(recipe):
    dataset = Dataset.open(recipe)
    assert dataset.class_names == NAMES
    assert_array_equal(read_labels(dataset), LABELS[64:])
    present = np.sum(LABELS[:64] == 1, axis=0)
    absent = np.sum(LABELS[:64] == 0, axis=0)
    assert_allclose(dataset.positive_weights, absent / present)


def test_presence_in_other_types(pictures):
    """Numbers that are not whole, texts and booleans in Parquet; all that is known of a class is 1."""
    file = pictures / "types.parquet"
    columns = {
        "file": [f"{number}.png" for number in range(6)],
        "split": ["train"] * 4 + ["validation"] * 2,
        "red": [1.0, 0.0, None, 1.0, 0.0, float("nan")],
        "label": ["1", " 0", "", "nan", "0.0", "1"],
        "green": [True, None, True, None, None, True],
    }
    parquet.write_table(pyarrow.table(columns), file)
    dataset = open_table(file)
    assert dataset.class_names == ["red", "label", "green"]
    expected = [[0, 0, np.nan], [np.nan, 1, 1]]
    assert_array_equal(read_labels(dataset), expected)
    assert dataset.positive_weights == (0.5, 1, 1)


def test_names_in_a_column(pictures):
    rows = [["split", "labels", "file"]]
    for number, label in enumerate(LABELS):
        given = [NAMES[place] for place in np.flatnonzero(label == 1)]
        rows.append([split_of(number), " ; ".join(given), f"{number}.png"])
    write_table(pictures / "names.csv", rows)
    dataset = open_table(pictures / "names.csv")
    assert dataset.class_names == sorted(NAMES)
    found = read_labels(dataset)
    assert_array_equal(found, np.nan_to_num(LABELS[64:])[:, [2, 1, 0]])


def test_class_that_the_data_lack_is_unknown(pictures):
    rows = [["file", "blue", "red", "split"]]
    for number, (red, _, blue) in enumerate(np.nan_to_num(LABELS).astype(int)):
        rows.append([f"{number}.png", blue, red, split_of(number)])
    write_table(pictures / "two.csv", rows)
    recipe = replace(RECIPE, labels=str(pictures / "two.csv"))
    trained = Classes("the run", 3, NAMES)
    dataset = Dataset.open(recipe, classes=trained, some_classes=True)
    expected = np.nan_to_num(LABELS[64:])
    expected[:, 1] = np.nan
    assert_array_equal(read_labels(dataset), expected)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["file", "labels", "red", "split"]], "either labels or one for each class"),
        ([["file", "red", "split"], ["a", 2, "train"]], "red in row 1.*0, 1 or nothing"),
        ([["file", "red", "split"], ["a", 1, ""]], "row 1.* a file and a split"),
        ([["file", "labels", "split"], ["a", "x;y", "train"], ["a", "x", "train"]], "one label"),
        ([["file", "red", "split"], ["a", 1, "train"]], "two or more labels"),
        ([["file;red;split"]], "by commas, not by semicolons"),
    ],
)  # fmt: skip
def test_tables_that_contradict_themselves(rows, message, tmp_path):
    write_table(tmp_path / "labels.csv", rows)
    with refused(message):
        open_table(tmp_path / "labels.csv")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "cross_entropy"}, "binary_cross_entropy with the task multilabel"),
        ({"pseudo_labels": "x", "pseudo_share": 0.5}, "pseudo_labels must be left out"),
        ({"task": "classification"}, "positive_weights must be empty without the task"),
        ({"positive_weights": (1.0,), "num_classes": 3}, "3 numbers, one per class"),
    ],
)
def test_recipes_that_contradict_themselves(changes, message):
    with refused(message):
        replace(RECIPE, **changes)


def test_data_with_one_label(tmp_path):
    with refused("folder with a table in labels, or tfrecord"):
        open_dataset(RECIPE, tmp_path)


def test_records_with_lists(tmp_path, pictures):
    contents = []
    lists = ([2, 0], [], [1], [0, 7], [1, 0, 1])  # no such class; not a list of numbers
    for numbers in lists:
        picture = (pictures / "0.png").read_bytes()
        bytes_list = tf.train.BytesList(value=[picture])
        features = {
            records.IMAGE: tf.train.Feature(bytes_list=bytes_list),
            records.LABEL: tf.train.Feature(
                int64_list=tf.train.Int64List(value=numbers)
            ),
        }
        contents.append(records.serialize(features))
    for split in ("train", "validation"):
        path = str(tmp_path / records.shard_name(split, 0, 1))
        records.write_records(path, contents)
    (tmp_path / records.CLASSES).write_text("\n".join(NAMES))
    dataset = open_dataset(RECIPE, tmp_path, dataset="tfrecord")
    expected = [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert_array_equal(read_labels(dataset), expected)
    assert len(dataset.bad_records.names) == 2


@pytest.mark.jax
def test_loss_is_the_mean_over_known_classes():
    logits = default_rng(1).normal(size=[96, 3]).astype(np.float32)
    weights = np.array([1.0, 2.0, 0.5])
    factors = np.array([3.0, 1.0, 1.5])
    loss = MultilabelLoss(0.1, weights, factors, reduction=None)
    found = loss(LABELS, keras.ops.convert_to_tensor(logits))
    target = 0.9 * LABELS + 0.05
    p = 1 / (1 + np.exp(-logits))
    losses = -weights * (factors * target * np.log(p) + (1 - target) * np.log(1 - p))
    expected = np.nan_to_num(np.nanmean(losses, axis=-1))
    assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    copy = MultilabelLoss.from_config(loss.get_config())
    assert copy.get_config() == loss.get_config()


@pytest.mark.jax
@pytest.mark.parametrize("seed", range(4))
def test_average_precision_is_that_of_scikit_learn(seed):
    """Of probabilities that are the middles of bins, with images of weight 0 and one class never present."""
    labels = LABELS.copy()
    labels[:, 2] = 0
    random = default_rng(seed)
    p = (random.integers(0, 40, [96, 3]) * 25 + 0.5) / NUM_BINS
    weights = random.integers(0, 2, 96)
    metric = MeanAveragePrecision(3)
    for part in np.split(np.arange(96), 4):
        logits = np.log(p[part] / (1 - p[part])).astype(np.float32)
        metric.update_state(labels[part], logits, sample_weight=weights[part])
    expected = []
    assert metric.thresholds()[2] == 0.5
    for place, threshold in zip((0, 1), metric.thresholds(), strict=False):
        known = ~np.isnan(labels[:, place]) & (weights > 0)
        score = p[known, place]
        label = labels[known, place]
        expected.append(metrics.average_precision_score(label, score))
        scores = [metrics.f1_score(label, score > limit) for limit in score - 1e-6]
        best = metrics.f1_score(label, score >= threshold)
        assert best == pytest.approx(max(scores))
    assert float(metric.result()) == pytest.approx(np.mean(expected), abs=1e-5)


def test_files_of_an_evaluation_are_those_of_scikit_learn(tmp_path):
    labels = LABELS[64:]
    found = default_rng(1).random([32, 3])
    thresholds = [0.3, 0.5, 0.8]
    (tmp_path / "best").mkdir()
    best = json.dumps({"thresholds": thresholds})
    (tmp_path / "best/best.json").write_text(best)
    task = task_of(replace(RECIPE, num_classes=3))
    result = task.measure([(logits_of(found), labels)], tmp_path)
    loss = np.mean(MultilabelLoss(reduction=None)(labels, logits_of(found)))
    assert result.values["loss"] == pytest.approx(float(loss), rel=1e-5)
    files = [f"{number}.png" for number in range(32)]
    dataset = SimpleNamespace(class_names=NAMES, eval_names=lambda: files)
    task.write(tmp_path, dataset, result, "title")
    with (tmp_path / "classes.csv").open() as file:
        rows = list(csv.DictReader(file))
    for place, (row, threshold) in enumerate(zip(rows, thresholds, strict=True)):
        known = ~np.isnan(labels[:, place])
        label = labels[known, place]
        score = found[known, place]
        is_taken = score >= threshold
        expected = {
            "class": place,
            "average_precision": metrics.average_precision_score(label, score),
            "precision": metrics.precision_score(label, is_taken),
            "recall": metrics.recall_score(label, is_taken),
            "f1": metrics.f1_score(label, is_taken),
            "present": label.sum(),
            "predicted": is_taken.sum(),
            "threshold": threshold,
        }
        assert row.pop("name") == NAMES[place]
        numbers = {name: float(text) for name, text in row.items()}
        assert numbers == pytest.approx(expected, abs=1e-4)
    wrong = [["image", "missed", "wrong"]]
    for file, label, is_taken in zip(files, labels, found >= thresholds, strict=True):
        missed = ";".join(np.array(NAMES)[(label == 1) & ~is_taken])
        other = ";".join(np.array(NAMES)[(label == 0) & is_taken])
        if missed or other:
            wrong.append([file, missed, other])
    with (tmp_path / "wrong.csv").open() as file:
        assert list(csv.reader(file)) == wrong


@pytest.mark.jax
@pytest.mark.slow
def test_stopped_run_resumes_to_same_weights(run, recipe, tmp_path):
    """Stopped within an epoch, with the counts of its metric, and in the evaluation of the next."""
    assert_resumes(run, tmp_path, recipe, on_train_batch_end=2, on_test_batch_end=8)


@ON_TENSORFLOW
@pytest.mark.slow
def test_evaluation_is_that_of_scikit_learn(run, served, pictures):
    """Its export has the same thresholds, those of the best epoch."""
    result = evaluate(run)
    best = json.loads((run / "best/best.json").read_text())
    assert result["thresholds"] == best["thresholds"]
    signatures = tf.saved_model.load(served).signatures
    images = [(pictures / f"{number}.png").read_bytes() for number in range(64, 96)]
    outputs = signatures["serving_bytes"](image_bytes=tf.constant(images))
    found = outputs["probabilities"].numpy()
    is_present = found >= np.float32(best["thresholds"])
    assert_array_equal(outputs["is_present"], is_present)
    expected = []
    for label, score in zip(LABELS[64:].T, found.T, strict=True):
        known = ~np.isnan(label)
        expected.append(metrics.average_precision_score(label[known], score[known]))
    assert result["average_precision"] == pytest.approx(np.mean(expected))


@ON_TENSORFLOW
def test_export_opens_its_data_once(recipe, tmp_path, monkeypatch, capsys):
    """Tables print their classes when they are opened."""
    from lambdanet.training.serving import export_runtimes
    from lambdanet.training.serving.export import Options, export

    write_run(tmp_path / "run", replace(recipe, num_classes=3), NAMES)
    monkeypatch.setattr(export_runtimes, "save", lambda trained, *_: trained)
    exported = export(tmp_path / "run", tmp_path / "out", options=Options("onnx"))
    assert exported.class_names == NAMES
    assert capsys.readouterr().out.count("3 classes in") == 1


@ON_TENSORFLOW
@pytest.mark.slow
def test_runtimes_get_probabilities_and_thresholds(run, tmp_path):
    from lambdanet.training.serving.export import Options, export

    with refused("calibrate must be False for the task 'multilabel', got True"):
        export(run, tmp_path, calibrate=True)
    parity = export(run, tmp_path, options=Options("onnx"))
    assert parity.probability_difference < 1e-5
    lines = (tmp_path / "thresholds.txt").read_text().split()
    best = json.loads((run / "best/best.json").read_text())
    assert_allclose(list(map(float, lines)), best["thresholds"])


def test_written_classes_are_present_from_their_threshold():
    outputs = MultilabelOutputs(NAMES, thresholds=[0.25, 0.5, 0.75])
    result = outputs.describe(np.float32([0.25, 0.75, 0.5]), 1)
    assert outputs.fields(result)["present"] == ["red", "green"]


@ON_TENSORFLOW
@pytest.mark.rest
@pytest.mark.slow
def test_other_commands_know_what_is_present(served, pictures, tmp_path, capsys):
    from lambdanet.explain.exported_network import load_exported_network
    from lambdanet.explain.pictures import explain
    from lambdanet.training.beam.pseudo_labels import pseudo_label
    from lambdanet.training.serving.predict import predict

    paths = [str(pictures / "65.png")]
    (result,) = predict(served, paths)
    image = np.array(keras.utils.load_img(paths[0]))[np.newaxis]
    (is_present,) = run_exported(served, image, "saved_model")["is_present"].numpy()
    assert result["present"] == list(np.array(NAMES)[is_present])
    capsys.readouterr()
    explain(partial(load_exported_network, served), paths, tmp_path / "explained")
    name, probability = result["top"][0]
    assert f": {name} ({100 * probability:.1f} %)" in capsys.readouterr().out
    with refused("one class for a picture, to label pictures"):
        pseudo_label(served, str(pictures), tmp_path / "labeled")
