# SPDX-License-Identifier: Apache-2.0
"""Tries Keras's own ways to export and adapt models on lambdanet's: keras_ways.py [NAME ...]

Prints a line of CSV for each way and model on the backend of this process; the names are those of ways. The
models "Keras" have no layer of ours: a way that fails there is none that Keras offers.
docs/results/keras_ways.csv has the lines of all backends:

    { echo way,backend,model,result
      for backend in tensorflow jax torch; do
        KERAS_BACKEND=$backend python tests/programs/keras_ways.py
      done; } > docs/results/keras_ways.csv
"""

import contextlib
import csv
import importlib.util
import io
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers
from layer_table import LAYERS
from run_on_engine import small_model

import lambdanet

BACKEND = keras.config.backend()
TOLERANCE = 1e-4  # of the largest output, or of 1
WORKS = "yes"
NOT_OFFERED = "not of Keras"


def keras_model() -> keras.Model:
    inputs = keras.Input([8, 8, 3])
    x = layers.Conv2D(8, 3, padding="same")(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    return keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling2D()(x)))


def keras_model_of_any_size() -> keras.Model:
    inputs = keras.Input([None, None, 8])
    return keras.Model(inputs, layers.Conv2D(8, 3, padding="same")(inputs))


def every_layer() -> keras.Model:
    """Returns a model with all layers beside each other."""
    inputs = keras.Input([6, 5, 8])
    maps = [make()(inputs) for make in LAYERS.values()]
    return keras.Model(inputs, layers.Concatenate()(maps))


def layers_of_any_size() -> keras.Model:
    """Returns a model with the layers whose tables are not those of a map."""
    inputs = keras.Input([None, None, 8])
    maps = []
    for make in LAYERS.values():
        if "map_size" not in getattr(make, "keywords", {}):
            maps.append(make()(inputs))
    return keras.Model(inputs, layers.Concatenate()(maps))


def sequence_model() -> keras.Model:
    inputs = keras.Input([12, 8])
    x = lambdanet.LambdaLayer(8, scope=5, name="mixer")(inputs)
    causal = lambdanet.LambdaLayer(8, scope=5, use_batch_norm=False)
    return keras.Model(inputs, layers.Dense(4)(causal(x, mask="causal")))


# Models of Keras alone -> models with our layers.
MODELS: dict[str, list[str]] = {
    "Keras": ["LambdaResNet", "sequences", "every layer"],
    "Keras, any size": ["layers, any size"],
}
BUILDERS: dict[str, Callable[[], keras.Model]] = {
    "Keras": keras_model,
    "Keras, any size": keras_model_of_any_size,
    "LambdaResNet": lambda: small_model(input_size=16),
    "sequences": sequence_model,
    "every layer": every_layer,
    "layers, any size": layers_of_any_size,
}


def arrays(model: keras.Model, batch: int) -> np.ndarray:
    shape = [batch, *(size or 6 + batch for size in model.input_shape[1:])]
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def predict(model: keras.Model, x: np.ndarray) -> np.ndarray:
    return model.predict(x, batch_size=len(x), verbose=0)


def assert_equal(found: Any, expected: np.ndarray, tolerance: float = TOLERANCE):
    scale = max(1, np.abs(expected).max())
    np.testing.assert_allclose(found / scale, expected / scale, rtol=0, atol=tolerance)


def saved_model(model: keras.Model, folder: Path) -> None:
    import tensorflow as tf

    model.export(folder / "saved", verbose=False)
    loaded = tf.saved_model.load(str(folder / "saved"))
    for batch in (1, 3):
        x = arrays(model, batch)
        assert_equal(loaded.serve(x), predict(model, x))


# Name -> what is tried, and the packages that each backend needs for it.
WAYS: dict[str, tuple[Callable[[keras.Model, Path], None], dict[str, list[str]]]] = {
    'export(format="tf_saved_model")': (
        saved_model,
        {"jax": ["tensorflow"], "torch": ["torch_xla"]},
    ),
}


def attempt(name: str, model_name: str) -> str:
    """Returns "yes", or the first words of the error."""
    keras.utils.set_random_seed(0)
    run, _ = WAYS[name]
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            model = BUILDERS[model_name]()
            model(arrays(model, 2))  # Keras exports only what has been called
            run(model, Path(folder))
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return WORKS


def main(names: list[str]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for name in names or WAYS:
        _, packages = WAYS[name]
        missing = [
            package
            for package in packages.get(BACKEND, [])
            if importlib.util.find_spec(package) is None
        ]
        if missing:
            print(f"{name} is not tried without {missing}", file=sys.stderr)
            continue
        for of_keras, ours in MODELS.items():
            offered = attempt(name, of_keras) == WORKS
            for model_name in ours:
                result = attempt(name, model_name) if offered else NOT_OFFERED
                writer.writerow([name, BACKEND, model_name, result])
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
