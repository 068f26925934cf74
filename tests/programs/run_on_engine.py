# SPDX-License-Identifier: Apache-2.0
"""Computes layers and models on the backend of this process; as a program, it records samples of the arrays.

`tests/backend/engines.npz` was written by `run_on_engine.py SAMPLES.npz` on TensorFlow. It agreed, to the
tolerance of the test, with what tf_keras computed at the tag `last-with-both-kerases`, whose normalizations,
dense layers and convolutions are an implementation of their own.
"""

import contextlib
import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
from layer_table import LAYERS
from naive_layers import images
from samples import samples, save
from small_models import few_block_model, only_few_blocks, timm_shapes

import lambdanet
from lambdanet import backend as K
from lambdanet.backend import compat, keras
from lambdanet.models import unet, zoo
from lambdanet.models.spatial_ops import Convolution, LambdaOperation
from lambdanet.models.weights import timm_rules, weight_files

IMAGES = (2, 6, 5, 8)
LambdaLayer = lambdanet.LambdaLayer
SEQUENCES, VOLUMES = (2, 9, 8), (2, 3, 4, 5, 8)
# Of lambda layers: options, the shape of the input, and arguments of the call.
LAMBDAS = {
    "pool": ({"scope": 3, "strides": 2, "pool_size": 3}, IMAGES, {}),
    "depthwise": ({"scope": 5, "implementation": "depthwise_conv"}, IMAGES, {}),
    "causal": ({"scope": 5, "causal": True, "batch_norm": False}, SEQUENCES, {}),
    "padding": (
        {"scope": 5, "strides": 2, "pool_size": 3},
        SEQUENCES,
        {"padding_mask": np.arange(9) < np.array([[4], [9]])},
    ),
    "examples": (
        {"scope": 5},
        SEQUENCES,
        {"attention_mask": np.stack([np.tri(9), np.tri(9).T])},
    ),
    "video": (
        {"scope": (3, 5, 3), "strides": (1, 2, 2), "pool_size": (1, 3, 3)},
        VOLUMES,
        {},
    ),
    "unstructured": ({"position": "unstructured"}, SEQUENCES, {}),
}
# Layers by name: a function that makes one, the shape of its input, and arguments of its call.
CASES = {
    **{name: (make, IMAGES, {}) for name, make in LAYERS.items()},
    **{
        name: (partial(LambdaLayer, 8, **options), *case)
        for name, (options, *case) in LAMBDAS.items()
    },
    "stacks": (
        partial(lambdanet.SliceLambdaLayer, 8, scope=3, intra_depth=2),
        VOLUMES,
        {},
    ),
    "unet": (lambda: small_unet((2, 2, 2)), (1, 3, 5, 6, 8), {}),
    "halo_strides": (
        partial(lambdanet.HaloAttention, 4, 2, 4, strides=2),
        (2, 9, 6, 8),
        {},
    ),
    "max_pool": (partial(lambdanet.CenteredMaxPooling2D, 3, 2), (2, 9, 6, 8), {}),
}
del CASES["StochasticDepth"]  # which is random
NAME = "lambda_resnet_tiny"
LABELS = np.arange(8) % 4
# Networks of one block of each kind; JAX takes 20 seconds for one.
NETWORKS = (
    "lamhalobotnet50ts_256",
    "mobilenet_v2_lambda",
    "halonet_h0",
    "haloregnetz_b",
    "resnet_50_augmented",
    "resnet_50_axial_attention",
    "lambda_resnet_50",
)
PARTS = (*CASES, "model", *NETWORKS)


def write_weights(folder: Path) -> None:
    """Writes weights of a small model that depend on their names alone, in our format and Keras's."""
    model = small_model()
    assign_values(model, NAME, 0.1)
    weight_files.save(model, folder / "weights.safetensors")
    model.save_weights(folder / "small.weights.h5")


def assign_values(model, name: str, scale: float) -> None:
    """Gives the weights of a model of the zoo values that depend on their names alone."""
    variables = weight_files.weights_by_name(model)
    values = {
        path: random_value(path, variable.shape, scale)
        for path, variable in variables.items()
    }
    weight_files.assign_weights(model, values, name)


