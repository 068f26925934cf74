# SPDX-License-Identifier: Apache-2.0
"""A class for each pixel: the task `segmentation`.

A label is the mask of an image, uint8 [h, w]. Pixels of 255 have no class, and count in no loss and metric.
"""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lambdanet.core import text_table
from lambdanet.core.errors import InputError, invalid
from lambdanet.core.files import write_output
from lambdanet.training.data.class_names import IGNORED
from lambdanet.training.data.task import Batches, Evaluation, Example, Pair, Task
from lambdanet.training.data.task_outputs import Result
from lambdanet.training.serving.drawing import add_legend, draw_mask, mask_image
from lambdanet.training.tasks.classification import ClassOutputs

TINY = 1e-30  # the smallest probability whose logarithm is taken
NUM_COMPARED = 8  # pictures, pixel by pixel


class MaskOutputs(ClassOutputs):
    """The probabilities of classes in each pixel, [b, h, w, num_classes], and their numbers."""

    kind = "masks"
    any_size = True
    unit = "pixels of "
    max_compared = NUM_COMPARED
    has_one_class = False
    suffixes = ("_overlay", "_mask")

    def serve(self, logits: Any) -> Result:
        import tensorflow as tf

        probabilities = self.final(logits)
        classes = tf.cast(tf.argmax(probabilities, axis=-1), tf.uint8)
        return {"probabilities": probabilities, "classes": classes}

    def convert(self, logits: Any) -> Result:
        import tensorflow as tf

        classes = tf.argmax(logits, axis=-1, output_type=tf.int32)
        return {**super().convert(logits), "classes": classes}

    def find(self, signatures: Any, path: str, window: int, overlap: int) -> np.ndarray:
        import tensorflow as tf

        from lambdanet.training.data.image_files import read_image

        serve = signatures["serving_default"]
        image = read_image(path)[np.newaxis]
        if not window:
            return serve(images=tf.constant(image))["classes"][0].numpy()

        from lambdanet.models.sliding_window import window_parts

        def scores(images: np.ndarray) -> np.ndarray:
            # Logits but for a number per pixel, of which the mean is taken, as in evaluation.
            found = serve(images=tf.constant(images))["probabilities"]
            return np.log(np.maximum(found, TINY))

        mask = np.empty(image.shape[1:3], np.uint8)
        for at, part in window_parts(scores, image, window, overlap):
            mask[*at] = part[0].argmax(-1)
        return mask

    def describe(self, found: np.ndarray, top: int) -> Result:
        counts = Image.fromarray(found).histogram()[: len(self.class_names)]
        pairs = super().describe(np.array(counts) / found.size, top)["top"]
        return {"top": [pair for pair in pairs if pair[1]]}

    def draw(self, image: np.ndarray, title: str, found: Any, result: Result) -> Any:
        return [
            add_legend(draw_mask(image, found), np.unique(found), self.class_names),
            mask_image(found),
        ]


class Segmentation(Task):
    """Images with masks, softmax in each pixel, and mean IoU, by a U-Net or DeepLabV3+ on any network."""

    best = "mean_iou"
    outputs_type = MaskOutputs
    any_size = True
    FILES = ("classes.csv",)

    def build(self, arguments: dict[str, Any]) -> Any:
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

    def pair(self, source: Any, example: Example) -> Pair:
        import tensorflow as tf

        pixels = source.image(example).pixels()
        # A mask of another size is a bad record.
        return pixels, source.label(example, tf.shape(pixels)[:2])

    def view(self, image: Any, label: Any, seed: Any) -> Pair:
        from lambdanet.training.data import mask_view

        recipe = self.recipe
        size = recipe.size_in_training
        share = recipe.foreground_share
        return mask_view.view(image, label, size, recipe.augmentation, seed, share)

    def evaluation_pair(
        self, source: Any, example: Example, whole: bool = False
    ) -> Pair:
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

    def loss(self) -> Any:
        from lambdanet.training.tasks.losses import MaskLoss

        recipe = self.recipe
        return MaskLoss(recipe.label_smoothing, recipe.class_weights, recipe.loss)

    def metrics(self) -> Any:
        from lambdanet.training.tasks.losses import MaskIoU

        return [MaskIoU(self.recipe.num_classes)]

    def first_label(self) -> np.ndarray:
        size = self.recipe.size_in_training
        return np.zeros([1, size, size], np.uint8)

    def measure(self, pairs: Batches, model_dir: Path) -> Evaluation:
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
        return Evaluation(values, text, total, total, scores=class_iou(total))

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
