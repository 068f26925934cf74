# SPDX-License-Identifier: Apache-2.0
"""DeepLabV3+ on networks of the zoo: a plain graph of its head, and the weights of a classifier."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_equal_arrays, assert_near, images, randomize_normalizations
from refusals import refused

import lambdanet
from lambdanet.backend import keras
from lambdanet.models.weights import weight_files
from lambdanet.training.data.class_names import Classes
from lambdanet.training.run.start import load_initial_weights

NAME = "resnet_micro"
RATES = (1, 2)
SMALL = {"filters": 6, "low_level_filters": 4, "dilation_rates": RATES}


def test_logits_equal_those_of_a_plain_graph():
    """Of pictures whose sides no stride divides, on the maps of the backbone alone."""
    model = lambdanet.create_deeplab(NAME, 3, output_stride=8, **SMALL)
    assert model.name == NAME
    randomize_normalizations(model)
    trunk = lambdanet.create_model(NAME, features_only=True, output_stride=8)
    weights = {weight.path: weight for weight in model.weights}
    for weight in trunk.weights:
        weight.assign(weights[weight.path])

    def convolve(x, name, rate=1):
        kernel, *normalization = (
            np.array(weight)
            for part in ("conv", "norm")
            for weight in model.get_layer(f"deeplab_{name}_{part}").weights
        )
        y = tf.nn.conv2d(x, kernel, 1, "SAME", dilations=rate)
        assert len(kernel) == (3 if name[-1].isdigit() else 1)
        gamma, beta, mean, variance = normalization
        return tf.nn.relu((y - mean) / np.sqrt(variance + 1e-5) * gamma + beta)

    pictures = images(2, 70, 50, 3)
    maps = trunk(pictures)
    last = maps["5"]
    low = maps["2"]
    branches = [convolve(last, "point")]
    branches += [convolve(last, f"dilated{rate}", rate) for rate in RATES]
    pooled = convolve(tf.reduce_mean(last, [1, 2], keepdims=True), "pooled")
    branches.append(tf.image.resize(pooled, last.shape[1:3]))
    joined = convolve(tf.concat(branches, -1), "joined")
    joined = tf.image.resize(joined, low.shape[1:3])
    x = tf.concat([joined, convolve(low, "low")], -1)
    x = convolve(convolve(x, "refined1"), "refined2")
    kernel, bias = model.get_layer("logits").get_weights()
    assert_near(model(pictures), tf.image.resize(x @ kernel + bias, [70, 50]), 1e-4)


def test_options_reach_the_head():
    options = {"kernel_regularizer": "l2", "dropout_rate": 0.25}
    model = lambdanet.create_deeplab(NAME, 3, **SMALL, **options)
    names = [weight.path for weight in model.trainable_weights]
    assert len(model.losses) == sum(name.endswith("kernel") for name in names)
    dropouts = [x for x in model.layers if isinstance(x, keras.layers.Dropout)]
    assert [layer.rate for layer in dropouts] == [0.25]


def test_backbone_of_a_classifier(tmp_path):
    """The weights of a classifier are those of the backbone, and the head keeps its own."""
    classifier = lambdanet.create_model(NAME, num_classes=3)
    file = tmp_path / "weights.safetensors"
    weight_files.save(classifier, file)
    model = lambdanet.create_deeplab(NAME, 5, **SMALL)
    head = model.get_layer("logits").get_weights()
    line = load_initial_weights(model, file)
    assert line.endswith(
        "the backbone has its weights, and the head starts with random ones"
    )
    assert_equal_arrays(model.get_layer("logits").get_weights(), head)
    trunk = keras.Model(model.input, model.get_layer("c5_interleaved1").output)
    plain = lambdanet.create_model(NAME, features_only=True, weights=file)
    pictures = images(1, 64, 64, 3)
    found = trunk(pictures)[:, ::2, ::2]
    np.testing.assert_allclose(found, plain(pictures)["5"], atol=1e-4)


COUNTS = ("num_classes", "filters", "low_level_filters")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({name: 0}, f"{name} must be a positive integer, got 0") for name in COUNTS),
        ({"out_levels": [5]}, "an option of create_deeplab must be none that it sets"),
        ({"features_only": True}, "got 'features_only'"),
        ({"backbone": "unet_2d"}, "model must be one for classification, got 'unet_2"),
        *(
            ({"dilation_rates": wrong}, "dilation_rates must be different positive")
            for wrong in ((6, 6), [0], 6)
        ),
    ],
)
def test_wrong_options_are_refused(options, message):
    with refused(message):
        lambdanet.create_deeplab(**{"backbone": NAME, "num_classes": 2, **options})


def test_classes_in_another_order(tmp_path):
    """The columns of the classifier follow the names of the classes."""
    file = tmp_path / "weights.safetensors"
    trained, model = (lambdanet.create_deeplab(NAME, 3, **SMALL) for _ in range(2))
    weight_files.save(trained, file, {"classes": '["a", "b", "c"]'})
    line = load_initial_weights(model, file, classes=Classes("data", 3, "cab"))
    assert line.endswith("in another order: matched by name")
    kernel, _ = trained.get_layer("logits").get_weights()
    assert_equal_arrays(
        model.get_layer("logits").get_weights()[:1], [kernel[:, [2, 0, 1]]]
    )
