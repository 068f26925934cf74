# SPDX-License-Identifier: Apache-2.0
"""One table, layers by properties: what every layer of the library keeps as a layer of Keras."""

import json

import numpy as np
import pytest
import tensorflow as tf
from helpers import images, product_error, relative_error, with_gradients
from layer_table import LAYERS

import lambdanet
from lambdanet.backend import compat, keras
from lambdanet.errors import InputError


@pytest.fixture(params=LAYERS)
def make(request):
    return LAYERS[request.param]


def test_unknown_batch_and_changing_non_square_sizes(make):
    layer = make()
    model = keras.Sequential([keras.Input([None, None, 8]), layer])
    for shape in ([1, 4, 4, 8], [3, 5, 2, 8], [2, 7, 9, 8]):
        outputs = model(images(*shape))
        assert outputs.shape == [*shape[:-1], 8]
        np.testing.assert_allclose(outputs, layer(images(*shape)), atol=1e-5)


@pytest.mark.parametrize(
    "policy", ["float32", "mixed_bfloat16", "mixed_float16", "float64"]
)
def test_declared_outputs_equal_traced_ones(make, policy):
    """Shapes do not depend on the precision, so only one precision is traced with unknown sizes too."""
    layer = make(dtype=policy)
    for size in ([6, 5], [None, 5], [None, None]) if policy == "float32" else ([6, 5],):
        declared = layer(keras.Input([*size, 8], dtype=layer.compute_dtype))
        spec = tf.TensorSpec([None, *size, 8], layer.compute_dtype)
        traced = tf.function(layer).get_concrete_function(spec)
        assert declared.dtype == traced.output_dtypes
        assert tuple(declared.shape) == (None, *size, 8)
        assert traced.output_shapes.is_compatible_with(declared.shape)


def test_declared_outputs_of_pairs_and_strides_equal_traced_ones():
    x = keras.Input([None, 7, 8])
    pair = lambdanet.PooledBatchNormalization(dtype="mixed_bfloat16")(x)
    layers = (
        lambdanet.LambdaLayer(12, scope=3, strides=2),
        lambdanet.LambdaLayer(12, scope=3, strides=2, pool_size=3),
        lambdanet.HaloAttention(4, 2, 4, strides=2),
        lambdanet.CenteredMaxPooling2D(3, 2),
    )
    outputs = [
        *pair,
        lambdanet.SqueezeExcite(dtype="mixed_bfloat16")(pair),
        *(layer(x) for layer in layers),
    ]
    model = keras.Model(x, outputs)
    for declared, computed in zip(outputs, model(images(2, 5, 7, 8)), strict=True):
        assert declared.dtype == computed.dtype
        assert declared.shape[-1] == computed.shape[-1]
        assert computed.shape.is_compatible_with(declared.shape)
        assert len(declared.shape) != 4 or declared.shape[2] == computed.shape[2]


def test_config_round_trip(make):
    layer = make(name="mine", dtype="mixed_bfloat16")
    clone = type(layer).from_config(layer.get_config())
    assert (clone.name, clone.get_config()) == ("mine", layer.get_config())


def test_config_of_a_subclass_has_the_arguments_of_its_base():
    class Narrow(lambdanet.LambdaLayer):
        def __init__(self, width=4, **kwargs):
            super().__init__(scope=width + 1, **kwargs)

    layer = Narrow(filters=8, multi_head=True)
    with pytest.raises(
        AttributeError, match="'Narrow' object has no attribute 'width'"
    ):
        layer.get_config()
    layer.width = 4
    expected = lambdanet.LambdaLayer(8, scope=5, multi_head=True).get_config()
    assert {**layer.get_config(), "name": None} == {
        **expected,
        "width": 4,
        "name": None,
    }


def test_function_and_xla_equal_eager(make):
    layer = make()
    x = images(2, 6, 5, 8)
    eager = layer(x)
    np.testing.assert_allclose(tf.function(layer)(x), eager, atol=1e-5)
    np.testing.assert_allclose(
        tf.function(layer, jit_compile=True)(x), eager, atol=1e-5
    )


def test_no_images_in_a_batch(make):
    """As an exported model may get them; unknown sizes, as when it was exported."""
    layer = make()
    layer(images(2, 6, 5, 8))
    none, unknown = tf.zeros([0, 6, 5, 8]), tf.TensorSpec([None, None, None, 8])
    options = {}, {"input_signature": [unknown]}, {"jit_compile": True}
    for function in (layer, *(tf.function(layer, **option) for option in options)):
        assert function(none).shape == [0, 6, 5, 8]