def arrays(part: str) -> dict[str, np.ndarray]:
    """Returns the arrays of one of `PARTS`, whatever was computed before."""
    keras.backend.clear_session()  # values depend on names, and these on counters
    with constant_initializers():
        if part == "model":
            return model_arrays()
        if part in NETWORKS:
            return network_arrays(part)
        make, shape, arguments = CASES[part]
        return layer_arrays(make(), images(*shape), arguments)


@contextlib.contextmanager
def constant_initializers():
    """Makes initializers return constants of NumPy; JAX compiles programs for each shape of random values."""
    with contextlib.ExitStack() as patches:
        for kind in ("VarianceScaling", "RandomNormal", "Ones", "Zeros"):
            value = 0 if kind == "Zeros" else 1

            def full(_, shape, dtype=None, value=value, **__):
                return np.full(shape, value, "float32")

            patches.enter_context(
                mock.patch.object(getattr(keras.initializers, kind), "__call__", full)
            )
        yield


def layer_arrays(layer, x: np.ndarray, arguments: dict) -> dict[str, np.ndarray]:
    """Returns outputs, gradients and averages of a layer with weights that depend on their names alone."""
    layer.build(x.shape)
    for variable in layer.weights:
        name = short_name(layer, variable)
        variable.assign(random_value(name, variable.shape, 0.3))
    inference, outputs, by_input, gradients = ENGINES[K.ENGINE](layer, x, arguments)
    found = {
        "inference": numpy(inference),
        "training": numpy(outputs),
        "gradient": numpy(by_input),
    }
    for variable, gradient in zip(layer.trainable_variables, gradients, strict=True):
        found[f"gradient of {short_name(layer, variable)}"] = numpy(gradient)
    for variable in layer.non_trainable_weights:
        found[short_name(layer, variable)] = numpy(variable)
    return found


def random_value(name: str, shape: Sequence[int], scale: float) -> np.ndarray:
    random = np.random.default_rng(list(name.encode()))
    # A prime number of values, repeated: drawing millions takes seconds.
    value = np.resize(
        random.standard_normal(10_007, np.float32) * np.float32(scale), tuple(shape)
    )
    return np.abs(value) + np.float32(0.5) if "var" in name else value


def short_name(layer, variable) -> str:
    return compat.variable_name(variable).removeprefix(f"{layer.name}/")


def numpy(x) -> np.ndarray:
    return keras.ops.convert_to_numpy(x)


def with_tensorflow(layer, x, arguments):
    import tensorflow as tf

    inference = layer(x, **arguments)
    with tf.GradientTape() as tape:
        x = tf.constant(x)
        tape.watch(x)
        outputs = call_for_training(layer, x, arguments)
        loss = tf.reduce_sum(tf.sin(outputs))
    variables = [variable.value for variable in layer.trainable_variables]
    by_input, *gradients = tape.gradient(loss, [x, *variables])
    return (
        inference,
        outputs,
        by_input,
        [tf.convert_to_tensor(gradient) for gradient in gradients],
    )


def with_jax(layer, x, arguments):
    """Compiles all at once; a call outside `jit` compiles each operation."""
    import jax

    fixed = [variable.value for variable in layer.non_trainable_variables]
    # Past `__call__`, two axes are those of a padding mask.
    if np.ndim(arguments.get("attention_mask")) == 2:
        arguments = arguments | {"attention_mask": arguments["attention_mask"][None]}

    def loss(x, weights):
        takes_training = layer._call_has_training_arg
        training = {"training": True} if takes_training else {}
        inference, _ = layer.stateless_call(weights, fixed, x, **arguments)
        outputs, averages = layer.stateless_call(
            weights, fixed, x, **arguments, **training
        )
        return jax.numpy.sum(jax.numpy.sin(outputs)), (inference, outputs, averages)

    weights = [variable.value for variable in layer.trainable_variables]
    step = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
    (_, (inference, outputs, averages)), (by_input, gradients) = step(x, weights)
    for variable, value in zip(layer.non_trainable_variables, averages, strict=True):
        variable.assign(value)
    return inference, outputs, by_input, gradients


def with_torch(layer, x, arguments):
    import torch

    inference = layer(x, **arguments)
    place = K.convert_to_tensor(x).device
    x = torch.tensor(x, device=place, requires_grad=True)
    outputs = call_for_training(layer, x, arguments)
    torch.sin(outputs).sum().backward()
    return (
        inference,
        outputs,
        x.grad,
        [variable.value.grad for variable in layer.trainable_variables],
    )


