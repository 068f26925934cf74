# SPDX-License-Identifier: Apache-2.0
"""Properties of every layer beside those that Keras's own test checks, which programs/keras_tests.py runs.

Keras's test compares configurations, weights and types, and trains a step by XLA.
"""

import json
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    assert_near,
    images,
    product_error,
    relative_error,
    reloaded,
    with_gradients,
)
from layer_table import LAYERS as TABLE
from naive_layers import by_reference, randomize
from numpy.testing import assert_allclose
from refusals import refused

import lambdanet
from lambdanet import LambdaLayer
from lambdanet import backend as K
from lambdanet.backend import compat, keras
from lambdanet.explain.gradients import gradient
from lambdanet.ops import kernels

LAYERS = {
    **TABLE,
    "LambdaLayer_causal": partial(LambdaLayer, 8, scope=5, causal="time"),
}


@pytest.fixture(params=LAYERS)
def make(request):
    return LAYERS[request.param]


def test_graphs_equal_eager_on_any_size(make):
    """A graph of unknown sizes, and one by XLA; also without images, as an exported model may get them."""
    layer = make()
    layer(images(1, 6, 5, 8))
    unknown = [tf.TensorSpec([None, None, None, 8])]
    graph = tf.function(layer, input_signature=unknown)
    compiled = tf.function(layer, jit_compile=True)
    for shape in ([0, 6, 5, 8], [3, 2, 9, 8], [2, 6, 5, 8]):
        x = images(*shape)
        eager = layer(x)
        assert eager.shape == shape
        assert_allclose(graph(x), eager, atol=1e-5)
    assert_allclose(compiled(x), eager, atol=1e-5)


def test_config_of_a_subclass_has_the_arguments_of_its_base():
    class Narrow(LambdaLayer):
        def __init__(self, width=4, **kwargs):
            super().__init__(scope=width + 1, **kwargs)

    config = Narrow(filters=8, multi_head=True).get_config()
    expected = LambdaLayer(8, scope=5, multi_head=True).get_config()
    assert {**config, "name": None} == {**expected, "name": None}


def test_a_map_of_size_0_is_rejected(make):
    for shape in ([2, 0, 5, 8], [2, 6, 0, 8]):
        with refused("each side of a map must be at least 1, got"):
            make()(tf.zeros(shape))


def test_integers_of_numpy_are_python_integers_in_the_config(make):
    layer = make()
    config = layer.get_config()
    integers = {
        name: np.int64(n)
        for name, n in config.items()
        if isinstance(n, int) and n is not bool(n)
    }
    sizes = {
        name: tuple(size if size is None else np.int64(size) for size in n)
        for name, n in config.items()
        if isinstance(n, tuple)
    }
    same = type(layer).from_config({**config, **integers, **sizes}).get_config()
    assert json.loads(json.dumps(same)) == json.loads(json.dumps(config))


def test_half_precision_stays_near_float32(make):
    """Outputs and gradients, and no infinity for inputs fifty times as large.

    A layer is a chain of products, so its error is some times that of one product in the same precision: up
    to 11 where sums are rounded, and up to 18 where their last bits are dropped, always in one direction.
    """
    keras.utils.set_random_seed(8)
    x = tf.cast(tf.cast(images(2, 9, 7, 8), "bfloat16"), tf.float32)
    layers = [make(), make(dtype="mixed_bfloat16"), make(dtype="mixed_float16")]
    for layer in layers:
        layer.build(x.shape)
    random = np.random.default_rng(1)  # for biases and averages, which are zeros
    weights = [
        w if np.any(w) else random.normal(0, 0.03, w.shape)
        for w in layers[0].get_weights()
    ]
    results = []
    for layer in layers:
        layer.set_weights(weights)

        def function(x, *_, layer=layer):
            return tf.cast(layer(x), tf.float32)

        results.append(
            with_gradients(function, [x, *layer.trainable_weights], tf.square)
        )
    expected, *of_halves = results
    assert all(np.any(array) for array in expected)
    for layer, found in zip(layers[1:], of_halves, strict=True):
        limit = 24 * product_error(layer.compute_dtype)
        for one, other in zip(found, expected, strict=True):
            assert relative_error(one, other) < limit
        for array in with_gradients(partial(layer, training=True), [50 * x]):
            assert np.isfinite(tf.cast(array, tf.float32)).all()


@pytest.mark.jax
@pytest.mark.parametrize("name", [name for name in TABLE if "LambdaLayer" in name])
def test_gradients_equal_those_of_the_reference(name, monkeypatch):
    """Those of the squares of the outputs, with a context of its own; the reference has no other form."""
    x, context = (K.convert_to_tensor(images(2, *size, 8)) for size in ([6, 5], [7, 3]))
    layer = TABLE[name]()
    layer(x, context=context)
    randomize(layer)

    def slopes(layer):
        compute = gradient(lambda x: K.square(layer(x, context=context)))
        return K.convert_to_numpy(compute(x))

    expected = slopes(layer)
    monkeypatch.delattr(kernels, "apply_term")
    assert_near(slopes(by_reference(layer)), expected, 1e-5)


WITH_REGULARIZER = [
    name for name, make in LAYERS.items() if "kernel_regularizer" in make().get_config()
]


@pytest.mark.parametrize("name", WITH_REGULARIZER)
def test_regularizer_counts_the_kernels_alone(name):
    layer = LAYERS[name](kernel_regularizer=keras.regularizers.L2(0.5))
    layer(tf.ones([1, 4, 4, 8]))
    kernels = [
        weight
        for weight in layer.trainable_weights
        if "kernel" in compat.variable_name(weight)
    ]
    assert kernels
    assert_allclose(sum(layer.losses), sum(map(tf.nn.l2_loss, kernels)), rtol=1e-5)


def test_save_and_load(tmp_path):
    """All layers in one model, whose file takes a second."""
    inputs = keras.Input([None, None, 8])
    model = keras.Model(inputs, {name: make()(inputs) for name, make in LAYERS.items()})
    x = images(2, 6, 5, 8)
    outputs = reloaded(model, tmp_path)(x)
    for name, expected in model(x).items():
        assert_allclose(outputs[name], expected, atol=1e-5, err_msg=name)


def test_a_table_that_a_layer_takes_from_another_is_shared(tmp_path):
    """Keras 3 keeps shared objects while it loads a .keras file, and in no other copy, which is refused."""
    inputs = keras.Input([6, 6, 8])
    first = LambdaLayer(8, scope=5)
    outputs = LambdaLayer(8, position=first.position)(first(inputs))
    model = keras.Model(inputs, outputs)
    for shared in (model, reloaded(model, tmp_path, images(2, 6, 6, 8))):
        assert sum("table" in weight.name for weight in shared.weights) == 1
    copies = [
        lambda: keras.Model.from_config(model.get_config()),
        lambda: keras.models.model_from_json(model.to_json()),
        lambda: keras.models.clone_model(model),
    ]
    for copy in copies:
        with refused("save the model as a .keras file and load that$"):
            copy()
    layer = LambdaLayer(8, position=lambdanet.RelativePositionEmbedding())
    alone = keras.Sequential([keras.Input([None, None, 8]), layer])
    assert keras.models.clone_model(alone).count_params() == alone.count_params()
