# SPDX-License-Identifier: Apache-2.0
"""Models by name: features, overrides, sizes, saving and errors."""

import json
import os
import subprocess
import sys

import keras as keras_3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from helpers import images
from small_models import small_model

import lambdanet
from lambdanet.errors import InputError
from lambdanet.models import zoo
from lambdanet.models.weights import weight_files


@pytest.fixture(scope="module")
def tiny():
    return lambdanet.create_model("lambda_resnet_tiny", num_classes=10)


def test_list_models_takes_patterns():
    assert lambdanet.list_models("lambda_resnet_*_c4") == [
        f"lambda_resnet_{depth}_c4" for depth in (50, 101, 152, 200, 270, 350, 420)
    ]
    assert lambdanet.list_models("nothing*") == []
    with pytest.raises(InputError, match="pattern must be a shell pattern such as .*, got None"):
        lambdanet.list_models(None)


def test_model_info():
    info = lambdanet.model_info("lambda_resnet_50")
    assert (info.name, info.params, info.input_size) == ("lambda_resnet_50", 18_963_272, 160)
    assert info.source == "Table 19"
    assert info.flops == pytest.approx(4.18e9, rel=1e-3)
    channels = (64, 256, 512, 1024, 2048)  # those of every ResNet, and of ResNet-RS in timm
    assert info.stages == tuple((level, 2**level, d) for level, d in enumerate(channels, start=1))
    assert info.embedding_size == 2048


def test_any_selection_of_levels():
    """Layers after the last level are not in the model."""
    model = lambdanet.create_model("lambda_resnet_tiny", features_only=True, out_levels=(3, np.int64(1)))
    assert {level: x.shape[1:3] for level, x in model(images(1, 32, 48, 3)).items()} == {
        "1": (16, 24),
        "3": (4, 6),
    }
    assert not [layer.name for layer in model.layers if layer.name.startswith("c4")]
    patches = small_model("halonet_h4_base128_patch", stages=("C", "C", "C", "C"), features_only=True)
    with pytest.raises(InputError, match=r"some of the levels 2, 3, 4, 5, got \(1, 2\)"):
        zoo._select_levels(patches.output, (1, 2))


