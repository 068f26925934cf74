# SPDX-License-Identifier: Apache-2.0
"""Models by name: features, overrides, sizes, saving, predictions and errors."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_close, images, reloaded
from processes import run_code
from refusals import refused
from small_models import few_block_model, small_model

import lambdanet
from lambdanet import replace_classifier
from lambdanet.backend import compat
from lambdanet.models import zoo
from lambdanet.models.unet import UNet
from lambdanet.models.weights import weight_files


@pytest.fixture(scope="module")
def tiny():
    return backbone(num_classes=10)


def test_list_models_takes_patterns():
    assert lambdanet.list_models("lambda_resnet_*_c4") == [
        f"lambda_resnet_{depth}_c4" for depth in (50, 101, 152, 200, 270, 350, 420)
    ]
    assert lambdanet.list_models("nothing*") == []
    with refused("pattern must be a shell pattern such as .*, got None"):
        lambdanet.list_models(None)


def test_model_info():
    info = lambdanet.model_info("lambda_resnet_50")
    assert (info.input_size, info.source) == (160, "Table 19")
    assert info.flops == pytest.approx(4.18e9, rel=1e-3)
    # Its sizes are those of the row that paper_numbers_test compares with the built model.
    with refused("input_size must be a positive integer, got 0"):
        lambdanet.model_info("lambda_resnet_tiny", input_size=0)


def backbone(**options):
    return lambdanet.create_model("lambda_resnet_tiny", **options)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: "resnet_50", "model must be a functional model, or"),
        (
            lambda: lambdanet.create_unet(UNet((4, 6), ("C", "C"), ("C",))),
            "the model 'unet' must have a classifier or a pooled embedding",
        ),
        (
            lambda: backbone(features_only=True),
            "must have a classifier or a pooled embedding",
        ),
        (
            lambda: backbone(num_classes=0, pooling=None),
            r"of the shape \(None, None, None, 512\)",
        ),
    ],
)
def test_a_backbone_has_no_classifier_to_replace(model, message):
    with refused(message):
        replace_classifier(model(), 4)


def test_any_selection_of_levels():
    """Layers after the last level are not in the model."""
    model = backbone(features_only=True, out_levels=(3, np.int64(1)))
    shapes = {level: x.shape[1:3] for level, x in model(images(1, 32, 48, 3)).items()}
    assert shapes == {"1": (16, 24), "3": (4, 6)}
    assert not [layer.name for layer in model.layers if layer.name.startswith("c4")]
    patches = small_model(
        "halonet_h4_base128_patch", stages=("C", "C", "C", "C"), features_only=True
    )
    with refused(r"some of the levels 2, 3, 4, 5, got \(1, 2\)"):
        zoo._select_levels(patches.output, (1, 2))


def test_embedding_is_what_the_classifier_reads(tiny, tmp_path):
    """Each pooling of the last map, and logits that are linear in the mean."""
    weight_files.save(tiny, tmp_path / "tiny.safetensors")
    x = images(2, 32, 48, 3)
    options = {"weights": tmp_path / "tiny.safetensors", "num_classes": 0}
    found = {
        pooling: backbone(pooling=pooling, **options)(x).numpy()
        for pooling in ("avg", "max", None)
    }
    feature_map = found[None]
    assert feature_map.shape == (2, 1, 2, 512)
    assert_close(found["avg"], feature_map.mean((1, 2)), 1e-5)
    np.testing.assert_array_equal(found["max"], feature_map.max((1, 2)))
    kernel, bias = tiny.get_layer("logits").get_weights()
    assert_close(found["avg"] @ kernel + bias, tiny(x), 1e-4)


def test_replaced_classifier_keeps_the_trunk(tiny):
    x = images(2, 32, 32, 3)
    logits = tiny(x).numpy()
    other = replace_classifier(tiny, 3, dropout_rate=0.5)
    assert other.name == tiny.name and other(x).shape == (2, 3)
    embedding = replace_classifier(other, 0)
    kernel, bias = tiny.get_layer("logits").get_weights()
    assert_close(embedding(x) @ kernel + bias, logits, 1e-4)
    assert "dropout" not in {layer.name for layer in embedding.layers}
    assert {id(weight) for weight in embedding.weights} < {
        id(weight) for weight in tiny.weights
    }
    again = replace_classifier(embedding, 10)
    again.get_layer("logits").set_weights([kernel, bias])
    assert_close(again(x), logits, 1e-5)
    np.testing.assert_array_equal(tiny(x), logits)


@pytest.mark.parametrize(
    ("name", "own"), [("lambda_resnet_tiny", "relu"), ("mobilenet_v2_lambda", "relu6")]
)
def test_activation_default_and_override(name, own):
    for given, expected in ((None, own), ("swish", "swish")):
        model = lambdanet.create_model(name, num_classes=10, activation=given)
        layers = [
            layer
            for layer in model.layers
            if isinstance(layer, keras.layers.Activation)
        ]
        assert len(layers) > 9 and {layer.activation for layer in layers} == {
            keras.activations.get(expected)
        }


def test_blocks_start_as_the_identity():
    """The last gamma of every block is zero, so features of a fresh network are its shortcuts alone."""
    last = [
        np.any(w)
        for w in backbone().weights
        if compat.variable_name(w).endswith("expand_norm/gamma")
    ]
    assert last == [False] * 6


def test_in_channels_and_overrides_may_be_of_numpy():
    sizes = dict.fromkeys(("in_channels", "scope"), np.int64(3)) | {"key_dim": 8}
    model = backbone(**sizes, input_size=(np.int64(24), 40))
    assert json.loads(model.to_json())["config"]["name"] == "lambda_resnet_tiny"
    assert model.input_shape == (None, 24, 40, 3)
    layer = model.get_layer("c5_block1_spatial")
    assert (layer.key_dim, layer.position.scope) == (8, 3)


def test_classifiers_have_the_regularizer_of_the_model():
    model = backbone(kernel_regularizer=keras.regularizers.L2(0.25))
    replaced = replace_classifier(model, 4).get_layer("logits")
    assert replaced.kernel_regularizer.l2 == 0.25
    logits = backbone(num_classes=2, kernel_regularizer="l2").get_layer("logits")
    assert logits.kernel_regularizer.l2 == pytest.approx(0.01)


def test_stochastic_depth_rises_over_the_stages():
    model = backbone(stochastic_depth_rate=0.2, dropout_rate=0.3)
    rates = {
        layer.name: layer.rate
        for layer in model.layers
        if isinstance(layer, lambdanet.StochasticDepth)
    }
    assert rates["c2_block1_drop"] == pytest.approx(0.08)
    assert rates["c5_block1_drop"] == pytest.approx(0.2)
    assert model.get_layer("dropout").rate == 0.3


@pytest.mark.slow
def test_a_new_process_loads_a_model_and_gives_it_no_images(tiny, tmp_path):
    """As the README says: with the layers registered, and without oneDNN's convolutions.

    Of 64 pixels: Keras 3.15 takes an empty batch of maps of one pixel for a bias when it adds them.
    """
    files = [tmp_path / "model.keras", tmp_path / "for_inference.keras"]
    tiny.save(files[0])
    lambdanet.for_inference(tiny).save(files[1])
    program = (
        "import sys; import lambdanet.models.zoo; import tensorflow as tf; import keras\n"
        "for path in sys.argv[1:]: print(keras.models.load_model(path)(tf.zeros([0, 64, 64, 3])).shape)"
    )
    shown = run_code(program, *map(str, files), TF_ENABLE_ONEDNN_OPTS="0")
    assert shown.stdout == "(0, 10)\n" * 2, shown.stderr
    assert tf.function(tiny, jit_compile=True)(images(0, 64, 64, 3)).shape == (0, 10)


@pytest.mark.parametrize("function", [zoo.create_model, zoo.model_info])
def test_model_without_a_row_names_the_program(monkeypatch, function):
    monkeypatch.setitem(zoo.MODELS, "new", zoo.MODELS["resnet_50"])
    with refused("'new' has no row in models/sizes.csv; run python tests/model_sizes"):
        function("new")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "lambda_resnet_51"},
            "unknown model 'lambda_resnet_51'; did you mean lambda_resnet_5",
        ),
        (
            {"name": "resnet_50", "key_dim": 8},
            "model 'resnet_50' has no option 'key_dim'; its options: none",
        ),
        ({"include_top": False}, "include_top is num_classes=0 here"),
        (
            {"num_class": 8},
            r"no option 'num_class' \(did you mean num_classes\?\); its options: .*key_dim",
        ),
        ({"num_classes": -1}, "num_classes must be zero or a positive integer, got -1"),
        ({"pooling": None}, "'max', got None; None needs num_classes=0"),
        (
            {"out_levels": (2,)},
            r"out_levels must be None without features_only=True, got \(2,\)",
        ),
        ({"features_only": True, "out_levels": ()}, r"levels 1, 2, 3, 4, 5, got \(\)"),
        ({"dropout_rate": 1.0}, r"dropout_rate must be in \[0, 1\), got 1.0"),
        ({"input_size": (1, 2, 3)}, r"input_size must be .* got \(1, 2, 3\)"),
        (
            {"kernel_regularizer": "l9"},
            "kernel_regularizer must be a Keras regularizer .*, got 'l9'",
        ),
        ({"weights": 1}, "weights must be a string or a path, got 1"),
        *(
            ({"batch_norm": wrong}, "batch_norm must be arguments of .*Norm.*, got")
            for wrong in ({"epsilonn": 1}, {"momentum": 2}, [])
        ),
        ({"output_stride": 12}, "output_stride must be one of 8, 16, 32, got 12"),
        (
            {"name": "efficientnet_b0", "output_stride": 16},
            "efficientnet_b0 is there for comparison.* or output_stride",
        ),
        (
            {"name": "unet_2d", "pooling": "max"},
            "pooling must be left out with a U-Net, got 'max'",
        ),
        *(
            ({"name": "unet_2d", **other}, "no stochastic_depth_rate and no output_str")
            for other in ({"stochastic_depth_rate": 0.1}, {"output_stride": 16})
        ),
        ({"activation": "rleu"}, "activation must be .* got 'rleu'"),
        ({"features_only": 1}, "features_only must be True or False, got 1"),
    ],
)
def test_what_is_rejected(arguments, message):
    with refused(message):
        lambdanet.create_model(**{"name": "lambda_resnet_tiny", **arguments})


def test_layers_on_maps_of_one_size_share_their_positions(tmp_path):
    """Table 4's shared embeddings, and that a saved model still shares them."""
    model = backbone(num_classes=4, input_size=32, share_positions=True, scope=5)
    layers = [
        layer for layer in model.layers if isinstance(layer, lambdanet.LambdaLayer)
    ]
    sides = {layer.name: layer.input.shape[1] for layer in layers}
    names = [
        f"{block}_spatial"
        for block in ("c3_block2", "c4_block1", "c4_block2", "c5_block1")
    ]
    assert sides == dict(zip(names, (4, 4, 2, 2), strict=True))
    loaded = reloaded(model, tmp_path, images(2, 32, 32, 3))
    for shared in (model, loaded):
        a, b, c, d = (shared.get_layer(name).position for name in sides)
        assert a is b and c is d and b is not c
        assert sum("table" in weight.name for weight in shared.weights) == 2


