# SPDX-License-Identifier: Apache-2.0
"""The form of a model for inference computes the same with fewer layers, and with constant tables."""

from functools import partial

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
from keras import Input, Model, layers
from numpy.testing import assert_array_equal
from refusals import refused
from small_models import small_model

import lambdanet
from lambdanet import LambdaLayer, RelativePositionEmbedding, for_inference
from lambdanet.backend import compat

weekly = partial(pytest.param, marks=pytest.mark.weekly)


def outputs(model, x):
    found = model(tf.cast(x, model.inputs[0].dtype))
    return [output.numpy() for output in tf.nest.flatten(found)]


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
    i = Input([8, 6, 3], name="images")
    # Nothing to fold into.
    x = layers.BatchNormalization(name="first")(layers.Normalization()(i))
    x = layers.Conv2D(4, 3, activation="relu", name="active")(x)
    x = layers.BatchNormalization(name="after_relu")(x)
    read_twice = layers.Conv2D(4, 1, name="read_twice")(x)
    x = layers.BatchNormalization(name="kept")(read_twice) + read_twice
    x = layers.Dropout(0.3)(layers.GaussianNoise(0.1)(x), training=False)
    shared = layers.Dense(5, name="shared")
    first, second = (layers.BatchNormalization(scale=False)(shared(x)) for _ in "ab")
    x = first + second
    inner = keras.Sequential([layers.Conv2D(6, 1), layers.BatchNormalization()])
    inner.build([None, None, None, 5])
    x = keras.ops.relu(inner(x) + inner(x))[:, ::2]
    x = layers.BatchNormalization(axis=2, name="along_width")(x)
    position = RelativePositionEmbedding(scope=5, use_bias=True)
    x = LambdaLayer(8, position=position)(x, context=x)
    x = LambdaLayer(8, position="unstructured", num_heads=2, multi_head=True)(x)
    x = layers.Conv2DTranspose(4, 2)(x)
    return Model(
        {"images": i}, {"map": layers.BatchNormalization(name="last")(x), "mean": x}
    )


def test_other_models_compute_the_same(double_precision, tmp_path):
    model = randomized(user_model())
    before = [weight.copy() for weight in model.get_weights()]
    fast = for_inference(model)
    x = {"images": tf.cast(images(2, 8, 6, 3), "float64")}
    for name, expected in model(x).items():
        assert_close(fast(x)[name], expected, 1e-9)
    kinds = lambdanet.ChannelAffine, layers.BatchNormalization
    kept = [layer.name for layer in fast.layers if isinstance(layer, kinds)]
    assert kept[:3] == ["first", "after_relu", "kept"]
    assert kept[-2:] == ["along_width", "last"] and len(kept) == 7
    assert isinstance(fast.get_layer("along_width"), layers.BatchNormalization)
    assert_equal_arrays(model.get_weights(), before)
    # The original has no second call.
    assert model.get_layer("active").output.shape[-1] == 4
    loaded = reloaded(fast, tmp_path)
    assert_array_equal(loaded(x)["map"], fast(x)["map"])


def inner_model(*layers_of_it):
    return keras.Sequential([Input([6, 6, 3]), *layers_of_it])


def folded(norm, kind, *arguments, **options):
    """A function that makes a model of a layer, and a normalization that can be folded into it."""
    return lambda: inner_model(
        kind(*arguments, **options), layers.BatchNormalization(**norm)
    )


def test_model_for_inference_does_not_train(tmp_path):
    """Nor does a saved one, alone; another model that has it does."""
    fast = for_inference(folded({}, layers.Conv2D, 3, 1)())
    loaded, x = reloaded(fast, tmp_path), images(2, 6, 6, 3)
    assert_array_equal(loaded(x, training=False), fast(x))
    loaded.compile("sgd", "mse")
    message = "training must be False for a model of for_inference, got True"
    for train in (lambda: loaded(x, True), lambda: loaded.train_on_batch(x, x)):
        with refused(message):
            train()
    outer = keras.Sequential([Input([6, 6, 3]), fast, layers.Dense(1)])
    assert_array_equal(outer(x, training=True), outer(x))
    outer.compile("sgd", "mse")
    outer.train_on_batch(x, x[..., :1])


