# SPDX-License-Identifier: Apache-2.0
"""Writes the folder of a run as versions with tf_keras did: train_with_tf_keras.py RECIPE MODEL_DIR.

The weights are random, and so are their averages. Prints the logits of an image with the averages.
"""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras as keras

import lambdanet

lambdanet.use("tf_keras")
from lambdanet.configs.recipe import read_json  # noqa: E402
from lambdanet.models import zoo  # noqa: E402

recipe, path = read_json(Path(sys.argv[1])), Path(sys.argv[2])
zoo.MODELS[recipe.model] = dataclasses.replace(zoo.MODELS[recipe.model], stages=("", "", "", "L"))
model = zoo.create_model(recipe.model, num_classes=recipe.num_classes, input_size=recipe.input_size)
optimizer = keras.optimizers.SGD(momentum=0.9, use_ema=True)
optimizer.build(model.trainable_variables)
random = np.random.default_rng(0)
averages = [random.normal(scale=0.2, size=weight.shape) for weight in model.trainable_variables]
for variable, average in zip(optimizer._model_variables_moving_average, averages, strict=True):
    variable.assign(average)
path.mkdir()
shutil.copy(sys.argv[1], path / "recipe.json")
variables = {"step": tf.Variable(22, dtype=tf.int64), "sums": tf.Variable(tf.zeros([4]))}
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, **variables)
tf.train.CheckpointManager(checkpoint, str(path / "checkpoints"), 3).save(checkpoint_number=22)
for variable, average in zip(model.trainable_variables, averages, strict=True):
    variable.assign(average)
images = np.linspace(-1, 1, recipe.input_size**2 * 3, dtype=np.float32)
logits = model(images.reshape(1, recipe.input_size, recipe.input_size, 3), training=False)
print(json.dumps(logits.numpy().tolist()))
