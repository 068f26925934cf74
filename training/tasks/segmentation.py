# SPDX-License-Identifier: Apache-2.0
"""A class for each pixel: the task `segmentation`.

A label is the mask of an image, uint8 [h, w]. Pixels of 255 have no class, and count in no loss and metric.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from lambdanet.backend import Tensor, keras
from lambdanet.core import text_table
from lambdanet.core.errors import InputError, invalid
from lambdanet.core.files import write_output
from lambdanet.training.data.class_names import IGNORED
from lambdanet.training.data.task import Evaluation, Task
from lambdanet.training.tasks.classification import ClassLoss

ops = keras.ops


class Segmentation(Task):
    """Images with masks, softmax in each pixel, and mean IoU, by a U-Net or DeepLabV3+ on any network."""

    best = "mean_iou"
    any_size = True
    FILES: ClassVar[dict[str, bytes]] = {"classes.csv": b"class,name,iou,"}

    def build(self, arguments: dict[str, Any]) -> keras.Model:
        from lambdanet.models import deeplab, names, zoo

        recipe = self.recipe
        if recipe.model not in names.list_models(task="segmentation"):
            return deeplab.create_deeplab(recipe.model, **arguments)
        if zoo.MODELS[recipe.model].rank != 2:
            raise invalid("model", "one for pictures", recipe.model)
        if recipe.layer_decay != 1:
            accepted = f"1 with {recipe.model}, which has no blocks"
            raise invalid("layer_decay", accepted, recipe.layer_decay)
        return zoo.create_model(recipe.model, **arguments)

    def open_source(self, data_dir: str | None) -> Any:
        from lambdanet.training.data import masks

        if self.recipe.dataset != "folder":
            accepted = "folder with the task segmentation"
            raise invalid("dataset", accepted, self.recipe.dataset)
        return masks.MaskSource(self.recipe, data_dir)

    def pair(self, source: Any, example: dict[str, Any]) -> tuple[Any, Any]:
        import tensorflow as tf

        pixels = source.image(example).pixels()
        # A mask of another size is a bad record.
        return pixels, source.label(example, tf.shape(pixels)[:2])

    def view(self, image: Any, label: Any, seed: Any) -> tuple[Any, Any]:
        from lambdanet.training.data import mask_view

        recipe = self.recipe
        size = recipe.size_in_training
        return mask_view.view(image, label, size, recipe.augmentation, seed)

    def evaluation_pair(
        self, source: Any, example: dict[str, Any], whole: bool = False
    ) -> tuple[Any, Any]:
        from lambdanet.training.data import mask_view, preprocess

        recipe = self.recipe
        image, label = self.pair(source, example)
        if not whole:
            image, label = mask_view.view(
                image, label, recipe.input_size, "none", (0, 0)
            )
        return preprocess.normalize(image, recipe), label

    def count(self, labels: np.ndarray) -> np.ndarray:
        # NumPy would count 64-bit copies.
        pixels = Image.fromarray(labels.reshape(-1, labels.shape[-1]))
        present = np.array(pixels.histogram()[: self.recipe.num_classes])
        return np.stack([present, present.sum() - present])

    def loss(self) -> keras.losses.Loss:
        recipe = self.recipe
        return MaskLoss(recipe.label_smoothing, recipe.class_weights, recipe.loss)

    def metrics(self) -> list[keras.metrics.Metric]:
        return [MaskIoU(self.recipe.num_classes)]

    def first_label(self) -> np.ndarray:
        size = self.recipe.size_in_training
        return np.zeros([1, size, size], np.uint8)

    def measure(
        self, pairs: Iterable[tuple[np.ndarray, np.ndarray]], model_dir: Path
    ) -> Evaluation:
        import tensorflow as tf

        del model_dir
        count = self.recipe.num_classes
        total = np.zeros([count, count], np.int64)
        loss = 0.0
        examples = 0
        for parts, labels in pairs:
            examples += len(labels)
            for at, part in parts:
                is_known = labels[:, *at] != IGNORED
                known = labels[:, *at][is_known].astype(np.int64)
                scores = part[is_known].astype(np.float64)
                cells = count * known + scores.argmax(-1)
                total += np.bincount(cells, minlength=count**2).reshape(total.shape)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(known, scores)
                loss += float(tf.reduce_sum(losses))
            del part  # of a picture, which would wait for the next one
        if not total.any():
            raise InputError("no pixel of the split has a class")
        values = {
            "examples": examples,
            "mean_iou": float(np.nanmean(class_iou(total))),
            "loss": float(loss / total.sum()),
        }
        text = (
            f"{examples} images, mean IoU {100 * values['mean_iou']:.2f} %, "
            f"loss {values['loss']:.4f}"
        )
        if np.count_nonzero(total.sum(axis=1)) == 1:
            text += ", all pixels of one class"
        return Evaluation(values, text, total, total)

    def write(self, folder: Path, dataset: Any, found: Evaluation, title: str) -> None:
        rows = []
        pixels = found.labels.sum(axis=1).tolist()
        scores = class_iou(found.labels).tolist()
        for number, name in enumerate(dataset.class_names):
            rows.append(
                {
                    "class": number,
                    "name": name,
                    "iou": scores[number],
                    "pixels": pixels[number],
                }
            )
        table = folder / "classes.csv"
        write_output(table, text_table.to_csv(rows))
        print(f"per class: {table}")


def class_iou(matrix: np.ndarray) -> np.ndarray:
    """Returns the intersection over the union of each class, NaN where it is in no pixel.

    Args:
      matrix: the numbers of pixels by their class and the class that was found, [num_classes, num_classes].
    """
    right = np.diagonal(matrix)
    either = matrix.sum(axis=0) + matrix.sum(axis=1) - right
    return np.where(either > 0, right / np.maximum(either, 1), np.nan)


@keras.saving.register_keras_serializable("lambdanet")
class MaskLoss(ClassLoss):
    """The mean over the known pixels of an image of the softmax cross entropy, the Dice loss, or their sum.

    The Dice loss (Milletari et al. 2016, without squares) is the weighted mean over the classes of
    1 - (2 sum p t + 1) / (sum p + sum t + 1), for probabilities p and targets t in the known pixels of an
    image. An image without known pixels has a loss of 0.

    Args:
      label_smoothing: s, at least 0 and below 1, of the cross entropy.
      class_weights: the weight of each class, of its pixels and of its Dice loss; empty: 1.
      loss: "cross_entropy", "dice" or "cross_entropy_dice".

    Example:
      >>> labels = tf.constant([[[0, 255]]])
      >>> float(MaskLoss()(labels, tf.constant([[[[0.0, 0.0], [9.0, 0.0]]]])))
      0.6931...
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        class_weights: Any = (),
        loss: str = "cross_entropy",
        **kwargs: Any,
    ):
        super().__init__(label_smoothing, class_weights, **kwargs)
        self.loss = loss

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Returns the loss [b] of masks [b, h, w] and logits [b, h, w, num_classes]."""
        labels = ops.cast(y_true, "int32")
        logits = ops.cast(y_pred, "float32")
        is_known = ops.not_equal(labels, IGNORED)
        known = ops.cast(is_known, "float32")
        # Without a class, a pixel has no target.
        targets = ops.one_hot(ops.where(is_known, labels, -1), logits.shape[-1])
        weights = ops.ones([logits.shape[-1]])
        if self.class_weights:
            weights = ops.convert_to_tensor(self.class_weights, "float32")
        loss: Any = 0.0
        if "cross_entropy" in self.loss:
            smooth = self.smooth_labels(targets)
            losses = -ops.sum(smooth * ops.log_softmax(logits), -1)
            losses = losses * known * ops.sum(targets * weights, -1)
            total = ops.sum(losses, [1, 2])
            loss = loss + ops.divide_no_nan(total, ops.sum(known, [1, 2]))
        if "dice" in self.loss:
            found = ops.softmax(logits) * known[..., None]
            common = ops.sum(found * targets, [1, 2])
            either = ops.sum(found + targets, [1, 2])
            missed = 1 - (2 * common + 1) / (either + 1)
            loss = loss + ops.sum(weights * missed, -1) / ops.sum(weights)
        return loss

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "loss": self.loss}


@keras.saving.register_keras_serializable("lambdanet")
class MaskIoU(keras.metrics.MeanIoU):
    """Keras's mean IoU of logits, without pixels of 255 and images of weight 0.

    Classes that are in no pixel and are found in none are left out. It counts 2**31 pixels of a kind at most.

    Args:
      num_classes: the number of classes.
      name, dtype: as in Keras.
    """

    def __init__(self, num_classes: int, name: str = "mean_iou", dtype: Any = None):
        super().__init__(
            num_classes,
            name,
            dtype or "int32",
            ignore_class=IGNORED,
            sparse_y_pred=False,
        )

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        """Counts masks [b, h, w] and logits [b, h, w, num_classes]."""
        labels = ops.cast(y_true, "int32")
        found = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        is_counted = ops.not_equal(labels, IGNORED)
        if sample_weight is not None:
            has_weight = ops.reshape(ops.greater(sample_weight, 0), [-1, 1, 1])
            is_counted = ops.logical_and(is_counted, has_weight)
        # Others are counted behind the last cell.
        count = self.num_classes**2
        cells = ops.where(is_counted, self.num_classes * labels + found, count)
        cells = ops.reshape(cells, [-1])
        counts = ops.segment_sum(ops.ones_like(cells), cells, count + 1)[:count]
        self.total_cm.assign_add(ops.reshape(counts, self.total_cm.shape))

    def get_config(self) -> dict[str, Any]:
        return {"num_classes": self.num_classes, "name": self.name, "dtype": self.dtype}
