# SPDX-License-Identifier: Apache-2.0
"""Accuracies and loss of models with known logits, against a count by hand."""

import csv
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from helpers import ENGINES
from processes import run_code
from refusals import refused
from training_runs import recipe_with, run_exported, write_run

from lambdanet.training import confusion
from lambdanet.training.data import tfds_source
from lambdanet.training.data.task import task_of
from lambdanet.training.evaluate import average_mirrors, evaluate, outputs
from lambdanet.training.serving.export import export
from lambdanet.training.tasks import classification

pytestmark = pytest.mark.usefixtures("one_block")


def measure(predict, batches):
    return classification.measure(outputs(predict, batches)).values


def summary(result, num_classes):
    line = classification.summary(result, num_classes)
    return f"{result['dataset']} {result['split']}: {line}"


def by_hand(logits, labels):
    """top-1, top-5, loss and calibration error, one example after the other."""
    top_1 = top_5 = loss = 0.0
    bins = [0.0] * 15
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda index: -row[index])
        top_1 += label == order[0]
        top_5 += label in order[:5]
        total = sum(math.exp(value) for value in row)
        loss += math.log(total) - row[label]
        confidence = math.exp(max(row)) / total
        bins[int(15 * confidence)] += confidence - (label == order[0])
    count = len(labels)
    return {
        "examples": count,
        "top_1": top_1 / count,
        "top_5": top_5 / count,
        "loss": loss / count,
        "calibration_error": sum(map(abs, bins)) / count,
    }


@pytest.mark.parametrize(
    ("num_classes", "batch_size"), [(2, 1), (5, 7), (6, 64), (50, 7)]
)
def test_every_example_counts_once(num_classes, batch_size):
    random = np.random.default_rng(num_classes)
    logits = random.normal(size=[30, num_classes]).astype(np.float32) * 3
    labels = random.integers(0, num_classes, [30])
    batches = tf.data.Dataset.from_tensor_slices((logits, labels)).batch(batch_size)
    expected = by_hand(logits, labels)
    assert measure(np.asarray, batches) == pytest.approx(expected, abs=1e-6)


def test_constant_model_gets_no_credit():
    logits = np.zeros([100, 10], np.float32)
    labels = np.arange(100) % 10
    batches = tf.data.Dataset.from_tensor_slices((logits, labels)).batch(32)
    expected = {
        "examples": 100,
        "top_1": 0.1,
        "top_5": 0.5,
        "loss": math.log(10),
        "calibration_error": 0.0,  # all confidences are 0.1
    }
    assert measure(np.asarray, batches) == pytest.approx(expected, abs=1e-6)
    with refused("outputs that are not numbers"):
        measure(np.asarray, batches.map(lambda x, y: (x / 0.0, y)))


def test_logits_of_mirror_images_are_averaged():
    images = np.arange(6.0).reshape(1, 1, 6)
    assert (average_mirrors(lambda x: x[:, 0], images, False) == 2.5).all()
    assert (average_mirrors(np.negative, images, True) == -images).all()


def test_summary_without_top_5_of_five_classes():
    numbers = {"top_1": 0.975, "top_5": 1.0, "loss": 0.25, "calibration_error": 0.03}
    result = {"dataset": "digits", "split": "test", "examples": 364, **numbers}
    assert "top-5 100.00 %" in summary(result, 10)
    assert "top-5" not in summary(result, 5)


def test_files_of_an_evaluation(tmp_path, monkeypatch):
    """The images that are wrong, with their class and the other, and the accuracy by confidence."""
    p = [[0.76, 0.14, 0.1], [0.1, 0.28, 0.62], [0.36, 0.54, 0.1], [0.1, 0.16, 0.74]]
    task = task_of(recipe_with("digits", num_classes=3))
    found = task.measure([(np.log(p), np.array([0, 1, 0, 2]))], tmp_path)
    names = ["cat", "dog", "owl"]
    dataset = SimpleNamespace(class_names=names, eval_names=lambda: "abcd")
    figures = []
    draw = confusion._png

    def keep(figure):
        figures.append(figure)
        return draw(figure)

    monkeypatch.setattr(confusion, "_png", keep)
    task.write(tmp_path, dataset, found, "title")
    written = (tmp_path / "wrong.csv").read_text()
    assert written == "image,class,predicted\nb,dog,owl\nc,cat,dog\n"
    axes, counts = figures[-1].axes
    # The first line is that of perfect calibration.
    points = axes.lines[1].get_xydata()
    np.testing.assert_allclose(points, [[0.54, 0], [0.62, 0], [0.75, 1]], atol=1e-6)
    heights = [bar.get_height() for bar in counts.patches]
    assert heights[8:12] == [1, 1, 0, 2]


@pytest.fixture(scope="module")
def run(tmp_path_factory, data_dir, one_block):
    """The folder of a run on digits."""
    path = tmp_path_factory.mktemp("run") / "model"
    recipe = recipe_with("digits", input_size=16, eval_split="test[:60]")
    write_run(path, recipe, list("0123456789"), data_dir)
    return path


def test_exported_model_has_accuracy_of_evaluate(run, data_dir, tmp_path, capsys):
    result = evaluate(run, data_dir)
    assert capsys.readouterr().out.endswith(f"{summary(result, 10)}\n")
    assert (result["dataset"], result["split"]) == ("digits", "test[:60]")

    export(run, tmp_path / "served")
    examples = tfds_source.Digits(data_dir=data_dir).as_dataset(
        split="test[:60]", batch_size=-1
    )
    images = tf.repeat(examples["image"], 3, -1)
    found = run_exported(tmp_path / "served", images, "saved_model")["probabilities"]
    expected = by_hand(np.log(found.numpy()), examples["label"].numpy())
    assert {key: result[key] for key in expected} == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_other_split_with_class_table(run, tmp_path, capsys):
    out = tmp_path / "new/folder"
    split = "train[:100]"
    result = evaluate(run, split=split, out=out)
    assert (result["examples"], result["split"]) == (100, split)
    assert "confusion.png" in capsys.readouterr().out
    with (out / "wrong.csv").open() as file:
        assert all("digits-train" in row["image"] for row in csv.DictReader(file))
    with refused("classes.csv' cannot be written"):
        evaluate(run, split=split, out=out / "classes.csv")
    (out / "wrong.csv").write_text("mine\n")
    evaluate(run, split="train[:99]", out=out, overwrite=True)
    assert (out / "wrong.csv").read_text() != "mine\n"


@pytest.mark.slow
def test_checkpoint_of_tensorflow_is_evaluated_on_jax(run):
    words = ["evaluate", f"--model_dir={run}", "--backend=jax", "--split=test[:20]"]
    code = "from programs import small_model; from lambdanet import cli; from lambdanet.models import zoo; "
    code += "zoo.MODELS['lambda_resnet_tiny'] = small_model.ONE_BLOCK; "
    code += f"print(cli.main({words}), small_model.keras.config.backend())"
    done = run_code(code, **ENGINES["jax"], TF_CPP_MIN_LOG_LEVEL="3")
    shown, status = done.stdout.splitlines()
    assert (status, done.stderr) == ("0 jax", "")
    expected, found = (
        [float(n) for n in re.findall(r"[\d.]+", line)]
        for line in (summary(evaluate(run, split="test[:20]"), 10), shown)
    )
    assert found == pytest.approx(expected, abs=2e-4)