def test_tables_of_maps_of_unknown_size():
    model = few_block_model("resnet_50_cccl", scope=None, features_only=True)
    sizes = [model.get_layer(f"c5_block{i}_spatial").position.map_size for i in (1, 2)]
    assert sizes == [(14, 14), (7, 7)]
    assert model(images(1, 96, 64, 3))["5"].shape == (1, 3, 2, 2048)


CLASSES = ["cat", "dog", "bird"]


def test_names_of_imagenet():
    names = lambdanet.class_names("lambda_resnet50ts", "a1h_in1k")
    assert len(set(names)) == 1000
    assert [names[i] for i in (0, 207, 999)] == [
        "tench",
        "golden retriever",
        "toilet tissue",
    ]
    with refused("unknown model with published weights 'lambda_resnet_50'"):
        lambdanet.class_names("lambda_resnet_50")
    with refused("unknown set of weights of lambda_resnet50ts 'mine'"):
        lambdanet.class_names("lambda_resnet50ts", "mine")


def test_most_probable_classes_come_first():
    """e^(ln 6), e^(ln 3), e^0 share one in the ratio 6:3:1, also with a large constant added."""
    row = np.log([3.0, 1.0, 6.0])
    logits = tf.constant([row, row + 1000])
    for found in lambdanet.decode_predictions(logits, np.array(CLASSES), top=2):
        (first, most), (second, less) = found
        assert (first, second) == ("bird", "cat")
        assert (most, less) == pytest.approx((0.6, 0.3))
    # All three, in order.
    assert lambdanet.decode_predictions([[0.0, 0.0, -1.0]], CLASSES)[0][1][0] == "dog"
    logits = np.zeros([1, 1000])
    logits[0, 207] = 50
    assert lambdanet.decode_predictions(logits)[0][0][0] == "golden retriever"


@pytest.mark.parametrize(
    ("logits", "arguments", "message"),
    [
        (
            [1.0, 2.0, 3.0],
            {},
            r"the shape of logits must be \[b, 3\], one per class name, got \(3,\)",
        ),
        ([[1.0, np.nan, 0.0]], {}, "logits must be finite, got NaN or infinity"),
        (
            [[0.2, 0.3, 0.5]],
            {},
            "must be what precedes a softmax, got probabilities, which sum",
        ),
        ([[1.0], [2.0, 3.0]], {}, "logits must be a matrix of numbers, got"),
        ([[1.0, 2.0, 3.0]], {"top": 0}, "top must be a positive integer, got 0"),
    ],
)
def test_what_is_not_decoded(logits, arguments, message):
    with refused(message):
        lambdanet.decode_predictions(logits, CLASSES, **arguments)
