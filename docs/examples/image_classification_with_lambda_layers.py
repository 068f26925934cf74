"""
Title: Image classification with lambda layers
Author: the authors of lambdanet
Date created: 2026/11/29
Last modified: 2026/11/29
Description: Lambda layers instead of 3x3 convolutions in a small residual network.
Accelerator: None
"""

"""
## Introduction

A 3x3 convolution reads the neighbors of a position. Self-attention reads all
positions, and stores a weight for each pair of them. A lambda layer
([Bello, 2021](https://arxiv.org/abs/2102.08602)) reads all positions without these
pairs: it summarizes the context of a position as a small matrix, the *lambda*, and
multiplies the queries of that position by it.

This example builds a residual network with a spatial operation that is passed as an
argument, and trains it twice: with convolutions, and with lambda layers from
`lambdanet`. It compares their parameters, their accuracy, and what they do with
pictures that are moved. The pictures are the handwritten digits of scikit-learn, so
nothing is downloaded, and the example runs on a CPU, with TensorFlow, JAX or PyTorch.
"""

"""
## Setup
"""

"""shell
pip install '.[tensorflow]' scikit-learn
"""

import keras
import lambdanet
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

"""
## Data

There are 1,797 pictures of 8x8 pixels in ten classes. A margin of two pixels gives room to
move them later. For other pictures, such as those of `keras.datasets.cifar10`, replace the
first three lines: `images` are `[n, height, width, channels]`, with values from 0 to 1.
"""

images, labels = load_digits(return_X_y=True)
images = images.reshape([-1, 8, 8, 1]).astype("float32") / 16
images = np.pad(images, [(0, 0), (2, 2), (2, 2), (0, 0)])
order = np.random.default_rng(0).permutation(len(images))
train, test = order[:1440], order[1440:]
print("training:", images[train].shape)

"""
## The layer

A lambda layer is called as a convolution is: it takes a map of any height and width,
and returns one with `filters` channels.

* `scope` is the side of the window in which positions count. The content of the whole
  map is read in any case.
* `num_heads` is the number of queries of a position. They share one lambda, so heads
  save time instead of costing it.
"""

layer = lambdanet.LambdaLayer(filters=32, scope=7, num_heads=4)
maps = keras.random.normal([2, 12, 12, 32])
print("output:", tuple(layer(maps).shape))

"""
## The network

A block is the bottleneck of a ResNet: a 1x1 convolution, the spatial operation, and
another 1x1 convolution, with batch normalization after each, and a connection around
all three. As in the paper, the spatial operation is all that changes.
"""


def convolution(filters):
    return layers.Conv2D(filters, 3, padding="same", use_bias=False)


def lambda_layer(filters):
    return lambdanet.LambdaLayer(filters, scope=7, num_heads=4)


def normalize(x):
    return layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))


def bottleneck(x, spatial):
    shortcut = x
    x = normalize(layers.Conv2D(32, 1, use_bias=False)(x))
    x = normalize(spatial(32)(x))
    x = layers.BatchNormalization(momentum=0.9)(layers.Conv2D(64, 1)(x))
    return layers.ReLU()(x + shortcut)


def build_network(spatial):
    inputs = keras.Input([None, None, images.shape[-1]])
    x = normalize(convolution(64)(inputs))
    x = bottleneck(x, spatial)
    x = bottleneck(x, spatial)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10)(x), name=spatial.__name__)


"""
## Training

Both networks are trained in the same way: Adam with a cosine schedule.
"""

EPOCHS = 12
BATCH_SIZE = 64


def train_network(spatial):
    keras.utils.set_random_seed(0)
    model = build_network(spatial)
    steps = EPOCHS * len(train) // BATCH_SIZE
    schedule = keras.optimizers.schedules.CosineDecay(0.003, steps)
    model.compile(
        keras.optimizers.Adam(schedule),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(images[train], labels[train], BATCH_SIZE, EPOCHS, verbose=0)
    return model


models = [train_network(convolution), train_network(lambda_layer)]

"""
## Evaluation

The test pictures were not used for training. They are evaluated as they are, and moved to
the right by one and two pixels, over the margin.
"""

for model in models:
    print(f"{model.name}: {model.count_params():,} parameters")
    for pixels in range(3):
        moved = np.roll(images[test], pixels, axis=2)
        _, accuracy = model.evaluate(moved, labels[test], verbose=0)
        print(f"  moved by {pixels} pixels: {100 * accuracy:.1f} %")

"""
On pictures this small, expect no gain in accuracy from the wider view: a few 3x3
convolutions see all of a digit. The network with lambda layers has fewer parameters.
One training each does not rank the two; a difference of a point is a few pictures.
"""

"""
## Saving

The network is saved and loaded as any Keras model. In a new process, import `lambdanet`
before `load_model`: that registers the layer.
"""

models[1].save("digits.keras")
print("loaded:", keras.models.load_model("digits.keras").name)

"""
## Where lambda layers help

A digit of a few pixels does not need a long view. Lambda layers are of use where the
answer depends on places far apart, where attention maps do not fit in memory, and in
the last stages of a ResNet: there the paper reports a higher accuracy on ImageNet with
fewer parameters than convolutions have. `lambdanet.create_model` builds these networks,
and some have pretrained weights.
"""
