# SPDX-License-Identifier: Apache-2.0
"""One class for each image: the task `classification`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lambdanet.core import text_table
from lambdanet.core.errors import invalid
from lambdanet.core.files import write_output
from lambdanet.training.calibration import expected_calibration_error
from lambdanet.training.data.task import Batches, Evaluation, Example, Task
from lambdanet.training.data.task_outputs import Result, TaskOutputs
from lambdanet.training.serving.drawing import draw_prediction, percent

MAX_TOP = 5


class ClassOutputs(TaskOutputs):
    """The probabilities of classes."""

    kind = "classes"
    output = "probabilities"
    has_one_class = True
    suffixes: tuple[str, ...] = ("_prediction",)

    def __init__(self, class_names: Sequence[str], **settings: Sequence[float]):
        if len(class_names) < 2:
            raise invalid("class_names", "two or more", list(class_names))
        super().__init__(class_names, **settings)
        self.num_logits = len(class_names)

    def final(self, logits: Any) -> Any:
        import tensorflow as tf

        return tf.nn.softmax(tf.cast(logits, tf.float32))

    def serve(self, logits: Any) -> Result:
        import tensorflow as tf

        outputs = super().serve(logits)
        top, classes = tf.math.top_k(
            outputs[self.output], min(MAX_TOP, len(self.class_names))
        )
        outputs["top_probabilities"] = top
        outputs["top_names"] = tf.gather(tf.constant(self.class_names), classes)
        return outputs

    def describe(self, found: np.ndarray, top: int) -> Result:
        best = np.argsort(-found, kind="stable")[:top]
        return {"top": [(self.class_names[x], float(found[x])) for x in best]}

    def rows(self, result: Result) -> list[Result]:
        rows = []
        for rank, (name, probability) in enumerate(result["top"], 1):
            row = {"rank": rank, "class": name, "probability": f"{probability:.6g}"}
            if "present" in result:
                row["present"] = name in result["present"]
            rows.append(row)
        return rows

    def fields(self, result: Result) -> Result:
        names, probabilities = zip(*result["top"], strict=True)
        fields = {"classes": names, "probabilities": probabilities}
        if "present" in result:
            fields["present"] = result["present"]
        return fields

    def lines(self, result: Result) -> list[str]:
        width = max(len(name) for name, _ in result["top"])
        lines = []
        for name, probability in result["top"]:
            mark = "  present" if name in result.get("present", ()) else ""
            lines.append(f"{name:<{width}}  {percent(probability):>7}{mark}")
        return lines

    def draw(self, image: np.ndarray, title: str, found: Any, result: Result) -> Any:
        return [draw_prediction(image, title, result["top"])]


class Classification(Task):
    """Images with the number of their class, softmax, and accuracy."""

    best = "accuracy"
    outputs_type = ClassOutputs
    FILES = ("classes.csv", "wrong.csv", "confusion.png", "reliability.png")

    def open_source(self, data_dir: str | None) -> Any:
        # Here: TFDS and pyarrow take seconds to import.
        if self.recipe.labels:
            from lambdanet.training.data.tables import TableSource

            return TableSource(self.recipe, data_dir)
        if self.recipe.dataset == "folder":
            from lambdanet.training.data import folder

            if folder.find_parquet_files(data_dir, self.recipe.train_split):
                from lambdanet.training.data.parquet_source import ParquetSource

                return ParquetSource(self.recipe, data_dir)
            return folder.FolderSource(self.recipe, data_dir)
        if self.recipe.dataset == "tfrecord":
            from lambdanet.training.data.records import RecordsSource

            return RecordsSource(self.recipe, data_dir)
        from lambdanet.training.data.tfds_source import TfdsSource

        return TfdsSource(self.recipe, data_dir)

    def read(self, source: Any, example: Example) -> Any:
        import tensorflow as tf

        label = source.label(example)
        if not source.numbers:
            return label
        count = len(source.numbers)
        is_known = (label >= 0) & (label < count)
        numbers = tf.constant([*source.numbers, -1], tf.int64)
        return tf.gather(numbers, tf.where(is_known, label, count))

    def count(self, labels: np.ndarray) -> np.ndarray:
        # Others are bad records.
        known = labels[(labels >= 0) & (labels < self.recipe.num_classes)]
        present = np.bincount(known, minlength=self.recipe.num_classes)
        return np.stack([present, len(known) - present])

    def loss(self) -> Any:
        from lambdanet.training.tasks.losses import LOSSES

        recipe = self.recipe
        options = {}
        if recipe.target_threshold:
            options["threshold"] = recipe.target_threshold
        return LOSSES[recipe.loss](
            recipe.label_smoothing, recipe.class_weights, **options
        )

    def metrics(self) -> Any:
        from lambdanet.training.tasks.losses import Accuracy

        return [Accuracy()]

    def first_label(self) -> np.ndarray:
        return np.zeros([1], np.int64)

    def measure(self, pairs: Batches, model_dir: Path) -> Evaluation:
        del model_dir
        return measure(pairs)

    def write(self, folder: Path, dataset: Any, found: Evaluation, title: str) -> None:
        # Here: matplotlib takes a second to import.
        from lambdanet.training import confusion

        labels = found.labels
        predicted = found.predicted
        names = dataset.class_names
        table = folder / "classes.csv"
        rows = confusion.per_class(labels, predicted, names)
        write_output(table, text_table.to_csv(rows))
        picture = folder / "confusion.png"
        write_output(picture, confusion.draw(labels, predicted, names, title))
        diagram = folder / "reliability.png"
        drawn = confusion.draw_reliability(
            found.confidences, labels == predicted, title
        )
        write_output(diagram, drawn)
        print(
            f"per class: {table}; confusion matrix: {picture}; by confidence: {diagram}"
        )
        images = zip(dataset.eval_names(), labels, predicted, strict=True)
        wrong = [
            [image, names[label], names[taken]]
            for image, label, taken in images
            if label != taken
        ]
        file = folder / "wrong.csv"
        columns = ["image", "class", "predicted"]
        write_output(file, text_table.render(columns, wrong, "csv"))
        print(f"{len(wrong)} wrong images: {file}")


def measure(pairs: Batches) -> Evaluation:
    """Returns `examples`, `top_1`, `top_5`, `loss` and `calibration_error`, and the predicted classes [n].

    Args:
      pairs: logits [b, num_classes] and integer labels [b] of each batch.
    """
    columns = []
    for logits, labels in pairs:
        # For equal logits the first class counts, so a constant model gets no credit for ties.
        best = np.argsort(-logits, axis=-1, kind="stable")[:, :5]
        correct = best == labels[:, np.newaxis]
        chosen = logits[np.arange(len(labels)), labels]
        normalizers = np.logaddexp.reduce(logits, axis=-1)
        columns.append(
            (
                labels,
                best[:, 0],
                correct[:, 0],
                correct.any(axis=-1),
                normalizers - chosen,
                np.exp(logits.max(axis=-1) - normalizers),
            )
        )
    all_labels, predicted, top_1, top_5, losses, confidences = map(
        np.concatenate, zip(*columns, strict=True)
    )
    means = {
        "top_1": top_1.mean(),
        "top_5": top_5.mean(),
        "loss": losses.mean(),
        "calibration_error": expected_calibration_error(confidences, top_1),
    }
    values = {name: float(mean) for name, mean in means.items()}
    values = {"examples": len(all_labels), **values}
    text = summary(values, logits.shape[-1])
    if len(set(all_labels.tolist())) == 1:
        text += ", all of one class"
    return Evaluation(values, text, all_labels, predicted, confidences)


def summary(result: dict[str, Any], num_classes: int) -> str:
    """Returns a result on one line, without top-5 where there are five classes or fewer."""
    top_5 = f"top-5 {100 * result['top_5']:.2f} %, " if num_classes > 5 else ""
    return (
        f"{result['examples']} images, "
        f"top-1 {100 * result['top_1']:.2f} %, {top_5}loss {result['loss']:.4f}, "
        f"expected calibration error {100 * result['calibration_error']:.2f} %"
    )
