# SPDX-License-Identifier: Apache-2.0
"""Uses the trainer and a detector in one process: python one_process.py FOLDER PART...

The parts are run in the order given. Prints "done" and the loss of each.
"""

import sys

from small_model import FOUR_BLOCKS

from lambdanet.models import zoo

NAME = "lambda_resnet_tiny"
RETINANET = (
    "runtime.mixed_precision_dtype=float32,task.model.num_classes=3,task.model.input_size=[128,128,3],"
    f"task.model.backbone.lambda_resnet.model_id={NAME},task.model.decoder.fpn.num_filters=16,"
    "task.model.head.num_convs=1,task.model.head.num_filters=16,task.train_data.dtype=float32"
)


def tf_keras_by_its_old_name(folder: str) -> float:
    """User code that takes the Keras of TensorFlow, whichever that is."""
    import tensorflow as tf

    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    return float(tf.reduce_sum(model(tf.ones([1, 2]))))


def trainer(folder: str) -> float:
    import dataclasses

    from lambdanet import configs
    from lambdanet.training.train import train

    recipe = configs.get_recipe("digits")
    small = {
        "epochs": 1,
        "warmup_epochs": 0.0,
        "train_split": "train[:64]",
        "eval_split": "test[:32]",
    }
    recipe = dataclasses.replace(recipe, **small, global_batch_size=16)
    return train(recipe, f"{folder}/run", f"{folder}/data")["loss"]


def retinanet(folder: str) -> float:
    from lambdanet.detection.run.train_step import build_train_step

    step = build_train_step(
        "lambda_resnet/retinanet_resnetfpn_coco", RETINANET, batch_size=2
    )
    before = [weight.numpy() for weight in step.model.backbone.trainable_weights]
    loss = float(step.function(*step.inputs))
    after = [weight.numpy() for weight in step.model.backbone.trainable_weights]
    assert any((old != new).any() for old, new in zip(before, after, strict=True))
    return loss


def main(folder: str, *parts: str) -> None:
    zoo.MODELS[NAME] = FOUR_BLOCKS
    found = {part: globals()[part](folder) for part in parts}
    assert all(value == value for value in found.values()), found
    print("done", found)


if __name__ == "__main__":
    main(*sys.argv[1:])
