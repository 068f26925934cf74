# SPDX-License-Identifier: Apache-2.0
"""The form of a model for inference computes the same with fewer layers, and with constant tables."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    assert_close,
    assert_equal_arrays,
    assert_near,
    images,
    randomize_normalizations,
    reloaded,
)
from refusals import refused
from small_models import small_model

import lambdanet
from lambdanet import LambdaLayer
from lambdanet.backend import compat

layers = keras.layers
TRAINING_ONLY = {
    layers.BatchNormalization,
    layers.Dropout,
    lambdanet.StochasticDepth,
}


def outputs(model, x):
    return [
        output.numpy()
        for output in tf.nest.flatten(model(tf.cast(x, model.inputs[0].dtype)))
    ]


def assert_equal(model, found, x, tolerance=1e-9):
    for expected, output in zip(outputs(model, x), outputs(found, x), strict=True):
        assert np.std(expected) > 0
        assert_near(output, expected, tolerance)


def randomized(model):
    randomize_normalizations(model)
    for layer in model.layers:
        if isinstance(layer, layers.Normalization):
            layer.finalize_state()
    return model


def user_model():
    """A model with each kind of call that there is in a functional model."""
    i = keras.Input([8, 6, 3], name="images")
    # Nothing to fold into.
    x = layers.BatchNormalization(name="first")(layers.Normalization()(i))
    x = layers.Conv2D(4, 3, activation="relu", name="active")(x)
    x = layers.BatchNormalization(name="after_relu")(x)
    read_twice = layers.Conv2D(4, 1, name="read_twice")(x)
    x = layers.BatchNormalization(name="kept")(read_twice) + read_twice
    x = layers.Dropout(0.3)(layers.GaussianNoise(0.1)(x), training=False)
    shared, norms = (
        layers.Dense(5, name="shared"),
        [layers.BatchNormalization(scale=False) for _ in "ab"],
    )
    x = norms[0](shared(x)) + norms[1](shared(x))
    inner = keras.Sequential(
        [keras.Input([None, None, 5]), layers.Conv2D(6, 1), layers.BatchNormalization()]
    )
    x = keras.ops.relu(inner(x) + inner(x))[:, ::2]
    x = layers.BatchNormalization(axis=2, name="along_width")(x)
    x = LambdaLayer(8, scope=5, position_bias=True)(x, context=x)
    x = LambdaLayer(8, position="unstructured", num_heads=2, multi_head=True)(x)
    x = layers.Conv2DTranspose(4, 2)(x)
    return keras.Model(
        {"images": i}, {"map": layers.BatchNormalization(name="last")(x), "mean": x}
    )


def test_other_models_compute_the_same(double_precision, tmp_path):
    model = randomized(user_model())
    before = [weight.copy() for weight in model.get_weights()]
    fast = lambdanet.for_inference(model)
    x = {"images": tf.cast(images(2, 8, 6, 3), "float64")}
    for name, expected in model(x).items():
        np.testing.assert_allclose(fast(x)[name], expected, atol=1e-12)
    folded = [
        layer.name
        for layer in fast.layers
        if isinstance(layer, (lambdanet.ChannelAffine, layers.BatchNormalization))
    ]
    assert folded[:3] == ["first", "after_relu", "kept"]
    assert folded[-2:] == ["along_width", "last"] and len(folded) == 7
    assert isinstance(fast.get_layer("along_width"), layers.BatchNormalization)
    assert_equal_arrays(model.get_weights(), before)
    # The original has no second call.
    assert model.get_layer("active").output.shape[-1] == 4
    loaded = reloaded(fast, tmp_path)
    np.testing.assert_array_equal(loaded(x)["map"], fast(x)["map"])


def test_model_for_inference_does_not_train(tmp_path):
    """Nor does a saved one, alone; on each backend of Keras 3 see programs/keras_tests.py."""
    fast = lambdanet.for_inference(
        inner_model(layers.Conv2D(3, 1), layers.BatchNormalization())
    )
    loaded, x = reloaded(fast, tmp_path), images(2, 6, 6, 3)
    np.testing.assert_array_equal(loaded(x, training=False), fast(x))
    loaded.compile("sgd", "mse")
    message = "training must be False for a model of for_inference, got True"
    for train in (lambda: loaded(x, True), lambda: loaded.train_on_batch(x, x)):
        with refused(message):
            train()
    outer = keras.Sequential([keras.Input([6, 6, 3]), fast, layers.Dense(1)])
    np.testing.assert_array_equal(outer(x, training=True), outer(x))


class TrainedInside(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = layers.BatchNormalization()

    def call(self, inputs, training=None):
        return self.norm(inputs, training=True)


def inner_model(*layers_of_it):
    return keras.Sequential([keras.Input([6, 6, 3]), *layers_of_it])


@pytest.mark.parametrize(
    "trained",
    [
        lambda: inner_model(layers.Conv2D(3, 1), layers.BatchNormalization()),
        lambda: inner_model(layers.Conv2D(3, 1), layers.Dropout(0.5, seed=1)),
        lambda: TrainedInside(),
        lambda: LambdaLayer(4, scope=3),
        lambda: lambdanet.PooledBatchNormalization(),
        lambda: layers.BatchNormalization(),
    ],
)
def test_a_layer_called_for_training_is_copied_as_it_is(trained, double_precision):
    i, layer = keras.Input([6, 6, 3]), trained()
    inner = keras.Model(i, [layer(i, training=False), layer(i, training=True)])
    outer = keras.Input([6, 6, 3])
    model = keras.Model(outer, inner(outer))
    randomize_normalizations(model)
    fast, x = lambdanet.for_inference(model), images(2, 6, 6, 3)
    found = []
    for network in (model, fast):
        keras.utils.set_random_seed(1)
        found.append(outputs(network, x))
    assert_equal_arrays(*found, atol=1e-9)


def relu(x):
    """A function of the user, of the name of another one in Keras."""
    return tf.nn.leaky_relu(x, 0.5)


def shared_means():
    i, norm = keras.Input([6, 6, 3]), lambdanet.PooledBatchNormalization()
    return keras.Model(
        i, [norm(layers.Conv2D(3, 1)(i)), norm(layers.Conv2D(3, 3)(i)), norm(i)]
    )


def frozen(layer, part):
    """A model in which a part of a layer is not trained."""
    model = inner_model(layers.Dense(4), layer)
    (part_layer,) = [x for x in compat.sublayers(model) if x.name == part]
    part_layer.trainable = False
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: small_model("lamhalobotnet50ts_256", 32),
        lambda: small_model("lambda_resnet_50", 32),
        lambda: small_model("resnet_50_axial_attention", 32),
        lambda: small_model("mobilenet_v2_lambda", 32),
        pytest.param(lambda: small_model("halonet_h0", 32), marks=pytest.mark.weekly),
        pytest.param(
            lambda: small_model("efficientnet_b0", 32), marks=pytest.mark.weekly
        ),
        lambda: inner_model(
            layers.Conv2D(4, 1), layers.BatchNormalization(renorm=True)
        ),
        lambda: inner_model(
            layers.Conv2D(6, 3, groups=3, use_bias=False), layers.BatchNormalization()
        ),
        lambda: inner_model(
            layers.Dense(6, bias_initializer="normal"),
            layers.BatchNormalization(scale=False),
        ),
        lambda: inner_model(
            layers.DepthwiseConv2D(3, depth_multiplier=2),
            layers.BatchNormalization(center=False),
        ),
        lambda: inner_model(layers.Dense(4, activation=relu), layers.Activation(relu)),
        shared_means,
        lambda: frozen(
            layers.TimeDistributed(layers.Bidirectional(layers.SimpleRNN(3))),
            "forward_simple_rnn",
        ),
        lambda: frozen(lambdanet.SqueezeExcite(1.0), "reduce"),
        lambda: frozen(lambdanet.HaloAttention(4, 2, 2, 1, key_dim=4), "keys"),
    ],
)
def test_models_compute_the_same(make, double_precision):
    model = randomized(make())
    x = tf.floor(2 * tf.abs(images(2, *model.input_shape[1:])))
    assert_equal(model, lambdanet.for_inference(model), x)


def test_nothing_for_training_is_left():
    rates = {"dropout_rate": 0.1, "stochastic_depth_rate": 0.1}
    fast = lambdanet.for_inference(
        lambdanet.create_model("lambda_resnet_tiny", **rates)
    )
    kinds = set(map(type, compat.sublayers(fast)))
    assert not kinds & TRAINING_ONLY and not fast.trainable_weights


def test_inputs_and_outputs_keep_their_names():
    def dropout(name="dropout"):
        return layers.Dropout(0.5, name=name)

    def norm():
        return layers.BatchNormalization(name="norm")

    x = keras.Input([6])
    dense, other = layers.Dense(4, name="dense")(x), layers.Dense(3, name="other")(x)
    once, shared = dropout()(dense), dropout()
    for result in (
        norm()(x),
        [once, once, dense],
        [shared(dense), shared(other)],
        {"a": dropout()(dropout("first")(dense)), "b": norm()(other)},
    ):
        model = randomized(keras.Model(x, result))
        fast = lambdanet.for_inference(model)
        assert fast.output_names == model.output_names
        assert_equal(model, fast, images(2, 6), 1e-6)
    tail = keras.Model(dense, layers.Dense(3)(dense))
    assert lambdanet.for_inference(tail).inputs[0].name == tail.inputs[0].name


def traced(model, size):
    function = tf.function(lambda x: model(x, training=False), autograph=False)
    return function.get_concrete_function(tf.TensorSpec([None, size, size, 3]))


def read_tables(function, model):
    captured = {id(outer) for outer, _ in function.graph.captures}
    return [
        v.name
        for v in model.variables
        if id(v.handle) in captured and "table" in v.name
    ]


@pytest.mark.parametrize(
    ("layer", "expanded"),
    [
        (
            lambda: LambdaLayer(8, scope=5, implementation="einsum"),
            (36 * 16, 36),
        ),
        (
            lambda: LambdaLayer(
                8,
                scope=None,
                map_size=4,
                resize="interpolate",
                implementation="query_first",
            ),
            (36 * 16, 36),
        ),
        (
            lambda: LambdaLayer(8, position="unstructured", intra_depth=2),
            (36 * 16, 72),
        ),
        (lambda: lambdanet.GlobalAttention(8, num_heads=2), (36, 12, 4)),
        (lambda: lambdanet.AxialAttention(8, num_heads=2), (6, 6, 4)),
        (
            lambda: lambdanet.HaloAttention(8, num_heads=2, block_size=2, halo_size=1),
            (4, 8, 4),
        ),
    ],
)
def test_tables_are_constants_of_the_graph(layer, expanded):
    i = keras.Input([6, 6, 3])
    model = keras.Model(i, layer()(i))
    x, fast = images(2, 6, 6, 3), lambdanet.for_inference(model)
    function, plain = traced(fast, 6), traced(model, 6)
    assert read_tables(plain, model) and not read_tables(function, fast)
    constants = [
        op.outputs[0].shape
        for op in function.graph.get_operations()
        if op.type == "Const"
    ]
    size = np.prod(expanded)
    assert size in [shape.num_elements() for shape in constants]
    assert_close(function(x), plain(x), 1e-5)
    for weight in fast.weights:
        if "table" in weight.name:
            weight.assign(weight + 1)
    outputs = function(x)  # with the tables at the trace
    assert_close(outputs, plain(x), 1e-5)


@pytest.mark.slow
def test_maps_of_unknown_size_are_accepted(double_precision):
    i = keras.Input([None, None, 3])
    x = lambdanet.HaloAttention(8, 2, 2, 1)(LambdaLayer(8, scope=3)(i))
    x = LambdaLayer(8, scope=None, map_size=4, resize="interpolate")(x)
    model = keras.Model(i, lambdanet.GlobalAttention(8, num_heads=2, map_size=9)(x))
    fast = lambdanet.for_inference(randomized(model))
    serve = tf.function(fast, reduce_retracing=True)
    for x in (images(1, 5, 7, 3), images(2, 4, 4, 3)):
        x = tf.cast(x, "float64")
        np.testing.assert_allclose(serve(x), model(x), atol=1e-12)


def test_half_precision_stays():
    with compat.dtype_policy("mixed_bfloat16"):
        i = keras.Input([8, 8, 3])
        x = layers.BatchNormalization()(layers.Conv2D(8, 3)(i))
        x = layers.BatchNormalization()(LambdaLayer(8, scope=3)(x))
        x = layers.BatchNormalization(dtype="float32", name="wide")(
            layers.Conv2D(8, 1)(x)
        )
        x = layers.GlobalAveragePooling2D()(x)
        model = keras.Model(i, layers.Dense(4, dtype="float32")(x))
    randomize_normalizations(model)
    fast = lambdanet.for_inference(model)
    computed = {layer.name: layer.compute_dtype for layer in fast.layers[1:-2]}
    assert computed.pop("wide") == "float32" and {*computed.values()} == {"bfloat16"}
    # Not in the precision of the convolution.
    assert fast.get_layer("wide").output.dtype == tf.float32
    assert_equal(model, fast, images(4, 8, 8, 3), tolerance=0.05)
    assert fast.output.dtype == tf.float32


class Subclassed(keras.Model):
    def call(self, inputs):
        return inputs


class WithoutConfig(layers.Layer):
    def call(self, inputs):
        return inputs

    def get_config(self):
        raise NotImplementedError("no configuration")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda: Subclassed(),
            "model must be a functional model, or a Sequential one with an Input, got ",
        ),
        (lambda: "resnet_50", "got 'resnet_50'"),
        (
            lambda: inner_model(WithoutConfig(name="mine")),
            "no form for inference: layer 'mine' cannot be copied",
        ),
    ],
)
def test_other_models_are_rejected(model, message):
    with refused(message):
        lambdanet.for_inference(model())
