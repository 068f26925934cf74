# SPDX-License-Identifier: Apache-2.0
"""The export of a task of another program, and exports without a record of their task."""

from dataclasses import replace
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import noise
from picture_sources import write_folder
from refusals import refused
from refused_commands import assert_refused
from training_runs import IN_FOLDERS, write_run

from lambdanet import cli
from lambdanet.configs.recipe_values import TASKS
from lambdanet.explain.pictures import Explainer
from lambdanet.models.preprocessing import Preprocessing
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.folder import FolderSource
from lambdanet.training.data.task import Task
from lambdanet.training.data.task_outputs import TaskOutputs, read_record
from lambdanet.training.serving.export import _save
from lambdanet.training.serving.exported_model import load_export
from lambdanet.training.serving.trained_weights import TrainedModel, load_run

pytestmark = pytest.mark.usefixtures("small_networks")

RECIPE = replace(IN_FOLDERS, num_classes=3)


class LevelOutputs(TaskOutputs):
    output = "level"

    def final(self, logits):
        return 2 * logits


class Level(Task):
    """A number for each picture."""

    outputs_type = LevelOutputs

    def build(self, arguments):
        return super().build({**arguments, "num_classes": 1})

    def open_source(self, data_dir):
        return FolderSource(self.recipe, data_dir)


@pytest.fixture(scope="module")
def run(tmp_path_factory, small_networks):
    """The folder of a run, with its pictures and its export."""
    root = tmp_path_factory.mktemp("run")
    write_folder(root, 40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "level", Level)
        recipe = replace(RECIPE, task="level")
        write_run(root / "run", recipe, list("012"), str(root))
        words = [f"--model_dir={root / 'run'}", f"--out={root / 'served'}"]
        assert cli.main(["export", *words]) == 0
        yield root


def test_own_predictions_are_those_of_the_network(run, tmp_path, capsys):
    file = str(run / "validation/2/38.png")
    trained = load_run(run / "run")
    pixels = trained.preprocessing(np.array(keras.utils.load_img(file))[np.newaxis])
    level = 2 * float(trained.model(pixels)[0, 0])
    words = ["predict", f"--saved_model={run / 'served'}", file]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out.split()[-1]
    assert float(printed) == pytest.approx(level, rel=1e-4)
    assert cli.main([*words, f"--out={tmp_path / 'found.csv'}"]) == 0
    rows = (tmp_path / "found.csv").read_text().split()
    assert rows == ["image,level", f"{file},{printed}"]
    status = cli.main([*words, f"--out={tmp_path}"])
    assert_refused(status, "out must be a file that ends in .csv or .jsonl", capsys)


def test_own_export_is_compared_by_its_numbers(run, tmp_path, capsys):
    words = [f"--model_dir={run / 'run'}", f"--out={tmp_path / 'onnx'}"]
    assert cli.main(["export", *words, "--format=onnx"]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    assert "on 40 pictures of folder validation: the largest difference is " in line
    assert "class" not in line


def test_signatures_need_no_module_of_the_task(run):
    found = load_export(run / "served")
    assert found.record == {"task": f"{__name__}:Level"}
    missing = found._replace(record={"task": "no.module:Level"})
    outputs = missing.signatures["serving_default"](images=noise(1, 16, 16, 3))
    assert outputs["level"].shape == (1, 1)
    with refused("task must be one of lambdanet, or module:Class"):
        _ = missing.task_outputs


def test_own_labels_are_neither_balanced_nor_explained(run):
    with refused("must be a classifier of pictures, got .small, which makes numbers"):
        Explainer(load_run(run / "run"))
    recipe = replace(RECIPE, task="level", class_weights="balanced")
    with refused("class_weights must be empty or numbers with the task level"):
        _ = Dataset.open(recipe, str(run)).class_weights


@pytest.mark.parametrize(
    "record",
    [
        {"task": "classification"},
        {"task": "multilabel", "thresholds": [0.25, 0.5]},
        {"task": "segmentation"},
    ],
)
def test_exports_without_a_record_are_read(record, tmp_path):
    """Those of the version before have the same outputs."""
    x = images = keras.Input([None, None, 3])
    if record["task"] != "segmentation":
        x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(images, keras.layers.Dense(2)(x))
    preprocessing = Preprocessing(4, (0.5,) * 3, (0.5,) * 3)
    trained = TrainedModel(model, preprocessing, ["a", "b"], record)
    loaded = tf.saved_model.load(_save(trained, tmp_path / "served"))
    assert read_record(loaded) == record
    functions = {"thresholds": getattr(loaded, "thresholds", None)}
    before = SimpleNamespace(signatures=loaded.signatures, **functions)
    assert read_record(before) == record
    if record["task"] == "segmentation":
        with refused("must be a classifier of pictures, got .*, which makes masks"):
            Explainer(trained)
