# SPDX-License-Identifier: Apache-2.0
"""The lambda layer: symmetries, limits, initialization, and refused arguments."""

import keras as keras_3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from helpers import images
from naive_lambda import randomize, weights_by_name

import lambdanet
from lambdanet.backend import device
from lambdanet.errors import InputError


def average_pool(x):
    """Pools by 3 and halves each spatial axis, one after the other."""
    pool = keras.layers.AveragePooling1D(3, 2, "same", dtype="float64")
    for axis in range(1, len(x.shape) - 1):
        rows = np.moveaxis(x, axis, 1)
        means = pool(rows.reshape(*rows.shape[:2], -1)).numpy()
        x = np.moveaxis(means.reshape(len(rows), -1, *rows.shape[2:]), 1, axis)
    return x


@pytest.mark.parametrize("kind", ["CPU", "TPU"])
@pytest.mark.parametrize("size", [(7, 6), (8, 8), (2, 2), (5,), (3, 2, 4)])
@pytest.mark.parametrize(
    "options",
    [
        {"intra_depth": 2, "position_bias": True, "multi_head": True},
        {"query_normalization": "softmax", "scope": None},
        {"position": "unstructured"},
        {"position": None},
    ],
)
def test_pool_of_the_layer_is_that_after_it(size, options, kind):
    """On maps of odd and even sizes, whose first windows begin at other places."""
    options = {"filters": 6, "num_heads": 2, "key_dim": 3, "scope": 3, "dtype": "float64", **options}
    x = np.random.default_rng(3).normal(size=[2, *size, 4])
    whole = lambdanet.LambdaLayer(**options)
    pooled = lambdanet.LambdaLayer(**options, strides=2, pool_size=3)
    expected = average_pool(whole(x))
    assert pooled.compute_output_shape(x.shape) == pooled(x).shape == expected.shape
    randomize(whole)
    pooled.set_weights(whole.get_weights())
    expected = average_pool(whole(x))
    with device.assume(kind):
        np.testing.assert_allclose(pooled(x), expected, atol=1e-10)
    with pytest.raises(InputError, match=r"pool_size must be 1 with a mask \[n, m\], got"):
        pooled(x, mask=np.ones([np.prod(size), np.prod(size)]))


def test_initialization_is_the_papers():
    """Appendix F.2: table N(0, 1); K and V with variance 1 / d; Q with variance 1 / (k d)."""
    layer = lambdanet.LambdaLayer(512, num_heads=4, key_dim=16)
    layer.build([None, 7, 7, 512])
    stddevs = {name: weight.numpy().std() for name, weight in weights_by_name(layer).items()}
    assert stddevs["position/table"] == pytest.approx(1.0, rel=0.05)
    assert stddevs["keys/kernel"] == pytest.approx(512**-0.5, rel=0.05)
    assert stddevs["values/kernel"] == pytest.approx(512**-0.5, rel=0.05)
    assert stddevs["queries/kernel"] == pytest.approx((16 * 512) ** -0.5, rel=0.05)