class TrainedInside(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = layers.BatchNormalization()

    def call(self, inputs, training=None):
        return self.norm(inputs, training=True)


@pytest.mark.parametrize(
    "trained",
    [
        folded({}, layers.Conv2D, 3, 1),
        lambda: inner_model(layers.Conv2D(3, 1), layers.Dropout(0.5, seed=1)),
        TrainedInside,
        lambda: LambdaLayer(4, scope=3),
        lambdanet.PooledBatchNormalization,
        layers.BatchNormalization,
    ],
)
def test_a_layer_called_for_training_is_copied_as_it_is(trained, double_precision):
    i, layer = Input([6, 6, 3]), trained()
    inner = Model(i, [layer(i, training=False), layer(i, training=True)])
    outer = Input([6, 6, 3])
    model = Model(outer, inner(outer))
    randomize_normalizations(model)
    fast, x = for_inference(model), images(2, 6, 6, 3)
    found = []
    for network in (model, fast):
        keras.utils.set_random_seed(1)
        found.append(outputs(network, x))
    assert_equal_arrays(*found, atol=1e-9)


def relu(x):
    """A function of the user, of the name of another one in Keras."""
    return tf.nn.leaky_relu(x, 0.5)


def shared_means():
    i, norm = Input([6, 6, 3]), lambdanet.PooledBatchNormalization()
    return Model(
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
        partial(small_model, "lamhalobotnet50ts_256", 32),
        partial(small_model, "lambda_resnet_50", 32),
        partial(small_model, "resnet_50_axial_attention", 32),
        partial(small_model, "mobilenet_v2_lambda", 32),
        weekly(partial(small_model, "halonet_h0", 32)),
        weekly(partial(small_model, "efficientnet_b0", 32)),
        folded({"renorm": True}, layers.Conv2D, 4, 1),
        folded({}, layers.Conv2D, 6, 3, groups=3, use_bias=False),
        folded({"scale": False}, layers.Dense, 6, bias_initializer="normal"),
        folded({"center": False}, layers.DepthwiseConv2D, 3, depth_multiplier=2),
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
    assert_equal(model, for_inference(model), x)


def test_nothing_for_training_is_left():
    rates = {"dropout_rate": 0.1, "stochastic_depth_rate": 0.1}
    fast = for_inference(lambdanet.create_model("lambda_resnet_tiny", **rates))
    kinds = {layers.BatchNormalization, layers.Dropout, lambdanet.StochasticDepth}
    assert not kinds & {*map(type, compat.sublayers(fast))}
    assert not fast.trainable_weights


def test_inputs_and_outputs_keep_their_names():
    def dropout(name="dropout"):
        return layers.Dropout(0.5, name=name)

    def norm():
        return layers.BatchNormalization(name="norm")

    x = Input([6])
    dense, other = layers.Dense(4, name="dense")(x), layers.Dense(3, name="other")(x)
    once, shared = dropout()(dense), dropout()
    for result in (
        norm()(x),
        [once, once, dense],
        [shared(dense), shared(other)],
        {"a": dropout()(dropout("first")(dense)), "b": norm()(other)},
    ):
        model = randomized(Model(x, result))
        fast = for_inference(model)
        assert fast.output_names == model.output_names
        assert_equal(model, fast, images(2, 6), 1e-6)
    tail = Model(dense, layers.Dense(3)(dense))
    assert for_inference(tail).inputs[0].name == tail.inputs[0].name


def on_maps(layer, size=6):
    i = Input([size, size, 3])
    return randomized(Model(i, layer(i)))


TABLES = {
    "local": (partial(LambdaLayer, 8, scope=5, implementation="einsum"), 36 * 16 * 36),
    "stretched": (
        lambda: LambdaLayer(
            8,
            position=RelativePositionEmbedding(
                scope=None,
                map_size=4,
                resize="interpolate",
                implementation="query_first",
            ),
        ),
        36 * 16 * 36,
    ),
    "unstructured": (
        partial(LambdaLayer, 8, position="unstructured", intra_depth=2),
        36 * 16 * 72,
    ),
    "global": (partial(lambdanet.GlobalAttention, 8, 2), 36 * 12 * 4),
    "axial": (partial(lambdanet.AxialAttention, 8, 2), 6 * 6 * 4),
    "halo": (partial(lambdanet.HaloAttention, 8, 2, 2, 1), 4 * 8 * 4),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_constants_while_they_are_equal(name):
    layer, expanded = TABLES[name]
    fast = for_inference(on_maps(layer()))
    function = tf.function(fast, autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec([None, 6, 6, 3])).graph
    sizes = []
    for choice in graph.get_operations():
        if "If" in choice.type:
            branch = graph._get_function(choice.get_attr("then_branch").name)
            for operation in branch.graph.get_operations():
                if operation.type == "Const":
                    sizes.append(operation.outputs[0].shape.num_elements())
    assert expanded in sizes


def set_weights(model, weights, path):
    model.set_weights(weights)


def load_weights(model, weights, path):
    before = model.get_weights()
    model.set_weights(weights)
    model.save_weights(path / "new.weights.h5")
    model.set_weights(before)
    model.load_weights(path / "new.weights.h5")


def restore(model, weights, path):
    """As by TensorFlow's checkpoints, which do not call Keras."""
    for variable, value in zip(model.variables, weights, strict=True):
        variable.value.assign(value)


CHANGES = (set_weights, set_weights, load_weights, restore)
FIRST = "local"


@pytest.mark.parametrize(
    "name",
    [FIRST, *(pytest.param(x, marks=pytest.mark.slow) for x in TABLES if x != FIRST)],
)
def test_new_weights_hold_in_what_was_traced(name, tmp_path):
    make, _ = TABLES[name]
    fast, other = (for_inference(on_maps(make())) for _ in "ab")
    x = images(2, 6, 6, 3)
    fast.compile("sgd", "mse")
    plain, compiled = (tf.function(fast, jit_compile=jit) for jit in (False, True))
    inside = keras.Sequential([Input([6, 6, 3]), fast])
    calls = [fast, fast.predict_on_batch, plain, compiled, inside.predict_on_batch]
    weights = fast.get_weights(), other.get_weights()
    fast.evaluate(x, np.zeros([2, 6, 6, 8]), verbose=0)
    for number, change in enumerate(CHANGES):
        change(fast, weights[number % 2], tmp_path)
        other.set_weights(weights[number % 2])
        expected = other(x)
        for call in calls:
            assert_close(call(x), expected, 1e-5)
        assert fast.evaluate(x, expected, verbose=0) < 1e-9
    fast.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(tmp_path / "saved")
    assert_close(saved.serve(x), expected, 1e-5)


def test_new_shared_table_holds_in_what_was_traced():
    """Of an embedding that another model trains, and the gradients of both branches."""
    shared = lambdanet.RelativePositionEmbedding(scope=3, constant_tables=True)
    model = on_maps(LambdaLayer(8, position=shared))
    x = tf.constant(images(2, 6, 6, 3))

    def slopes():
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = tf.reduce_sum(model(x, training=False) ** 2)
        return tape.gradient(outputs, x)

    traced = [tf.function(slopes, jit_compile=jit) for jit in (False, True)]
    for _ in range(2):
        expected = slopes()
        for function in traced:
            assert_close(function(), expected, 1e-4)
        shared.table.assign(2 * shared.table + 1)


@pytest.mark.slow
def test_maps_of_unknown_size_are_accepted(double_precision):
    i = Input([None, None, 3])
    x = lambdanet.HaloAttention(8, 2, 2, 1)(LambdaLayer(8, scope=3)(i))
    stretched = RelativePositionEmbedding(scope=None, map_size=4, resize="interpolate")
    x = LambdaLayer(8, position=stretched)(x)
    model = Model(i, lambdanet.GlobalAttention(8, num_heads=2, map_size=9)(x))
    fast = for_inference(randomized(model))
    serve = tf.function(fast, reduce_retracing=True)
    for x in (images(1, 5, 7, 3), images(2, 4, 4, 3)):
        x = tf.cast(x, "float64")
        assert_close(serve(x), model(x), 1e-9)


def test_half_precision_stays():
    with compat.dtype_policy("mixed_bfloat16"):
        i = Input([8, 8, 3])
        x = layers.BatchNormalization()(layers.Conv2D(8, 3)(i))
        x = layers.BatchNormalization()(LambdaLayer(8, scope=3)(x))
        x = layers.Conv2D(8, 1)(x)
        x = layers.BatchNormalization(dtype="float32", name="wide")(x)
        x = layers.GlobalAveragePooling2D()(x)
        model = Model(i, layers.Dense(4, dtype="float32")(x))
    randomize_normalizations(model)
    fast = for_inference(model)
    computed = {layer.name: layer.compute_dtype for layer in fast.layers[1:-2]}
    assert computed.pop("wide") == "float32" and {*computed.values()} == {"bfloat16"}
    # Not in the precision of the convolution.
    assert fast.get_layer("wide").output.dtype == tf.float32
    assert_equal(model, fast, images(4, 8, 8, 3), tolerance=0.05)
    assert fast.output.dtype == tf.float32


class Subclassed(Model):
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
            Subclassed,
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
        for_inference(model())


def test_augmentations_do_nothing_at_inference():
    """Also within other models, also those that train; Keras's default for them is `training=True`."""
    i = Input([6, 6, 3])
    inner = inner_model(layers.RandomFlip(), layers.RandomRotation(0.2))
    model = Model(i, LambdaLayer(8, scope=3)(layers.RandomFlip()(inner(i))))
    plain = Model(i, model.layers[-1](i))
    fast = for_inference(randomized(model))
    outer = keras.Sequential([Input([6, 6, 3]), fast])
    x = images(2, 6, 6, 3)
    for call in (fast, outer, fast.predict_on_batch, for_inference(fast)):
        assert_close(call(x), plain(x), 1e-5)
    assert_close(outer(x, training=True), plain(x), 1e-5)


@pytest.mark.parametrize(
    ("layer", "data", "others"),
    [
        (layers.StringLookup, ["a", "b"], ["b", "z"]),
        (layers.IntegerLookup, [5, 7], [7, 1]),
        (layers.TextVectorization, ["a b", "c"], ["c", "b z"]),
    ],
)
def test_lookups_keep_their_vocabulary(layer, data, others):
    lookup = layer()
    lookup.adapt(np.array(data))
    x = tf.constant(others)[:, None]
    i = Input([1], dtype=x.dtype.name)
    fast = for_inference(Model(i, lookup(i)))
    assert_array_equal(fast(x), lookup(x))
