# SPDX-License-Identifier: Apache-2.0
"""The lambda layer: tables, masks and errors; fuzz_layers_test has the paper's equations."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_close, images
from keras import Input
from naive_layers import weights_by_name
from refusals import refused

import lambdanet
from lambdanet import LambdaLayer
from lambdanet.core.errors import InputError
from lambdanet.layers.old_arguments import OF_POSITION, translate
from lambdanet.models.weights import weight_files
from lambdanet.ops import reference


def test_initialization_is_the_papers():
    """Appendix F.2: table N(0, 1); K and V with variance 1 / d; Q with variance 1 / (k d)."""
    layer = LambdaLayer(512, num_heads=4, key_dim=16)
    layer.build([None, 7, 7, 512])
    weights = weights_by_name(layer)
    stddevs = {
        "position/table": 1.0,
        "keys/kernel": 512**-0.5,
        "values/kernel": 512**-0.5,
        "queries/kernel": 8192**-0.5,
    }
    for name, stddev in stddevs.items():
        assert weights[name].numpy().std() == pytest.approx(stddev, rel=0.05)


@pytest.mark.parametrize("position", ["relative", "unstructured"])
def test_initializer_of_positions(position):
    """Layers that share an initializer have different values; a copy, also for inference, has it too."""
    initializer = keras.initializers.RandomNormal(stddev=0.01)
    options = {"position": position, "embeddings_initializer": initializer}
    layers = [LambdaLayer(8, scope=7, **options) for _ in range(2)]
    layers.append(LambdaLayer.from_config(layers[0].get_config()))
    tables = []
    for layer in layers:
        layer(images(1, 7, 7, 8))
        tables.append(weights_by_name(layer)["position/table"].numpy())
        # Of 784 values at least: eight times their own deviation, 1 / sqrt(2 * 784).
        assert tables[-1].std() == pytest.approx(0.01, rel=0.2)
        assert layer.for_inference().position.embeddings_initializer.stddev == 0.01
    assert not np.isclose(tables[0], tables[1]).all()
    assert layers[2].get_config() == layers[0].get_config()


def test_initializer_of_shared_positions():
    initializer = keras.initializers.Constant(0.5)
    options = {"share_positions": True, "embeddings_initializer": initializer}
    model = lambdanet.create_model("lambda_resnet_tiny", input_size=32, **options)
    embeddings = {x.position for x in model.layers if isinstance(x, LambdaLayer)}
    assert {np.array(embedding.table).mean() for embedding in embeddings} == {0.5}


@pytest.mark.parametrize(
    ("arguments", "inputs", "message"),
    [
        ({}, tf.ones([1, 4, 4, 10]), "filters=10 and num_heads=4"),
        ({}, Input([4, 4, None]), "known number of channels"),
        (
            {"implementation": "reference"},
            tf.ones([1, 32, 33, 8]),
            r"must be at most 64 MiB .*, got \[1056, 1056, 16, 1\]$",
        ),
        (
            {"scope": None},
            Input([None, None, 8]),
            "global scope must be of known size, .*; or set map_s",
        ),
    ],
)
def test_inputs_that_are_rejected(arguments, inputs, message):
    with refused(message):
        LambdaLayer(**arguments)(inputs)


def test_causal_memory_is_linear():
    """A sequence whose table of all pairs would take 16 GB: its end equals the end of a shorter one."""
    layer = LambdaLayer(4, num_heads=1, key_dim=2, scope=9, causal=True, content=False)
    x = images(1, 2**16, 4)
    assert_close(layer(x)[:, -8:], layer(x[:, -16:])[:, -8:], 1e-5)


def test_arguments_equal_to_those_of_a_position_embedding():
    options = {"scope": None, "implementation": "einsum"}
    of_embedding = {"dilation": 1, "resize": "interpolate", **options}
    embedding = lambdanet.RelativePositionEmbedding(
        map_size=(9, 9), use_bias=True, **of_embedding
    )
    others = {"map_size": 9, "position_bias": True, **of_embedding}
    same = translate({"position": embedding, **others})
    assert same == {"position": embedding, **options}
    layer = LambdaLayer(8, **same)
    assert LambdaLayer.from_config(layer.get_config()).position.map_size == (
        9,
        9,
    )


def test_a_table_of_maps_is_refused_for_sequences():
    """Of layers of other sizes see old_files_test."""
    table = lambdanet.RelativePositionEmbedding(scope=5)
    LambdaLayer(8, position=table)(images(1, 6, 6, 8))
    with refused("spatial axes of the input must be 2 as in the position table, got 1"):
        LambdaLayer(8, position=table)(images(1, 6, 8))


def test_a_global_table_on_other_sizes():
    """Of the values on smaller maps see fuzz_layers_test."""
    layer = LambdaLayer(8, scope=None, content=False)
    layer(images(1, 6, 6, 8))
    x = images(1, 4, 5, 8)
    message = r"the size of the map must be at most \(6, 6\), got \(7, 6\)"
    with pytest.raises(InputError, match=message):
        layer(images(1, 7, 6, 8))
    unknown = tf.function(layer, input_signature=[tf.TensorSpec([None, None, None, 8])])
    assert_close(unknown(x), layer(x), 1e-5)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="larger than the position table"
    ):
        unknown(images(1, 7, 6, 8))


def test_interpolation_stretches_the_table():
    """A table that is linear in the offset, over the extent of the map, is that on every size of map."""
    table = lambdanet.RelativePositionEmbedding(
        scope=None, map_size=4, resize="interpolate", name="position"
    )
    stretched = LambdaLayer(8, position=table)
    exact = LambdaLayer(8, scope=None)
    x = images(1, 9, 9, 8)
    stretched(x), exact(x)
    by_name = weights_by_name(stretched)
    for layer, size in ((stretched, 4), (exact, 9)):
        for name, weight in weights_by_name(layer).items():
            offsets = np.linspace(-1, 1, 2 * size - 1)
            linear = np.stack([offsets[:, None] + 2 * offsets] * 16, axis=-1)
            weight.assign(linear if "table" in name else by_name[name])
    assert_close(stretched(x), exact(x), 1e-4)


def test_tiny_moving_variances_in_float16_are_finite():
    layer = LambdaLayer(16, scope=5, dtype="mixed_float16")
    x = images(64, 1, 1, 8)
    layer(x)
    for norm in (layer._queries_norm, layer._values_norm):
        norm.moving_variance.assign(norm.moving_variance * 1e-37)
    assert np.isfinite(layer(x)).all()


MASK = r"^attention_mask must be of the shape \[n, m\] = \[{}\] or \[b, n, m\] = .*, got \({}\)$"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"attention_mask": "causal"},
            r"^attention_mask must be .*, got 'causal'; causal=True or 'time'",
        ),
        ({"attention_mask": np.ones([2, 4, 4])}, MASK.format("4, 4", "2, 4, 4")),
        (
            {"attention_mask": tf.ones([4, 4]), "context": tf.ones([1, 5, 8])},
            MASK.format("4, 5", "4, 4"),
        ),
        (
            {"context": np.ones([1, 4, 4, 8], np.float32)},
            "input and context must have the same rank",
        ),
    ],
)
def test_calls_that_are_rejected(arguments, message):
    built = LambdaLayer(8)
    built.build([1, 4, 8])
    for layer in (LambdaLayer(8), built):
        with refused(message):
            layer(images(1, 4, 8), **arguments)


VISIBLE = np.tri(4, dtype=bool)
ADDITIVE = np.where(VISIBLE, 0.0, -1e9).astype("float32")
FLOATS = "mask must be of booleans or integers, or of 0 and 1 alone, got '{}'; .*mask >= 0` is that of"


@pytest.mark.parametrize("dtype", ["int8", "int32", "float16", "float32", "float64"])
@pytest.mark.parametrize("arguments", [{}, {"position": None}, {"content": False}])
@pytest.mark.parametrize("name", ["attention_mask", "padding_mask"])
def test_masks_of_two_values_are_read_alike(name, arguments, dtype):
    layer = LambdaLayer(8, scope=5, **arguments)
    x = images(4, 4, 8)
    expected = layer(x, **{name: VISIBLE})
    mask = VISIBLE.astype(dtype)
    others = [-3 * mask] if "int" in dtype else []
    for same in (mask, tf.constant(mask), mask.tolist(), *others):
        np.testing.assert_array_equal(layer(x, **{name: same}), expected)


@pytest.mark.parametrize(
    "values",
    [ADDITIVE, 0.5 * VISIBLE, np.where(VISIBLE, 1.0, np.nan)],
)
def test_masks_of_other_values_are_refused(values):
    layer = LambdaLayer(8, scope=5)
    x = images(2, 4, 8)
    with refused(FLOATS.format(values.dtype)):
        layer(x, attention_mask=values)
    queries, keys, table = np.ones([1, 4, 2, 3]), np.ones([1, 4, 3, 1]), np.eye(4)
    with refused(FLOATS.format(values.dtype)):
        reference.apply_lambdas(queries, keys, keys, table, mask=values)
    layer(x, attention_mask=ADDITIVE >= 0)


def test_mask_of_floats_is_refused_where_its_values_are_not_known():
    layer = LambdaLayer(8, scope=5)
    call = tf.function(lambda x, mask: layer(x, attention_mask=mask), autograph=False)
    x = images(2, 4, 8)
    layer(x)
    with refused(FLOATS.format("float32")):
        call(x, tf.cast(VISIBLE, tf.float32))
    assert_close(call(x, tf.constant(VISIBLE)), layer(x, attention_mask=VISIBLE), 1e-6)
    inputs = Input([4, 8])
    with refused(FLOATS.format("float32")):
        layer(inputs, attention_mask=Input(batch_shape=[4, 4]))


@pytest.mark.parametrize("length", [4, None])
def test_padding_mask_as_mask_is_refused_when_the_model_is_built(length):
    layer = LambdaLayer(8, scope=5)
    whole = r"attention_mask must be of the .*, got \(None, .*an Input has its first axis.* padding_mask"
    with refused(whole):
        mask = Input([length], dtype="bool")
        layer(Input([length, 8]), attention_mask=mask)
    mask = Input(batch_shape=[4, 4], dtype="bool")
    assert layer(Input([4, 8]), attention_mask=mask).shape == (None, 4, 8)


def test_mask_of_all_positions_with_strides_is_refused():
    """In a graph with unknown sizes, a mask of the positions kept is used."""
    layer = LambdaLayer(8, scope=3, strides=2)
    x, mask = images(2, 3, 5, 8), np.tri(15, dtype=bool)
    with refused(MASK.format("6, 15", "15, 15")):
        layer(x, attention_mask=mask)
    strided = mask.reshape(3, 5, 15)[::2, ::2].reshape(6, 15)
    specs = tf.TensorSpec([None, None, 5, 8]), tf.TensorSpec([None, None], tf.bool)
    call = tf.function(lambda x, mask: layer(x, attention_mask=mask))
    assert_close(
        call.get_concrete_function(*specs)(x, tf.constant(strided)),
        layer(x, attention_mask=strided),
        1e-6,
    )


def test_adapters_are_named_where_plain_weights_are_needed(tmp_path):
    inputs = Input([6, 8])
    layer = LambdaLayer(8, scope=3, name="mixer")
    model = keras.Model(inputs, layer(inputs), name="small")
    layer._queries.enable_lora(2)
    with refused("form for inference needs .* 'queries' of 'mixer' has LoRA: merge"):
        lambdanet.for_inference(model)
    path = tmp_path / "small.safetensors"
    with refused("file of weights needs .* 'queries' of 'small' has LoRA: merge or"):
        weight_files.save(model, path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("name", "value", "own"),
    [
        ("scope", 7, "5"),
        ("resize", "interpolate", "'slice'"),
        ("position_bias", True, "False"),
        ("embeddings_initializer", "ones", "None"),
    ],
)
def test_arguments_beside_an_embedding_are_its_own(name, value, own):
    embedding = lambdanet.RelativePositionEmbedding(scope=5)
    message = (
        f"{OF_POSITION.get(name, name)} beside a position embedding must be {own}, as "
    )
    with refused(message):
        LambdaLayer(**translate({"position": embedding, name: value}))