@pytest.mark.parametrize("scope", [5, None])
def test_position_lambdas_are_translation_equivariant(scope):
    """Away from the borders, shifting the input shifts the output."""
    layer = lambdanet.LambdaLayer(8, num_heads=2, key_dim=4, scope=scope)
    x = np.zeros([1, 16, 16, 6], np.float32)
    x[:, 5:9, 5:9] = np.random.default_rng(2).normal(size=[1, 4, 4, 6])
    y = layer(x)
    shifted = layer(np.roll(x, (2, 3), axis=(1, 2)))
    np.testing.assert_allclose(
        np.roll(y, (2, 3), axis=(1, 2))[:, 4:14, 4:14], shifted[:, 4:14, 4:14], atol=1e-5
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_stays_near_float32(dtype):
    """Softmax and sums over 4096 positions keep float32's range and precision where it matters."""
    x = np.random.default_rng(3).normal(size=[1, 64, 64, 16]).astype(np.float32) * 10
    full = lambdanet.LambdaLayer(16, scope=7)
    half = lambdanet.LambdaLayer(16, scope=7, dtype=keras.mixed_precision.Policy(f"mixed_{dtype}"))
    expected = full(x, training=True)
    half.build(x.shape)
    half.set_weights(full.get_weights())
    got = half(x, training=True)
    assert got.dtype == dtype
    assert half.position.table.dtype == tf.float32
    error = np.abs(tf.cast(got, tf.float32) - expected).max() / np.abs(expected).max()
    assert error < {"float16": 4e-3, "bfloat16": 3e-2}[dtype]


def test_regularizer_excludes_the_table():
    layer = lambdanet.LambdaLayer(8, kernel_regularizer=keras.regularizers.L2(0.5))
    layer(tf.ones([1, 2, 2, 8]))
    kernels = [weight for weight in layer.trainable_weights if "kernel" in weight.name]
    assert len(kernels) == 3
    np.testing.assert_allclose(sum(layer.losses), sum(map(tf.nn.l2_loss, kernels)), rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"filters": 10, "num_heads": 4}, "filters=10 and num_heads=4"),
        ({"scope": 22}, "scope must be odd, got 22; 21 and 23 would do"),
        ({"scope": -3}, "scope must be a positive integer, got -3"),
        ({"key_dim": 0}, "key_dim must be a positive integer, got 0"),
        ({"num_heads": 2.0}, "num_heads must be a positive integer, got 2.0"),
        ({"implementation": "conv2d"}, "unknown implementation 'conv2d'; did you mean conv"),
    ],
)
def test_arguments_that_are_rejected(arguments, message):
    with pytest.raises(InputError, match=message):
        lambdanet.LambdaLayer(**arguments)


def test_inputs_that_are_rejected():
    with pytest.raises(InputError, match=r"the shape of the input must be \[b, n, c\], .* got \(2, 8\)"):
        lambdanet.LambdaLayer(8)(tf.ones([2, 8]))
    with pytest.raises(InputError, match="filters=10 and num_heads=4"):
        lambdanet.LambdaLayer()(tf.ones([1, 4, 4, 10]))
    with pytest.raises(InputError, match="known number of channels"):
        lambdanet.LambdaLayer(8)(keras.Input([4, 4, None]))
    with pytest.raises(InputError, match="Keras 3"):
        lambdanet.LambdaLayer(8)(keras_3.Input([4, 4, 8]))


@pytest.mark.parametrize("position", ["relative", "unstructured"])
@pytest.mark.parametrize("key_normalization", ["softmax", "l2", None])
def test_causal_outputs_ignore_later_positions(key_normalization, position):
    """Bitwise: positions after another do not change its output."""
    layer = lambdanet.LambdaLayer(8, scope=5, position=position, key_normalization=key_normalization)
    x = images(2, 40, 8).numpy()
    before = layer(x, mask="causal").numpy()
    for n in (0, 1, 17, 38):
        changed = x.copy()
        changed[:, n + 1 :] = np.random.default_rng(n).normal(size=changed[:, n + 1 :].shape) * 100
        np.testing.assert_array_equal(layer(changed, mask="causal")[:, : n + 1], before[:, : n + 1])


@pytest.mark.parametrize("spatial", [[12], [3, 4], [2, 3, 2]])
def test_causal_equals_the_general_mask(spatial):
    """Sums along the sequence against the triangular mask [n, m], for every rank, in raster order."""
    layer = lambdanet.LambdaLayer(8, scope=3, intra_depth=2)
    x = images(2, *spatial, 8)
    np.testing.assert_allclose(layer(x, mask="causal"), layer(x, mask=np.tril(np.ones([12, 12]))), atol=1e-5)


def test_causal_memory_is_linear():
    """A sequence whose table of all pairs would take 16 GB."""
    layer = lambdanet.LambdaLayer(4, num_heads=1, key_dim=2, scope=9)
    assert layer(images(1, 2**16, 4), mask="causal").shape == [1, 2**16, 4]


def two_layers(table, **arguments):
    """A model of two layers with one table."""
    inputs = keras.Input([6, 6, 8])
    x = lambdanet.LambdaLayer(8, position=table, name="first", **arguments)(inputs)
    return keras.Model(inputs, lambdanet.LambdaLayer(8, position=table, name="second", **arguments)(x))


