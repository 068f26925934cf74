# SPDX-License-Identifier: Apache-2.0
"""Trains and evaluates a detector on two logical devices: python detection_on_two_devices.py FOLDER START.

Prints "RESULT" and a JSON object. FOLDER has small.yaml and the records train and val; START is the
`task.init_checkpoint`.
"""

import gc
import json
import sys

import numpy as np
import tensorflow as tf
import two_devices

two_devices.divide_cpu()
gc.disable()  # collections take longer than two steps

from quick_graphs import trace_quickly  # noqa: E402
from small_model import FOUR_BLOCKS  # noqa: E402

from lambdanet.detection.configs import resolve  # noqa: E402
from lambdanet.detection.run import train  # noqa: E402
from lambdanet.models import zoo  # noqa: E402

# isort: split
from official.core import train_utils  # noqa: E402
from official.vision.evaluation import coco_evaluator  # noqa: E402


def record_detections() -> list[tuple[list[int], np.ndarray]]:
    """Makes each evaluation append its images and their boxes, in the order of the images."""
    detections = []
    evaluate = coco_evaluator.COCOEvaluator.evaluate

    def recording(self):
        found = {}
        for name in ("source_id", "detection_boxes"):
            parts = [
                x if isinstance(x, tuple) else (x,) for x in self._predictions[name]
            ]
            found[name] = np.concatenate([np.concatenate(list(part)) for part in parts])
        ids = found["source_id"].ravel()
        order = np.argsort(ids)
        detections.append((ids[order].tolist(), found["detection_boxes"][order]))
        return evaluate(self)

    coco_evaluator.COCOEvaluator.evaluate = recording
    return detections


def main(folder: str, start: str) -> None:
    trace_quickly()
    # Which would trace the model again.
    train_utils.try_count_flops = lambda model: None
    zoo.MODELS["lambda_resnet_tiny"] = FOUR_BLOCKS
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    detections = record_detections()
    data = f"task.train_data.input_path={folder}/train,task.validation_data.input_path={folder}/val"
    params = resolve.resolve(
        "lambda_resnet/maskrcnn_resnetfpn_coco",
        [f"{folder}/small.yaml"],
        f"{data},task.init_checkpoint={start},task.init_checkpoint_modules=backbone",
    )
    train.run_experiment(params, "train_and_eval", f"{folder}/model", strategy=strategy)
    train.run_experiment(params, "continuous_eval", f"{folder}/model")
    (_, first), (_, second) = detections
    result = {
        "replicas": strategy.num_replicas_in_sync,
        "images": [ids for ids, _ in detections],
        "boxes": float(np.abs(first - second).max()),
        "largest": float(first.max()),
        "text": "tensorflow_text" in sys.modules,
    }
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
