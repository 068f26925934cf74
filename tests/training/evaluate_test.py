# SPDX-License-Identifier: Apache-2.0
"""Accuracies and loss of models with known logits, against a count by hand."""

import csv
import dataclasses
import math
import os
import re
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import ENGINES, ROOT, damage_record
from PIL import Image

from lambdanet import cli
from lambdanet.configs import get_recipe
from lambdanet.errors import InputError
from lambdanet.training.data import sources
from lambdanet.training.evaluate import evaluate, measure, summary
from lambdanet.training.serving.export import export
from lambdanet.training.train import train

pytestmark = pytest.mark.usefixtures("one_block")


def identity(num_classes):
    """A model whose logits are its inputs."""
    return keras.Sequential(
        [keras.Input([num_classes]), keras.layers.Activation("linear")]
    )


def by_hand(logits, labels):
    """top-1, top-5 and loss, one example after the other."""
    top_1 = top_5 = loss = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda index: -row[index])
        top_1 += label == order[0]
        top_5 += label in order[:5]
        loss += math.log(sum(math.exp(value) for value in row)) - row[label]
    count = len(labels)
    return {
        "examples": count,
        "top_1": top_1 / count,
        "top_5": top_5 / count,
        "loss": loss / count,
    }


@pytest.mark.parametrize("num_classes", [2, 5, 6, 50])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_every_example_counts_once(num_classes, batch_size):
    random = np.random.default_rng(num_classes)
    logits = random.normal(size=[30, num_classes]).astype(np.float32) * 3
    labels = random.integers(0, num_classes, [30])
    batches = tf.data.Dataset.from_tensor_slices((logits, labels)).batch(batch_size)
    assert measure(identity(num_classes), batches) == pytest.approx(
        by_hand(logits, labels), abs=1e-6
    )


def test_constant_model_gets_no_credit():
    labels = np.arange(100) % 10
    batches = tf.data.Dataset.from_tensor_slices(
        (np.zeros([100, 10], np.float32), labels)
    ).batch(32)
    expected = {"examples": 100, "top_1": 0.1, "top_5": 0.5, "loss": math.log(10)}
    assert measure(identity(10), batches) == pytest.approx(expected, abs=1e-6)


def test_loss_without_dropout_and_penalties():
    penalty = keras.regularizers.L2(100.0)
    model = keras.Sequential(
        [
            keras.Input([3]),
            keras.layers.Dropout(0.9),
            keras.layers.Dense(
                3, kernel_initializer="identity", kernel_regularizer=penalty
            ),
        ]
    )
    logits, labels = np.eye(3, dtype=np.float32), np.arange(3)
    batches = tf.data.Dataset.from_tensor_slices((logits, labels)).batch(2)
    assert measure(model, batches) == pytest.approx(by_hand(logits, labels), abs=1e-6)


def test_summary_without_top_5_of_five_classes():
    numbers = {"examples": 364, "top_1": 0.975, "top_5": 1.0, "loss": 0.25}
    result = {"dataset": "digits", "split": "test", **numbers}
    assert (
        summary(result, 10)
        == "digits test: 364 images, top-1 97.50 %, top-5 100.00 %, loss 0.2500"
    )
    assert summary(result, 5) == "digits test: 364 images, top-1 97.50 %, loss 0.2500"


@pytest.fixture(scope="module")
def run(tmp_path_factory, data_dir):
    """The folders of a short run on digits, and of its data."""
    path = tmp_path_factory.mktemp("run") / "model"
    short = {
        "epochs": 1,
        "warmup_epochs": 0.0,
        "bn_momentum": 0.5,
        "augmentation": "none",
    }
    short["input_size"] = 16
    recipe = dataclasses.replace(get_recipe("digits"), **short)
    train(recipe, path, data_dir)
    return path, data_dir


def test_exported_model_has_accuracy_of_evaluate(run, tmp_path, capsys):
    model_dir, data_dir = run
    result = evaluate(model_dir, data_dir)
    assert capsys.readouterr().out == f"{summary(result, 10)}\n"
    assert (result["dataset"], result["split"]) == ("digits", "test")

    served = tf.saved_model.load(export(model_dir, tmp_path / "served"))
    assert [name.decode() for name in served.class_names().numpy()] == list(
        "0123456789"
    )
    examples = sources.Digits(data_dir=data_dir).as_dataset(split="test", batch_size=-1)
    images, labels = tf.repeat(examples["image"], 3, -1), examples["label"].numpy()
    probabilities = served.signatures["serving_default"](images=images)[
        "probabilities"
    ].numpy()
    expected = by_hand(np.log(probabilities), labels)
    assert {key: result[key] for key in expected} == pytest.approx(expected, abs=1e-4)
    assert result["top_1"] > 0.3  # three times chance: these are the trained weights