def test_embedding_is_what_the_classifier_reads(tiny, tmp_path):
    """Each pooling of the last map, and logits that are linear in the mean."""
    weight_files.save(tiny, tmp_path / "tiny.safetensors")
    x, options = images(2, 32, 48, 3), {"weights": tmp_path / "tiny.safetensors", "num_classes": 0}
    found = {
        pooling: lambdanet.create_model("lambda_resnet_tiny", pooling=pooling, **options)(x).numpy()
        for pooling in ("avg", "max", None)
    }
    feature_map = found[None]
    assert feature_map.shape == (2, 1, 2, 512)
    np.testing.assert_allclose(found["avg"], feature_map.mean((1, 2)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["max"], feature_map.max((1, 2)))
    kernel, bias = tiny.get_layer("logits").get_weights()
    np.testing.assert_allclose(found["avg"] @ kernel + bias, tiny(x), rtol=1e-4, atol=1e-5)


def test_replaced_classifier_keeps_the_trunk(tiny):
    x = images(2, 32, 32, 3)
    logits = tiny(x).numpy()
    other = lambdanet.replace_classifier(tiny, 3, dropout_rate=0.5)
    assert other.name == tiny.name and other(x).shape == (2, 3)
    embedding = lambdanet.replace_classifier(other, 0)
    kernel, bias = tiny.get_layer("logits").get_weights()
    np.testing.assert_allclose(embedding(x) @ kernel + bias, logits, rtol=1e-4, atol=1e-5)
    assert "dropout" not in {layer.name for layer in embedding.layers}
    assert {id(weight) for weight in embedding.weights} < {id(weight) for weight in tiny.weights}
    again = lambdanet.replace_classifier(embedding, 10)
    again.get_layer("logits").set_weights([kernel, bias])
    np.testing.assert_allclose(again(x), logits, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(tiny(x), logits)


def test_replaced_classifier_keeps_the_regularizer():
    tiny = lambdanet.create_model("lambda_resnet_tiny", kernel_regularizer=keras.regularizers.L2(1e-3))
    assert lambdanet.replace_classifier(tiny, 4).get_layer("logits").kernel_regularizer.l2 == 1e-3


def test_a_backbone_has_no_classifier_to_replace():
    backbone = lambdanet.create_model("lambda_resnet_tiny", features_only=True)
    for other in ("resnet_50", None, keras.Sequential([keras.layers.Dense(2)])):
        with pytest.raises(InputError, match="model must be a functional model, got"):
            lambdanet.replace_classifier(other, 3)
    with pytest.raises(InputError, match="must have a classifier or a pooled embedding"):
        lambdanet.replace_classifier(backbone, 4)
    unpooled = lambdanet.create_model("lambda_resnet_tiny", num_classes=0, pooling=None)
    with pytest.raises(InputError, match=r"got an output of the shape \(None, None, None, 512\)"):
        lambdanet.replace_classifier(unpooled, 4)


@pytest.mark.parametrize("name", ["resnet_50_llll", "lambda_resnet_50"])
def test_features_at_strides_4_to_32(name):
    model = lambdanet.create_model(name, features_only=True)
    endpoints = model(images(1, 64, 96, 3))
    assert {level: tuple(x.shape) for level, x in endpoints.items()} == {
        "2": (1, 16, 24, 256),
        "3": (1, 8, 12, 512),
        "4": (1, 4, 6, 1024),
        "5": (1, 2, 3, 2048),
    }


@pytest.mark.parametrize(
    "name",
    [
        "resnet_50_linear_attention",
        "resnet_50_augmented",
        "resnet_50_local_attention",
        "resnet_50_axial_attention",
        "resnet_50_global_attention",
        "resnet_50_llll",
        "resnet_rs_50",
        "lambda_resnet_50",
    ],
)
def test_a_gradient_step_reaches_every_weight(name):
    """The last gammas are set to one first: at zero they hide the blocks behind them."""
    model = small_model(name)
    for weight in model.trainable_weights:
        if "gamma" in weight.name:
            weight.assign(tf.ones_like(weight))
    with tf.GradientTape() as tape:
        logits = model(images(4, 48, 64, 3), training=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits([0, 1, 2, 0], logits))
    gradients = tape.gradient(loss, model.trainable_weights)
    still = [
        w.name for w, g in zip(model.trainable_weights, gradients, strict=True) if not np.abs(g).max() > 0
    ]
    assert still == []


@pytest.mark.parametrize(("name", "own"), [("lambda_resnet_tiny", "relu"), ("mobilenet_v2_lambda", "relu6")])
def test_activation_default_and_override(name, own):
    for given, expected in ((None, own), ("swish", "swish")):
        model = lambdanet.create_model(name, num_classes=10, activation=given)
        layers = [layer for layer in model.layers if isinstance(layer, keras.layers.Activation)]
        assert len(layers) > 9 and {layer.activation.__name__ for layer in layers} == {expected}


def test_blocks_start_as_the_identity():
    """The last gamma of every block is zero, so features of a fresh network are its shortcuts alone."""
    model = lambdanet.create_model("lambda_resnet_50", features_only=True)
    last = [weight for weight in model.weights if "expand_norm/gamma" in weight.name]
    assert len(last) == 16
    assert all(not np.any(weight) for weight in last)


def test_logits_stay_in_float32_under_mixed_precision():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        model = lambdanet.create_model("lambda_resnet_tiny", num_classes=10)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert model(images(2, 32, 32, 3)).dtype == tf.float32
    assert model.get_layer("c3_block2_spatial").compute_dtype == "bfloat16"


def test_order_of_the_batch_does_not_matter(tiny):
    x = images(4, 32, 32, 3)
    np.testing.assert_allclose(tiny(x[::-1]), tiny(x)[::-1], atol=1e-5)


@pytest.mark.parametrize("integer", [int, np.int64])
def test_in_channels_and_overrides(integer):
    sizes = {"in_channels": integer(1), "key_dim": integer(8), "scope": integer(3)}
    model = lambdanet.create_model("lambda_resnet_tiny", **sizes, input_size=(integer(24), integer(40)))
    assert json.loads(model.to_json())["config"]["name"] == "lambda_resnet_tiny"
    assert model.input_shape == (None, 24, 40, 1)
    layer = model.get_layer("c5_block1_spatial")
    assert (layer.key_dim, layer.position.scope) == (8, 3)


def test_regularizer_applies_to_kernels_only():
    decay = 1e-2
    model = lambdanet.create_model("lambda_resnet_tiny", kernel_regularizer=keras.regularizers.L2(decay / 2))
    kernels = [weight for weight in model.trainable_weights if "kernel" in weight.name]
    others = {weight.name.split("/")[-1].split(":")[0] for weight in model.trainable_weights} - {"kernel"}
    assert others == {"gamma", "beta", "bias", "table"}
    expected = decay * sum(tf.nn.l2_loss(kernel) for kernel in kernels)
    np.testing.assert_allclose(sum(model.losses), expected, rtol=1e-4)


def test_stochastic_depth_rises_over_the_stages():
    model = lambdanet.create_model("lambda_resnet_tiny", stochastic_depth_rate=0.2, dropout_rate=0.3)
    rates = {layer.name: layer.rate for layer in model.layers if isinstance(layer, lambdanet.StochasticDepth)}
    assert rates["c2_block1_drop"] == pytest.approx(0.08)
    assert rates["c5_block1_drop"] == pytest.approx(0.2)
    assert model.get_layer("dropout").rate == 0.3


@pytest.mark.parametrize("form", ["model.keras", "saved_model"])
def test_save_and_load(tiny, form, tmp_path):
    # Each layer of a SavedModel is traced many times.
    model = tiny if form == "model.keras" else small_model("lambda_resnet_tiny", stages=("", "", "", "L"))
    model.save(tmp_path / form)
    loaded = keras.models.load_model(tmp_path / form)
    x = images(2, 40, 24, 3)
    np.testing.assert_allclose(loaded(x), model(x), atol=1e-5)
    if form == "model.keras":  # a SavedModel holds a graph, not the configuration
        assert loaded.get_config() == model.get_config()


def test_a_wrapped_layer_loads_by_its_name(tmp_path):
    """As in the FAQ; tf_keras finds no class of a package inside of a wrapper."""
    video = keras.Input([3, 6, 5, 4])
    layer = keras.layers.TimeDistributed(lambdanet.LambdaLayer(8, scope=3))
    model, x = keras.Model(video, layer(video)), images(2, 3, 6, 5, 4)
    model.save(tmp_path / "model.keras")
    names = {"LambdaLayer": lambdanet.LambdaLayer}
    loaded = keras.models.load_model(tmp_path / "model.keras", custom_objects=names)
    with keras.utils.custom_object_scope(names):
        fast = lambdanet.for_inference(model)
    for copy in (loaded, fast):
        np.testing.assert_allclose(copy(x), model(x), atol=1e-5)


def test_a_new_process_loads_a_model_and_gives_it_no_images(tiny, tmp_path):
    """As the README says: with the layers registered, and without oneDNN's convolutions."""
    files = [tmp_path / "model.keras", tmp_path / "for_inference.keras"]
    tiny.save(files[0])
    lambdanet.for_inference(tiny).save(files[1])
    program = (
        "import sys; import lambdanet.models.zoo; import tensorflow as tf; import tf_keras as keras\n"
        "for path in sys.argv[1:]: print(keras.models.load_model(path)(tf.zeros([0, 32, 32, 3])).shape)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program, *files],
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"},
        capture_output=True,
        text=True,
    )
    assert shown.stdout == "(0, 10)\n" * 2, shown.stderr


def test_a_model_compiled_by_xla_takes_no_images(tiny):
    assert tf.function(tiny, jit_compile=True)(images(0, 32, 32, 3)).shape == (0, 10)


NORMS = [
    {"epsilonn": 1},
    {"axis": 1},
    {"name": "x"},
    {"gamma_initializer": "zeros"},
    {"momentum": 2},
    {"momentum": "much"},
    {"epsilon": -1},
    [],
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "lambda_resnet_51"}, "unknown model 'lambda_resnet_51'; did you mean lambda_resnet_5"),
        ({"name": "resnet_50", "key_dim": 8}, "model 'resnet_50' has no option 'key_dim'; its options: none"),
        ({"key_dims": 8}, "no option 'key_dims'; its options: .*key_dim"),
        ({"num_class": 8}, r"no option 'num_class' \(did you mean num_classes\?\); its options: .*key_dim"),
        ({"num_classes": -1}, "num_classes must be zero or a positive integer, got -1"),
        ({"pooling": "mean"}, "pooling must be one of 'avg', 'max', got 'mean'"),
        ({"pooling": None}, "'max', got None; None needs num_classes=0"),
        ({"out_levels": (2,)}, r"out_levels must be None without features_only=True, got \(2,\)"),
        ({"features_only": True, "out_levels": ()}, r"levels 1, 2, 3, 4, 5, got \(\)"),
        ({"features_only": True, "out_levels": [[1]]}, r"got \[\[1\]\]"),
        ({"dropout_rate": 1.0}, r"dropout_rate must be in \[0, 1\), got 1.0"),
        ({"input_size": (1, 2, 3)}, r"input_size must be .* got \(1, 2, 3\)"),
        ({"kernel_regularizer": keras_3.regularizers.L2(1e-4)}, "kernel_regularizer is a Keras 3 L2"),
        ({"kernel_regularizer": "l9"}, "kernel_regularizer must be a Keras regularizer .*, got 'l9'"),
        ({"kernel_regularizer": 1e-4}, "kernel_regularizer must be .* got 0.0001"),
        ({"dropout_rate": "0.1"}, r"dropout_rate must be in \[0, 1\), got '0.1'"),
        ({"weights": 1}, "weights must be a string or a path, got 1"),
        *(({"batch_norm": wrong}, "batch_norm must be arguments of .*Norm.*, got") for wrong in NORMS),
        ({"features_only": "False"}, "features_only must be True or False, got 'False'"),
        ({"features_only": 1}, "features_only must be True or False, got 1"),
        ({"name": None}, "unknown model None; see `lambdanet list`"),
    ],
)
def test_what_is_rejected(arguments, message):
    with pytest.raises(InputError, match=message):
        lambdanet.create_model(**{"name": "lambda_resnet_tiny", **arguments})


