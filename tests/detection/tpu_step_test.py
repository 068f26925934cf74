# SPDX-License-Identifier: Apache-2.0
"""The training step of a detection experiment for tpu-check."""

import pytest
import tensorflow as tf
import tf_keras as keras

from lambdanet import cli
from lambdanet.detection.run import train_step
from lambdanet.errors import InputError


def test_of_experiment_flattens_nested_labels(monkeypatch):
    calls = []

    def build(experiment, params_override="", batch_size=1):
        calls.append((experiment, params_override, batch_size))
        images = tf.ones([batch_size, 4])
        labels = {"boxes": {"3": 2 * images, "4": 3 * images}, "classes": tf.range(batch_size)}

        @tf.function
        def train(images, labels):
            boxes = labels["boxes"]
            return images + 10 * boxes["3"] + 100 * boxes["4"], labels["classes"]

        backbone = keras.Sequential([keras.layers.Dense(2)], name="backbone")
        model = keras.Sequential([backbone, keras.layers.Dense(2)], name="detector")
        return train_step.TrainStep(train, (images, labels), model)

    monkeypatch.setattr(train_step, "build", build)
    found = train_step.experiment_step("some_experiment", ("a=1", "b.c=2"), batch_size=2)
    assert calls == [("some_experiment", "a=1,b.c=2", 2)]
    assert (found.batch, len(found.inputs)) == (2, 4)
    assert set(found.model_names) == {"detector", "backbone"}
    sums, classes = found.function(*(tf.ones(spec.shape, spec.dtype) for spec in found.inputs))
    assert sums.numpy().tolist() == [[111.0] * 4] * 2 and classes.numpy().tolist() == [1, 1]


def test_of_experiment_rejects():
    with pytest.raises(InputError, match="mode must be 'train' for a detection experiment, got 'infer'"):
        train_step.experiment_step("maskrcnn_lambda_resnet_coco", mode="infer")
    with pytest.raises(InputError, match="batch_size must be a positive integer, got 0"):
        train_step.experiment_step("maskrcnn_lambda_resnet_coco", batch_size=0)


def test_tpu_check_rejects_an_unknown_experiment(capsys):
    assert cli.main(["tpu-check", "--experiment=maskrcnn_lambda_coco"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("lambdanet: error: unknown experiment 'maskrcnn_lambda_coco'")