def call_for_training(layer, x, arguments):
    try:
        return layer(x, training=True, **arguments)
    except TypeError:  # a layer without a mode
        return layer(x, **arguments)


ENGINES = {"tensorflow": with_tensorflow, "jax": with_jax, "torch": with_torch}


def small_unet(strides):
    """Returns a U-Net of two levels, with convolutions and a lambda layer, for maps of odd sides."""
    operations = {"C": Convolution(), "L": LambdaOperation(options={"scope": 3})}
    network = unet.UNet((4, 8), ("C", "L"), ("C",), operations, strides)
    return unet.create_unet(network, num_classes=2, in_channels=8)


def small_model(**options):
    """Returns a tiny network of one block, with a lambda layer, strides, and squeeze-and-excitation."""
    one_block = dataclasses.replace(
        zoo.MODELS[NAME], stages=("", "", "", "L"), se_ratios=(0, 0, 0, 0.25)
    )
    with mock.patch.dict(zoo.MODELS, {NAME: one_block}):
        return lambdanet.create_model(NAME, **{"num_classes": 4, **options})


def network_arrays(name: str) -> dict[str, np.ndarray]:
    """Returns the size, and the logits on a map of odd sides; timm's rules load its networks."""
    model = few_block_model(name)
    if name in zoo.timm_networks.MODELS:
        shapes = timm_shapes(model)
        timm_rules.load(
            model,
            {name: random_value(name, shape, 0.05) for name, shape in shapes.items()},
        )
    else:
        assign_values(model, name, 0.05)
    model.run_eagerly = K.ENGINE != "jax"  # which compiles each operation
    logits = model.predict(images(1, 33, 41, 3), verbose=0)
    with only_few_blocks(name):
        info = zoo.model_info(name, input_size=64)
    return {"logits": logits, "size": np.array([info.params, info.flops])}


def model_arrays() -> dict[str, np.ndarray]:
    """Returns the logits, features, and the weights after three steps."""
    with tempfile.TemporaryDirectory() as folder:
        write_weights(Path(folder))
        return arrays_of_weights(Path(folder))


def arrays_of_weights(folder: Path) -> dict[str, np.ndarray]:
    x, weights = images(8, 16, 16, 3), folder / "weights.safetensors"
    model = small_model(weights=weights)
    # Else JAX also compiles each operation.
    assert all(layer.built for layer in model._flatten_layers())
    found = {
        "logits": model.predict(x, verbose=0),
        "logits of another size": model.predict(x[:, :12], verbose=0),
    }
    loaded = small_model()
    loaded.load_weights(folder / "small.weights.h5")
    for ours, keras_own in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, keras_own)
    found["logits for inference"] = lambdanet.for_inference(model).predict(x, verbose=0)
    embedding = small_model(weights=weights, num_classes=0, in_channels=1)
    found["embedding of gray images"] = embedding.predict(x[..., :1], verbose=0)
    trunk = small_model(weights=weights, features_only=True)
    found |= {
        f"features {level}": array
        for level, array in trunk.predict(x, verbose=0).items()
    }
    with two_devices():
        model = small_model(
            weights=weights,
            kernel_regularizer=keras.regularizers.L2(1e-3),
            # Else the statistics of each device.
            batch_norm={"synchronized": K.ENGINE == "jax"},
        )
        # Large steps amplify the last digits.
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss)
        model.fit(x, LABELS, batch_size=8, epochs=3, shuffle=False, verbose=0)
        found["number of losses"] = np.array(len(model.losses))
        found |= {
            f"trained {name}": numpy(v)
            for name, v in weight_files.weights_by_name(model).items()
        }
    return found


@contextlib.contextmanager
def two_devices():
    """On JAX, divides each batch between two devices, those that XLA_FLAGS makes of the processor."""
    if K.ENGINE != "jax":
        yield
        return
    devices = keras.distribution.list_devices()
    assert len(devices) == 2
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(devices=devices)
    )
    try:
        yield
    finally:
        keras.distribution.set_distribution(None)


def main() -> None:
    found = {}
    for part in PARTS:
        for name, array in arrays(part).items():
            found[f"{part}/{name}"] = samples(array)
    save(sys.argv[1], found)


if __name__ == "__main__":
    main()