def test_data_dir_of_training_is_found(run, tmp_path):
    model_dir, data_dir = run
    result = evaluate(model_dir)
    assert result == evaluate(model_dir, data_dir)
    with pytest.raises(InputError, match="nowhere"):  # a given folder has precedence
        evaluate(model_dir, str(tmp_path / "nowhere"))
    shutil.copytree(model_dir, tmp_path / "moved")
    (tmp_path / "moved" / "data_dir.txt").write_text("/gone\n")
    with pytest.raises(
        InputError, match="data_dir must be given: .* was trained on '/gone'"
    ) as caught:
        evaluate(tmp_path / "moved")
    assert "\n" not in str(caught.value)


def test_damaged_file_beyond_limit_has_no_accuracy(run, tmp_path, capsys):
    shutil.copytree(run[1], tmp_path, dirs_exist_ok=True)
    (file,) = tmp_path.glob("**/*test*tfrecord*")
    damage_record(file, 350)  # of 355
    command = ["evaluate", f"--model_dir={run[0]}", f"--data_dir={tmp_path}"]
    assert cli.main([*command, "--max_bad_records=4"]) == 2
    out, error = capsys.readouterr()
    assert (
        "top-1" not in out
        and f"5 records cannot be read, the last of them {file.name}:354" in error
    )
    assert cli.main([*command, "--max_bad_records=5"]) == 0
    assert "digits test: 350 images, top-1" in capsys.readouterr().out


def test_other_split_with_class_table(run, tmp_path, capsys):
    result = evaluate(*run, split="train[:100]", out=tmp_path / "new" / "folder")
    assert (result["examples"], result["split"]) == (100, "train[:100]")
    with (tmp_path / "new" / "folder" / "classes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == list("0123456789")
    assert (
        sum(int(row["support"]) for row in rows)
        == sum(int(row["predicted"]) for row in rows)
        == 100
    )
    right = sum(float(row["recall"] or 0) * int(row["support"]) for row in rows)
    assert right == pytest.approx(100 * result["top_1"], abs=1e-3)
    with (tmp_path / "new" / "folder" / "wrong.csv").open() as file:
        wrong = list(csv.DictReader(file))
    assert len(wrong) == round(100 - 100 * result["top_1"])
    assert all(
        row["class"] != row["predicted"] and "digits-train" in row["image"]
        for row in wrong
    )
    with Image.open(tmp_path / "new" / "folder" / "confusion.png") as picture:
        assert picture.size == (1300, 1300)
    assert "confusion.png" in capsys.readouterr().out
    with pytest.raises(InputError, match="classes.csv' cannot be written"):
        evaluate(
            *run, split="train[:100]", out=tmp_path / "new" / "folder" / "classes.csv"
        )
    # Replaces its own files.
    evaluate(*run, split="train[:99]", out=tmp_path / "new" / "folder")
    for name in ("classes.csv", "wrong.csv", "confusion.png"):
        (tmp_path / name).write_text("class,mine\n")
        with pytest.raises(
            InputError, match=f"{name}' exists, and this command did not write it"
        ):
            evaluate(*run, split="train[:100]", out=tmp_path)
        (tmp_path / name).unlink()


@pytest.mark.parametrize(
    ("split", "message"),
    [("tset", "test"), ("validation", "train"), ("test[5:3", "test")],
)
def test_unknown_split_is_rejected_with_known_ones(run, split, message):
    with pytest.raises(InputError, match=f"{split[:4]}.*{message}"):
        evaluate(*run, split=split)


def test_missing_data_dir_is_rejected(run, tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        evaluate(run[0], str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "command", [evaluate, lambda path: export(path, path.parent / "served")]
)
def test_folder_without_trained_model_is_rejected(run, tmp_path, command):
    with pytest.raises(InputError, match="nowhere"):
        command(tmp_path / "nowhere")
    with pytest.raises(InputError, match=str(tmp_path)):
        command(tmp_path)
    (tmp_path / "model").mkdir()
    shutil.copy(run[0] / "recipe.json", tmp_path / "model")
    with pytest.raises(InputError, match="no checkpoint"):
        command(tmp_path / "model")
    assert not (tmp_path / "served").exists()


def test_checkpoint_of_tensorflow_is_evaluated_on_jax(run, capfd):
    words = ["evaluate", f"--model_dir={run[0]}", "--backend=jax", "--split=test[:70]"]
    code = "from programs import small_model; from lambdanet import cli; from lambdanet.models import zoo; "
    code += "zoo.MODELS['lambda_resnet_tiny'] = small_model.ONE_BLOCK; "
    code += f"print(cli.main({words}), small_model.keras.config.backend())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **ENGINES["jax"], "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    shown, status = done.stdout.splitlines()
    assert (status, done.stderr) == ("0 jax", "")
    expected, found = (
        [float(n) for n in re.findall(r"[\d.]+", line)]
        for line in (summary(evaluate(*run, split="test[:70]"), 10), shown)
    )
    assert found == pytest.approx(expected, abs=2e-4)
