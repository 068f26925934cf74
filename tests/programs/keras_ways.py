# SPDX-License-Identifier: Apache-2.0
"""Tries Keras's own ways to export and adapt models on lambdanet's: keras_ways.py [NAME ...]

Prints a line of CSV for each way and model on the backend of this process; the names are those of ways. The
models "Keras" have no layer of ours: a way that fails there is none that Keras offers.
tests/backend/keras_ways.csv has the lines of all backends:

    { echo way,backend,model,result
      for backend in tensorflow jax torch; do
        KERAS_BACKEND=$backend python tests/programs/keras_ways.py
      done
      KERAS_NNX_ENABLED=true KERAS_BACKEND=jax python tests/programs/keras_ways.py KERAS_NNX_ENABLED
    } > tests/backend/keras_ways.csv
"""

import contextlib
import csv
import importlib.util
import io
import os
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
NNX = "KERAS_NNX_ENABLED"


def keras_model() -> keras.Model:
    inputs = keras.Input([8, 8, 3])
    x = layers.Conv2D(8, 3, padding="same")(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    return keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling2D()(x)))


def keras_model_of_any_size() -> keras.Model:
    inputs = keras.Input([None, None, 8])
    x = layers.Conv2D(8, 3, padding="same")(inputs)
    return keras.Model(inputs, layers.Dense(4)(x))


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
    x = lambdanet.LambdaLayer(8, scope=5, causal=True)(x)
    return keras.Model(inputs, layers.Dense(4)(x))


# Models of Keras alone -> models with our layers.
MODELS: dict[str, list[str]] = {
    "Keras": ["LambdaResNet", "sequences", "every layer"],
    "Keras, any size": ["maps of any size"],
}
BUILDERS: dict[str, Callable[[], keras.Model]] = {
    "Keras": keras_model,
    "Keras, any size": keras_model_of_any_size,
    "LambdaResNet": lambda: small_model(input_size=16),
    "sequences": sequence_model,
    "every layer": every_layer,
    "maps of any size": layers_of_any_size,
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


def onnx(model: keras.Model, folder: Path) -> None:
    import onnxruntime

    path = str(folder / "model.onnx")
    model.export(path, format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch in (1, 3):
        x = arrays(model, batch)
        (found,) = session.run(None, {session.get_inputs()[0].name: x})
        assert_equal(found, predict(model, x))


def torch_program(model: keras.Model, folder: Path) -> None:
    import torch

    for name, dynamic_shapes, batch in (
        ("one.pt2", None, 1),
        ("any.pt2", {0: torch.export.Dim("batch", min=1, max=64)}, 3),
    ):
        model.export(
            folder / name, format="torch", verbose=False, dynamic_shapes=dynamic_shapes
        )
        x = arrays(model, batch)
        found = torch.export.load(folder / name).module()(torch.tensor(x))
        assert_equal(found.detach().numpy(), predict(model, x))


def litert(model: keras.Model, folder: Path) -> None:
    from ai_edge_litert.interpreter import Interpreter

    path = str(folder / "model.tflite")
    x = arrays(model, 1)
    signature = [keras.InputSpec(shape=x.shape, dtype="float32")]
    model.export(path, format="litert", verbose=False, input_signature=signature)
    interpreter = Interpreter(path)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    output = interpreter.get_output_details()[0]["index"]
    assert_equal(interpreter.get_tensor(output), predict(model, x))


def quantize(model: keras.Model, folder: Path) -> None:
    x = arrays(model, 3)
    expected = predict(model, x)
    model.quantize("int8")
    for layer in model._flatten_layers():
        if isinstance(layer, layers.Dense):
            assert layer.quantization_mode == "int8", layer.name
    found = predict(model, x)
    assert_equal(found, expected, 0.2)
    assert np.abs(found - expected).max() > 0
    model.save(folder / "int8.keras")
    loaded = keras.models.load_model(folder / "int8.keras")
    assert_equal(predict(loaded, x), found)


def enable_lora(model: keras.Model, folder: Path) -> None:
    """Trains adapters alone, saves them, and merges them by a file of weights into a model without."""
    plain = keras.models.clone_model(model)
    plain.set_weights(model.get_weights())
    adapted = [
        layer for layer in model._flatten_layers() if isinstance(layer, layers.Dense)
    ]
    for layer in adapted:
        layer.enable_lora(2)
    frozen = [np.array(layer._kernel) for layer in adapted]
    x = arrays(model, 4)
    model.compile(keras.optimizers.SGD(0.05), "mse")
    model.fit(x, np.ones_like(predict(model, x)), batch_size=4, epochs=2, verbose=0)
    for layer, kernel in zip(adapted, frozen, strict=True):
        np.testing.assert_array_equal(np.array(layer._kernel), kernel)
        assert np.abs(layer.lora_kernel_b).max() > 0, layer.name
    expected = predict(model, x)
    model.save(folder / "lora.keras")
    loaded = keras.models.load_model(folder / "lora.keras")
    assert_equal(predict(loaded, x), expected)
    model.save_weights(folder / "merged.weights.h5")
    plain.load_weights(folder / "merged.weights.h5")
    assert_equal(predict(plain, x), expected)


def stateless_call(model: keras.Model, folder: Path) -> None:
    x = arrays(model, 3)
    outputs, _ = model.stateless_call(
        [variable.value for variable in model.trainable_variables],
        [variable.value for variable in model.non_trainable_variables],
        x,
    )
    assert_equal(keras.ops.convert_to_numpy(outputs), predict(model, x))


def clone_model(model: keras.Model, folder: Path) -> None:
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    x = arrays(model, 3)
    assert_equal(predict(clone, x), predict(model, x))


def nnx_modules(model: keras.Model, folder: Path) -> None:
    """Trains with layers that are modules of Flax, and splits and merges each."""
    from flax import nnx

    x = arrays(model, 4)
    model.compile("sgd", "mse")
    model.fit(x, np.ones_like(predict(model, x)), batch_size=4, verbose=0)
    for layer in model.layers:
        if not isinstance(layer, keras.Model | layers.InputLayer):
            graph, state = nnx.split(layer)
            merged = nnx.merge(graph, state)
            for found, expected in zip(merged.weights, layer.weights, strict=True):
                np.testing.assert_array_equal(found, expected)


# Name -> what is tried, and the packages that each backend needs for it.
WAYS: dict[str, tuple[Callable[[keras.Model, Path], None], dict[str, list[str]]]] = {
    'export(format="tf_saved_model")': (
        saved_model,
        {"jax": ["tensorflow"], "torch": ["torch_xla"]},
    ),
    'export(format="onnx")': (
        onnx,
        {
            "tensorflow": ["tf2onnx", "onnxruntime"],
            "jax": ["jax2onnx", "onnxruntime"],
            "torch": ["onnx", "onnxruntime"],
        },
    ),
    'export(format="litert")': (
        litert,
        {"tensorflow": ["ai_edge_litert"], "torch": ["litert_torch", "ai_edge_litert"]},
    ),
    'export(format="torch")': (torch_program, {}),
    'quantize("int8")': (quantize, {}),
    "enable_lora": (enable_lora, {}),
    "stateless_call": (stateless_call, {}),
    "clone_model": (clone_model, {}),
    NNX: (nnx_modules, {"jax": ["flax"]}),
}


def attempt(name: str, model_name: str) -> str:
    """Returns "yes", or the kind of error; the standard error has its message."""
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
        print(f"{name}, {model_name}: {error}", file=sys.stderr)
        return type(error).__name__
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
        if name == NNX and os.environ.get(NNX) != "true":
            missing = [f"{NNX}=true"]
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