@pytest.mark.parametrize("file", ["shared.keras", "shared", "shared.h5"])
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_a_shared_table_is_shared_in_a_loaded_model(file, tmp_path):
    model = two_layers(lambdanet.RelativePositionEmbedding(scope=5))
    model.save(tmp_path / file)
    loaded = keras.models.load_model(tmp_path / file)
    assert loaded.get_layer("first").position is loaded.get_layer("second").position
    assert len(loaded.trainable_weights) == len(model.trainable_weights)
    np.testing.assert_allclose(loaded(images(1, 6, 6, 8)), model(images(1, 6, 6, 8)), atol=1e-5)


def test_a_shared_table_is_shared_in_a_copy_or_rejected():
    model = two_layers(lambdanet.RelativePositionEmbedding(scope=5))
    for copy in (
        keras.Model.from_config(model.get_config()),
        keras.models.model_from_json(model.to_json()),
    ):
        assert copy.count_params() == model.count_params()
        assert copy.get_layer("first").position is copy.get_layer("second").position
        assert copy.get_layer("first").position is not model.get_layer("first").position
    with pytest.raises(InputError, match="copy the model by `Model.from_config") as error:
        keras.models.clone_model(model)
    assert "\n" not in str(error.value)
    alone = keras.Sequential(
        [
            keras.Input([None, None, 8]),
            lambdanet.LambdaLayer(8, position=lambdanet.RelativePositionEmbedding()),
        ]
    )
    assert keras.models.clone_model(alone).count_params() == alone.count_params()


@pytest.mark.parametrize(
    "argument, value, own",
    [
        ("scope", 7, "5"),
        ("dilation", 2, "1"),
        ("map_size", 9, "None"),
        ("resize", "interpolate", "'slice'"),
        ("position_bias", True, "False"),
        ("implementation", "einsum", "'auto'"),
    ],
)
def test_arguments_that_a_position_embedding_has_must_be_equal(argument, value, own):
    embedding = lambdanet.RelativePositionEmbedding(scope=5)
    with pytest.raises(InputError, match=f"{argument} beside a position embedding must be {own}, as in the "):
        lambdanet.LambdaLayer(8, position=embedding, **{argument: value})


def test_arguments_equal_to_those_of_a_position_embedding():
    options = {"dilation": 1, "resize": "interpolate", "implementation": "einsum"}
    embedding = lambdanet.RelativePositionEmbedding(scope=None, map_size=(9, 9), use_bias=True, **options)
    layer = lambdanet.LambdaLayer(
        8, position=embedding, scope=None, map_size=9, position_bias=True, **options
    )
    assert lambdanet.LambdaLayer.from_config(layer.get_config()).position.map_size == (9, 9)


def test_one_table_shared_by_two_layers():
    table = lambdanet.RelativePositionEmbedding(scope=5)
    model = two_layers(table)
    tables = [weight for weight in model.trainable_weights if "table" in weight.name]
    assert len(tables) == 1
    with pytest.raises(
        InputError, match="key_dim of the position embedding must be 8 as in the layer, got 16"
    ):
        lambdanet.LambdaLayer(8, position=table, key_dim=8)
    with pytest.raises(
        InputError, match="spatial axes of the input must be 2 as in the position table, got 1"
    ):
        lambdanet.LambdaLayer(8, position=table)(images(1, 6, 8))


def test_local_scope_over_the_whole_map_equals_global():
    local, everywhere = lambdanet.LambdaLayer(8, scope=13), lambdanet.LambdaLayer(8, scope=None)
    x = images(2, 7, 7, 8)
    local(x), everywhere(x)
    everywhere.set_weights(local.get_weights())
    np.testing.assert_allclose(local(x), everywhere(x), atol=1e-5)


def test_a_global_table_on_other_sizes():
    """Smaller maps use the offsets that occur, so a crop of a map with zeros around it gives the same."""
    layer = lambdanet.LambdaLayer(8, scope=None, content=False)
    layer(images(1, 6, 6, 8))
    x = images(1, 4, 5, 8)
    framed = tf.pad(x, [[0, 0], [0, 2], [0, 1], [0, 0]])
    np.testing.assert_allclose(layer(x), layer(framed)[:, :4, :5], atol=1e-5)
    with pytest.raises(InputError, match=r"the size of the map must be at most \(6, 6\), got \(7, 6\)"):
        layer(images(1, 7, 6, 8))
    unknown = tf.function(layer, input_signature=[tf.TensorSpec([None, None, None, 8])])
    np.testing.assert_allclose(unknown(x), layer(x), atol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="larger than the position table"):
        unknown(images(1, 7, 6, 8))


