# SPDX-License-Identifier: Apache-2.0
"""Trains a causal LambdaResNet on MNIST-1D, and writes the weights that the package has.

    python -m experiments.mnist1d --out=models/lambda_resnet18_1d_causal_mnist1d.safetensors

MNIST-1D (Greydanus and Kobak 2020; the package `mnist1d`) has 4,000 sequences of 40 numbers in ten classes
for training, and 1,000 for the test, on which the authors report 32 % for a linear model, 68 % for a
perceptron with two hidden layers and 94 % for a convolutional network.
"""

import numpy as np
from absl import app, flags
from mnist1d.data import get_dataset_args, make_dataset

from lambdanet.backend import keras
from lambdanet.models import sequences
from lambdanet.models.weights import weight_files

OUT = flags.DEFINE_string(
    "out", None, "the file for the weights; none if it is not given"
)
EPOCHS = flags.DEFINE_integer("epochs", 40, "the number of epochs")
SEED = flags.DEFINE_integer("seed", 0, "the seed of initial weights and of the order")

# Zeros before a sequence, which make its 40 positions three chunks of 16.
PADDING = 8
BATCH_SIZE = 100
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-2
MAX_SHIFT = 4


def padded(x: np.ndarray) -> np.ndarray:
    """Returns sequences [b, 40] as inputs of the network, [b, 48, 1]."""
    return np.pad(x, [(0, 0), (PADDING, 0)])[..., np.newaxis].astype("float32")


def rotated(x: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Rotates each sequence [b, n] by a few random positions, as those of MNIST-1D were made."""
    b, n = x.shape
    places = np.arange(n) + generator.integers(-MAX_SHIFT, MAX_SHIFT + 1, size=[b, 1])
    return np.take_along_axis(x, places % n, axis=1)


def main(argv: list[str]) -> None:
    del argv
    keras.utils.set_random_seed(SEED.value)
    data = make_dataset(get_dataset_args())
    x, y, x_test, y_test = (data[name] for name in ("x", "y", "x_test", "y_test"))
    model = sequences.create_sequence_model(
        "lambda_resnet18_1d_causal",
        num_classes=10,
        in_channels=1,
    )
    steps = EPOCHS.value * len(x) // BATCH_SIZE
    schedule = keras.optimizers.schedules.CosineDecay(LEARNING_RATE, steps)
    model.compile(
        keras.optimizers.AdamW(schedule, weight_decay=WEIGHT_DECAY),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    generator = np.random.default_rng(SEED.value)
    for epoch in range(EPOCHS.value):
        model.fit(
            padded(rotated(x, generator)),
            y,
            BATCH_SIZE,
            initial_epoch=epoch,
            epochs=epoch + 1,
            verbose=2,
        )
    x_test = padded(x_test)
    accuracy = model.evaluate(x_test, y_test, verbose=0)[1]
    print(f"test accuracy: {accuracy:.1%}")
    if OUT.value:
        weight_files.save(model, OUT.value, {"test_accuracy": f"{accuracy:.3f}"})


if __name__ == "__main__":
    app.run(main)
