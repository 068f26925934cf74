# SPDX-License-Identifier: Apache-2.0
"""Any number of classes for each image: the task `multilabel`.

A label has a number for each class, float32 [num_classes]: 1 where it is present, 0 where it is absent, and
NaN where that is unknown, which counts in no loss and no metric. Mixed images have mixtures.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lambdanet.core import text_table
from lambdanet.core.errors import InputError, invalid
from lambdanet.core.files import write_output
from lambdanet.training.data.class_names import read_names
from lambdanet.training.data.task import Batches, Evaluation, Example, Task
from lambdanet.training.data.task_outputs import Result
from lambdanet.training.tasks.classification import ClassOutputs


class MultilabelOutputs(ClassOutputs):
    """The probabilities of classes, which are present from the setting `thresholds` on."""

    has_one_class = False

    def final(self, logits: Any) -> Any:
        import tensorflow as tf

        return tf.nn.sigmoid(tf.cast(logits, tf.float32))

    def serve(self, logits: Any) -> Result:
        outputs = super().serve(logits)
        outputs["is_present"] = outputs[self.output] >= self.settings["thresholds"]
        return outputs

    def describe(self, found: np.ndarray, top: int) -> Result:
        # In float32, as in the signatures.
        is_present = found >= np.array(self.settings["thresholds"], np.float32)
        present = [self.class_names[place] for place in np.flatnonzero(is_present)]
        return {**super().describe(found, top), "present": present}


class Multilabel(Task):
    """Images with any number of classes, sigmoid, and mean average precision."""

    best = "average_precision"
    outputs_type = MultilabelOutputs
    FILES = ("classes.csv", "wrong.csv")

    def open_source(self, data_dir: str | None) -> Any:
        if self.recipe.labels:
            from lambdanet.training.data import tables

            return tables.MultilabelTable(self.recipe, data_dir)
        if self.recipe.dataset == "tfrecord":
            from lambdanet.training.data import records

            return records.MultilabelRecords(self.recipe, data_dir)
        accepted = (
            "folder with a table in labels, or tfrecord, with the task multilabel"
        )
        raise invalid("dataset", accepted, self.recipe.dataset)

    def read(self, source: Any, example: Example) -> Any:
        import tensorflow as tf

        labels = source.label(example)
        if not source.numbers:
            return labels
        numbers = source.numbers
        places = [len(numbers)] * self.recipe.num_classes  # of the unknown one
        for place, number in enumerate(numbers):
            places[number] = place
        return tf.gather(tf.concat([labels, [np.nan]], axis=0), places)

    def count(self, labels: np.ndarray) -> np.ndarray:
        return np.stack([np.sum(labels == 1, axis=0), np.sum(labels == 0, axis=0)])

    def loss(self) -> Any:
        from lambdanet.training.tasks.losses import MultilabelLoss

        recipe = self.recipe
        return MultilabelLoss(
            recipe.label_smoothing, recipe.class_weights, recipe.positive_weights
        )

    def metrics(self) -> Any:
        from lambdanet.training.tasks.losses import MeanAveragePrecision

        return [MeanAveragePrecision(self.recipe.num_classes)]

    def first_label(self) -> np.ndarray:
        return np.zeros([1, self.recipe.num_classes], np.float32)

    def describe_best(self, model: Any) -> dict[str, Any]:
        (metric,) = model._compile_metrics.metrics
        return {"thresholds": metric.thresholds()}

    def record(self, model_dir: Path) -> dict[str, Any]:
        return {**super().record(model_dir), "thresholds": self.thresholds(model_dir)}

    def thresholds(self, model_dir: Path) -> list[float]:
        """Returns the probability from which on each class is present."""
        from lambdanet.training.tasks.losses import DEFAULT_THRESHOLD

        # The file of the best epoch, by its name in `training.run.checkpoints`.
        file = model_dir / "best" / "best.json"
        found = json.loads(file.read_text()) if file.exists() else {}
        default = [DEFAULT_THRESHOLD] * self.recipe.num_classes
        return list(found.get("thresholds", default))

    def measure(self, pairs: Batches, model_dir: Path) -> Evaluation:
        logits, labels = map(np.concatenate, zip(*pairs, strict=True))
        # The cross entropy of the sigmoid, without overflow.
        losses = (
            np.maximum(logits, 0) - logits * labels + np.log1p(np.exp(-abs(logits)))
        )
        known = np.sum(~np.isnan(labels), axis=-1)
        scores = _average_precisions(labels, logits)
        if np.isnan(scores).all():
            raise InputError(
                "no class of the split is present in one, and absent in one"
            )
        values: dict[str, Any] = {
            "examples": len(labels),
            "average_precision": float(np.nanmean(scores)),
            "loss": float(np.mean(np.nansum(losses, axis=-1) / np.maximum(known, 1))),
            "thresholds": self.thresholds(model_dir),
        }
        text = (
            f"{values['examples']} images, mean average precision "
            f"{100 * values['average_precision']:.2f} %, loss {values['loss']:.4f}"
        )
        if np.isnan(scores).any():
            names = read_names(model_dir / "classes.txt")
            uncounted = _names(names, np.isnan(scores))
            text += f"; never or always present, so not counted: {uncounted}"
        return Evaluation(values, text, labels, np.exp(-np.logaddexp(0, -logits)))

    def write(self, folder: Path, dataset: Any, found: Evaluation, title: str) -> None:
        thresholds = found.values["thresholds"]
        predicted = found.predicted >= thresholds
        names = dataset.class_names
        scores = _average_precisions(found.labels, found.predicted)
        rows = [
            {
                "class": number,
                "name": name,
                "average_precision": _rounded(scores[number]),
                **_scores(found.labels[:, number], predicted[:, number]),
                "threshold": _rounded(thresholds[number]),
            }
            for number, name in enumerate(names)
        ]
        table = folder / "classes.csv"
        write_output(table, text_table.to_csv(rows))
        print(f"per class: {table}")
        wrong = []
        images = zip(dataset.eval_names(), found.labels, predicted, strict=True)
        for image, label, taken in images:
            missed = _names(names, (label == 1) & ~taken)
            other = _names(names, (label == 0) & taken)
            if missed or other:
                wrong.append([image, missed, other])
        file = folder / "wrong.csv"
        columns = ["image", "missed", "wrong"]
        write_output(file, text_table.render(columns, wrong, "csv"))
        print(f"{len(wrong)} images with a wrong class: {file}")


def _average_precisions(labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Returns the average precision of each class, [num_classes]; NaN unless it is present and absent."""
    # Here: scikit-learn takes a second to import.
    from sklearn.metrics import average_precision_score

    found = []
    for label, score in zip(labels.T, scores.T, strict=True):
        known = ~np.isnan(label)
        is_present = label[known] == 1
        has_both = 0 < is_present.sum() < len(is_present)
        found.append(
            average_precision_score(is_present, score[known]) if has_both else np.nan
        )
    return np.array(found)


def _scores(labels: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
    """Returns the columns of a class, of labels [n] and whether each image was taken to have it, [n]."""
    right = np.sum((labels == 1) & predicted)
    present = np.sum(labels == 1)
    taken = np.sum(~np.isnan(labels) & predicted)
    return {
        "precision": _rounded(right / taken) if taken else None,
        "recall": _rounded(right / present) if present else None,
        "f1": _rounded(2 * right / (present + taken)) if present else None,
        "present": int(present),
        "predicted": int(taken),
    }


def _rounded(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 4)


def _names(names: Sequence[str], chosen: np.ndarray) -> str:
    return ";".join(
        name for name, is_chosen in zip(names, chosen, strict=True) if is_chosen
    )
