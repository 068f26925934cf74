# SPDX-License-Identifier: Apache-2.0
"""Measures of splits in which a class is never there, or always."""

import numpy as np
import pytest
from refusals import refused
from sklearn import metrics
from training_runs import recipe_with

from lambdanet.training.data.task import task_of
from lambdanet.training.tasks import classification
from lambdanet.training.tasks.losses import MeanAveragePrecision

NAMES = ["never", "always", "some", "unknown"]
RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=[40, 4])
LABELS = np.stack(
    [np.zeros(40), np.ones(40), RANDOM.integers(0, 2, 40), np.full(40, np.nan)], -1
)
LABELS[:5, 1] = np.nan


def test_classes_without_two_kinds_do_not_count(tmp_path):
    (tmp_path / "classes.txt").write_text("\n".join(NAMES) + "\n")
    recipe = recipe_with("folder", task="multilabel", loss="", num_classes=4)
    assert recipe.loss == "binary_cross_entropy"  # its only one
    task = task_of(recipe)
    found = task.measure([(LOGITS, LABELS)], tmp_path)
    expected = metrics.average_precision_score(LABELS[:, 2], LOGITS[:, 2])
    assert found.values["average_precision"] == pytest.approx(expected)
    said = "; never or always present, so not counted: never;always;unknown"
    assert found.text.endswith(said)
    metric = MeanAveragePrecision(4)
    metric.update_state(LABELS.astype("f"), LOGITS.astype("f"))
    assert float(metric.result()) == pytest.approx(expected, abs=0.02)
    with refused("no class of the split is present in one, and absent in one"):
        task.measure([(LOGITS[:, :2], LABELS[:, :2])], tmp_path)


def test_splits_of_one_class_say_so():
    for labels, is_said in (([1, 1, 1], True), ([1, 2, 1], False)):
        found = classification.measure([(LOGITS[:3], np.array(labels))])
        assert found.text.endswith(", all of one class") == is_said
    recipe = recipe_with("segment", num_classes=4)
    maps = LOGITS[:8].reshape(1, 2, 4, 4)
    for masks, is_said in ((np.full([1, 2, 4], 2), True), (np.eye(2, 4)[None], False)):
        pairs = [([((slice(None), slice(None)), maps)], masks.astype(np.uint8))]
        found = task_of(recipe).measure(pairs, None)
        assert found.text.endswith(", all pixels of one class") == is_said