def test_layers_on_maps_of_one_size_share_their_positions(tmp_path):
    """Table 4's shared embeddings, and that a saved model still shares them."""
    model = lambdanet.create_model(
        "lambda_resnet_tiny", num_classes=4, input_size=32, share_positions=True, scope=5
    )
    layers = [layer for layer in model.layers if isinstance(layer, lambdanet.LambdaLayer)]
    sides = {layer.name: layer.input_shape[1] for layer in layers}
    assert sides == {
        "c3_block2_spatial": 4,
        "c4_block1_spatial": 4,
        "c4_block2_spatial": 2,
        "c5_block1_spatial": 2,
    }
    model.save(tmp_path / "model.keras")
    for shared in (model, keras.models.load_model(tmp_path / "model.keras")):
        a, b, c, d = (shared.get_layer(name).position for name in sides)
        assert a is b and c is d and b is not c
        assert sum("table" in weight.name for weight in shared.weights) == 2


def test_tables_of_maps_of_unknown_size():
    model = lambdanet.create_model("resnet_50_cccl", scope=None, features_only=True)
    sizes = [model.get_layer(f"c5_block{i}_spatial").position.map_size for i in (1, 2)]
    assert sizes == [(14, 14), (7, 7)]
    assert model(images(1, 96, 64, 3))["5"].shape == (1, 3, 2, 2048)


def test_a_regularizer_may_be_a_name():
    model = lambdanet.create_model("lambda_resnet_tiny", num_classes=2, kernel_regularizer="l2")
    assert model.get_layer("logits").kernel_regularizer.l2 == pytest.approx(0.01)


def test_sizes_are_of_positive_images():
    with pytest.raises(InputError, match="input_size must be a positive integer, got 0"):
        lambdanet.model_info("lambda_resnet_tiny", input_size=0)


def test_an_unknown_activation_is_rejected():
    with pytest.raises(InputError, match="activation must be .* got 'rleu'"):
        lambdanet.create_model("lambda_resnet_tiny", activation="rleu")