def test_a_map_of_size_0_is_rejected(make):
    for shape in ([2, 0, 5, 8], [2, 6, 0, 8]):
        with pytest.raises(
            InputError, match="each side of a map must be at least 1, got"
        ) as error:
            make()(tf.zeros(shape))
        assert "\n" not in str(error.value)


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


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_stays_near_float32(make, policy):
    """Outputs and gradients, and no infinity for inputs fifty times as large.

    A layer is a chain of products, so its error is some times that of one product in the same precision: up
    to 11 where sums are rounded, and up to 18 where their last bits are dropped, always in one direction.
    """
    keras.utils.set_random_seed(8)
    dtype = policy.removeprefix("mixed_")
    x = tf.cast(tf.cast(images(2, 9, 7, 8), dtype), tf.float32)
    full, half = make(), make(dtype=policy)
    for layer in (full, half):
        layer.build(x.shape)
    random = np.random.default_rng(1)  # for biases and averages, which are zeros
    weights = [
        w if np.any(w) else random.normal(0, 0.03, w.shape) for w in full.get_weights()
    ]
    results = []
    for layer in (full, half):
        layer.set_weights(weights)

        def function(x, *_, layer=layer):
            return tf.cast(layer(x), tf.float32)

        results.append(
            with_gradients(function, [x, *layer.trainable_weights], tf.square)
        )
    for expected, result in zip(*results, strict=True):
        assert relative_error(result, expected) < 24 * product_error(dtype)
    assert half(x).dtype == half.compute_dtype != half.variable_dtype
    assert all(weight.dtype == tf.float32 for weight in half.weights)
    assert np.isfinite(tf.cast(half(50 * x, training=True), tf.float32)).all()


def test_regularizer_counts_the_kernels_alone(make):
    if "kernel_regularizer" not in make().get_config():
        pytest.skip("has no kernel_regularizer")
    layer = make(kernel_regularizer=keras.regularizers.L2(0.5))
    layer(tf.ones([1, 4, 4, 8]))
    kernels = [
        weight
        for weight in layer.trainable_weights
        if "kernel" in compat.variable_name(weight)
    ]
    assert kernels
    np.testing.assert_allclose(
        sum(layer.losses), sum(map(tf.nn.l2_loss, kernels)), rtol=1e-5
    )


# A SavedModel of each class, of a table that depends on the size of the map, and of one that is an argument.
# The others differ only in configuration, which both formats store; tracing each takes seconds.
SAVED_MODELS = [
    name for name in LAYERS if "_" not in name or name.endswith(("_global", "_shared"))
]


@pytest.mark.parametrize(
    ("form", "name"),
    [("layer.keras", name) for name in LAYERS]
    + [("saved_model", name) for name in SAVED_MODELS],
)
def test_save_and_load(form, name, tmp_path):
    model = keras.Sequential([keras.Input([None, None, 8]), LAYERS[name]()])
    x = images(2, 6, 5, 8)
    if form == "saved_model":
        model.export(tmp_path / form, verbose=False)
        loaded = tf.saved_model.load(tmp_path / form)
        outputs = loaded.serve(x)
    else:
        model.save(tmp_path / form)
        outputs = keras.models.load_model(tmp_path / form)(x)
    np.testing.assert_allclose(outputs, model(x), atol=1e-5)


def layers_that_share_a_table():
    inputs, table = keras.Input([6, 6, 8]), lambdanet.RelativePositionEmbedding(scope=5)
    x = lambdanet.LambdaLayer(8, position=table, name="first")(inputs)
    return keras.Model(
        inputs, lambdanet.LambdaLayer(8, position=table, name="second")(x)
    )


def assert_shared(copy, model):
    assert copy.count_params() == model.count_params()
    first, second = (copy.get_layer(name).position for name in ("first", "second"))
    assert first is second and first is not model.get_layer("first").position


def test_a_shared_table_is_shared_in_a_loaded_model(tmp_path):
    model = layers_that_share_a_table()
    model.save(tmp_path / "shared.keras")
    loaded = keras.models.load_model(tmp_path / "shared.keras")
    assert_shared(loaded, model)
    np.testing.assert_allclose(
        loaded(images(1, 6, 6, 8)), model(images(1, 6, 6, 8)), atol=1e-5
    )


def test_a_copy_that_would_not_share_a_table_is_rejected():
    """Keras 3 keeps shared objects while it loads a .keras file, and in no other copy."""
    model = layers_that_share_a_table()
    copies = [
        lambda: keras.Model.from_config(model.get_config()),
        lambda: keras.models.model_from_json(model.to_json()),
        lambda: keras.models.clone_model(model),
    ]
    for copy in copies:
        with pytest.raises(
            InputError, match="save the model as a .keras file and load that$"
        ) as error:
            copy()
        assert "\n" not in str(error.value)
    layer = lambdanet.LambdaLayer(8, position=lambdanet.RelativePositionEmbedding())
    alone = keras.Sequential([keras.Input([None, None, 8]), layer])
    assert keras.models.clone_model(alone).count_params() == alone.count_params()


def test_one_gradient_step_reaches_every_weight(make):
    layer = make()
    x = images(4, 6, 5, 8)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(
            tf.square(layer(x, training=True) - images(4, 6, 5, 8, seed=1))
        )
    gradients = tape.gradient(loss, layer.trainable_weights)
    assert all(np.abs(gradient).max() > 0 for gradient in gradients)
