# SPDX-License-Identifier: Apache-2.0
"""Writes the weights that are in the package.

    lambdanet train --recipe=digits --model_dir=runs/digits
    python tests/packaged_weights.py runs/digits digits.safetensors

    lambdanet train --recipe=fashion_mnist --model_dir=runs/fashion_mnist
    python tests/packaged_weights.py runs/fashion_mnist fashion_mnist.safetensors

    python tests/packaged_weights.py mnist1d mnist1d.safetensors

The first two files are float16, and belong in `models/weights/packaged`, as MODEL.NAME.safetensors. The third
has a causal network for MNIST-1D (Greydanus and Kobak 2020), which the program trains, in ten minutes on two
cores, or for the number of epochs that follows. It belongs in `models`.
"""

import sys

import numpy as np
from mnist1d.data import get_dataset_args, make_dataset

from lambdanet.backend import keras
from lambdanet.models import sequences
from lambdanet.models.weights import tensor_files, trained_classes, weight_files
from lambdanet.training.run import model_dir
from lambdanet.training.serving import trained_weights

EPOCHS = 40
BATCH_SIZE = 100
PADDING = 8  # zeros before a sequence, which make its 40 numbers three chunks of 16
MAX_SHIFT = 4


def save_run(folder: str, out: str) -> None:
    """Writes the weights of a run as float16, with what describes its pictures and classes."""
    trained = trained_weights.load_run(folder)
    weights = weight_files.weights_by_name(trained.model)
    halves = {name: value.numpy().astype("float16") for name, value in weights.items()}
    recipe = model_dir.load_recipe(folder)
    metadata = {
        "model": recipe.model,
        "dataset": recipe.dataset,
        "in_channels": str(len(recipe.mean)),
        "license": "Apache-2.0",
        "input_size": str(recipe.input_size),
        "mean": ", ".join(map(str, recipe.mean)),
        "std": ", ".join(map(str, recipe.std)),
        **trained_classes.as_metadata(trained.class_names),
    }
    tensor_files.write_safetensors(out, halves, metadata)


def padded(x: np.ndarray) -> np.ndarray:
    """Returns sequences [b, 40] as inputs of the network, [b, 48, 1]."""
    return np.pad(x, [(0, 0), (PADDING, 0)])[..., np.newaxis].astype("float32")


def rotated(x: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Rotates each sequence [b, n] by a few random positions, as those of MNIST-1D were made."""
    b, n = x.shape
    places = np.arange(n) + generator.integers(-MAX_SHIFT, MAX_SHIFT + 1, size=[b, 1])
    return np.take_along_axis(x, places % n, axis=1)


def train_mnist1d(out: str, epochs: int = EPOCHS) -> None:
    """Trains the causal network on MNIST-1D, prints its accuracy and writes its weights."""
    keras.utils.set_random_seed(0)
    data = make_dataset(get_dataset_args())
    x = data["x"]
    model = sequences.create_sequence_model(
        "lambda_resnet18_1d_causal", num_classes=10, in_channels=1
    )
    steps = epochs * len(x) // BATCH_SIZE
    schedule = keras.optimizers.schedules.CosineDecay(3e-3, steps)
    model.compile(
        keras.optimizers.AdamW(schedule, weight_decay=1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    generator = np.random.default_rng(0)
    for _ in range(epochs):
        model.fit(padded(rotated(x, generator)), data["y"], BATCH_SIZE, verbose=2)
    accuracy = model.evaluate(padded(data["x_test"]), data["y_test"], verbose=0)[1]
    print(f"test accuracy: {accuracy:.1%}")
    weight_files.save(model, out, {"test_accuracy": f"{accuracy:.3f}"})


if __name__ == "__main__":
    source, out, *epochs = sys.argv[1:]
    if source == "mnist1d":
        train_mnist1d(out, *map(int, epochs))
    else:
        save_run(source, out)