def test_interpolation_stretches_the_table():
    """A table that is linear in the offset, over the extent of the map, is that on every size of map."""

    def linear(size):
        offsets = np.linspace(-1, 1, 2 * size - 1)
        return np.stack([offsets[:, None] + 2 * offsets] * 16, axis=-1)

    stretched = lambdanet.LambdaLayer(8, scope=None, map_size=4, resize="interpolate")
    exact = lambdanet.LambdaLayer(8, scope=None)
    x = images(1, 9, 9, 8)
    stretched(x), exact(x)
    for layer, size in ((stretched, 4), (exact, 9)):
        parts = [w.numpy() for w in stretched.trainable_weights if "table" not in w.name]
        for weight, value in zip(
            [w for w in layer.trainable_weights if "table" not in w.name], parts, strict=True
        ):
            weight.assign(value)
        layer.position.table.assign(linear(size))
    np.testing.assert_allclose(stretched(x), exact(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_half_precision_is_finite_for_large_inputs(dtype, mask):
    """Inputs a hundred times too large, forward and backward."""
    layer = lambdanet.LambdaLayer(16, scope=9, dtype=keras.mixed_precision.Policy(f"mixed_{dtype}"))
    x = images(2, 12, 12, 16) * 100
    with tf.GradientTape() as tape:
        outputs = layer(x, mask=mask, training=True)
        loss = tf.reduce_mean(tf.cast(outputs, tf.float32))
    gradients = tape.gradient(loss, layer.trainable_weights)
    assert all(np.isfinite(tf.cast(value, tf.float32)).all() for value in [outputs, *gradients])


@pytest.mark.parametrize("implementation", ["auto", "einsum", "blocked", "conv"])
def test_gradients_by_finite_differences(implementation):
    layer = lambdanet.LambdaLayer(
        2, num_heads=2, key_dim=2, intra_depth=2, scope=3, implementation=implementation, dtype="float64"
    )
    x = tf.random.stateless_normal([1, 4, 3, 2], [0, 1], dtype=tf.float64)
    layer(x)
    variables = layer.trainable_weights

    @tf.function
    def loss(x, *values):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        return tf.reduce_sum(tf.sin(layer(x, training=True)))

    values = [tf.convert_to_tensor(variable) for variable in variables]
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = loss(x, *values)
    gradients = tape.gradient(outputs, [x, *variables])
    for i, gradient in enumerate(gradients):
        arguments = [x, *values]
        flat = arguments[i].numpy()
        for index in list(np.ndindex(flat.shape))[:: max(1, flat.size // 6)]:
            differences = []
            for step in (1e-6, -1e-6):
                moved = flat.copy()
                moved[index] += step
                differences.append(loss(*arguments[:i], tf.constant(moved), *arguments[i + 1 :]))
            slope = (differences[0] - differences[1]) / 2e-6
            np.testing.assert_allclose(gradient[index], slope, rtol=1e-4, atol=1e-6)


def test_padding_masks_of_keras_are_ignored():
    """Keras passes padding masks [b, n] to layers; the lambda layer uses its own argument alone."""
    inputs = keras.Input([5], dtype="int32")
    embedded = keras.layers.Embedding(10, 8, mask_zero=True)(inputs)
    model = keras.Model(inputs, lambdanet.LambdaLayer(8, scope=3)(embedded))
    assert model(tf.constant([[1, 2, 3, 0, 0]])).shape == [1, 5, 8]


def test_another_context_in_a_functional_model(tmp_path):
    """Queries from one map, keys and values from another of another size and depth."""
    inputs, context = keras.Input([None, 8]), keras.Input([None, 6])
    outputs = lambdanet.LambdaLayer(8, position=None)(inputs, context=context)
    model = keras.Model([inputs, context], outputs)
    x = [images(2, 5, 8), images(2, 9, 6, seed=1)]
    model.save(tmp_path / "cross.keras")
    np.testing.assert_allclose(keras.models.load_model(tmp_path / "cross.keras")(x), model(x), atol=1e-6)


MASK = r"^mask must be 'causal' or of the shape \[n, m\] = \[{}\], got \({}\)$"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask": "casual"}, "unknown mask 'casual'; did you mean causal"),
        ({"mask": np.ones([2, 4, 4])}, MASK.format("4, 4", "2, 4, 4")),
        ({"mask": np.ones([1, 4])}, MASK.format("4, 4", "1, 4")),
        ({"mask": [[1, 0, 1, 0]] * 3}, MASK.format("4, 4", "3, 4")),
        ({"mask": tf.ones([4, 4]), "context": tf.ones([1, 5, 8])}, MASK.format("4, 5", "4, 4")),
        (
            {"mask": "causal", "context": np.ones([1, 4, 8], np.float32)},
            "causal mask needs the inputs as context",
        ),
        ({"context": np.ones([1, 4, 4, 8], np.float32)}, "input and context must have the same rank"),
        ({"context": keras_3.Input([4, 8])}, "an input of LambdaLayer is a Keras 3"),
    ],
)
def test_calls_that_are_rejected(arguments, message):
    with pytest.raises(InputError, match=message):
        lambdanet.LambdaLayer(8)(images(1, 4, 8), **arguments)


def test_mask_of_all_positions_with_strides_is_refused():
    """Also in a graph with unknown sizes, as far as they are known; with all unknown, the mask is used."""
    layer = lambdanet.LambdaLayer(8, scope=3, strides=2)
    x, mask = images(2, 3, 5, 8), np.tri(15, dtype="float32")
    with pytest.raises(InputError, match=MASK.format("6, 15", "15, 15")):
        layer(x, mask=mask)
    strided = mask.reshape(3, 5, 15)[::2, ::2].reshape(6, 15)
    specs = tf.TensorSpec([None, None, 5, 8]), tf.TensorSpec([None, None])
    call = tf.function(lambda x, mask: layer(x, mask=mask))
    np.testing.assert_allclose(
        call.get_concrete_function(*specs)(x, tf.constant(strided)), layer(x, mask=strided), atol=1e-6
    )
    specs = tf.TensorSpec([None, 3, 5, 8]), tf.TensorSpec([None, 14])
    with pytest.raises(InputError, match=MASK.format("6, 15", "None, 14")):
        tf.function(lambda x, mask: layer(x, mask=mask), autograph=False).get_concrete_function(*specs)


@pytest.mark.parametrize("size", [(9,), (3, 4), (2, 3, 2)])
def test_causal_mask_of_a_resized_table_with_unknown_sizes(size):
    layer = lambdanet.LambdaLayer(4, scope=None, map_size=3, resize="interpolate")
    x = images(1, *size, 6)
    call = tf.function(
        lambda x: layer(x, mask="causal"), input_signature=[tf.TensorSpec([None, *[None] * len(size), 6])]
    )
    mask = np.tri(np.prod(size), dtype="float32")
    np.testing.assert_allclose(call(x), layer(x, mask=mask), atol=1e-5)


def test_unbuilt_layer_is_serialized_and_cloned():
    layer = lambdanet.LambdaLayer(8, scope=3, name="mine")
    config = keras.saving.serialize_keras_object(layer)
    assert keras.saving.deserialize_keras_object(config).get_config() == layer.get_config()
    model = keras.models.clone_model(keras.Sequential([layer, keras.layers.Dense(2)]))
    assert model.layers[0].name == "mine" and not model.layers[0].built
    assert model(images(1, 4, 8)).shape == [1, 4, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"position": "absolute"}, "unknown position 'absolute'"),
        ({"position": None, "content": False}, "needs content, positions or both"),
        ({"key_normalization": "l1"}, "key_normalization must be one of .* got 'l1'"),
        ({"query_normalization": "l2"}, "query_normalization must be 'softmax' or None, got 'l2'"),
        ({"resize": "crop"}, "unknown resize 'crop'"),
        ({"scope": None, "map_size": 0}, "map_size must be a positive integer, got 0"),
        ({"strides": 0}, "strides must be a positive integer, got 0"),
        ({"scope": None, "dilation": 3}, "dilation must be 1 with scope=None, .* got 3"),
    ],
)
def test_more_arguments_that_are_rejected(arguments, message):
    with pytest.raises(InputError, match=message):
        lambdanet.LambdaLayer(8, **arguments)
    with pytest.raises(
        InputError, match="map of a global scope must be of known size, got .*; or set map_size"
    ):
        lambdanet.LambdaLayer(8, scope=None)(keras.Input([None, None, 8]))
