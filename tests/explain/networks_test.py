# SPDX-License-Identifier: Apache-2.0
"""Maps, Grad-CAM and integrated gradients of networks, compared with closed forms and with the networks.

On the backend of this process.
"""

import keras
import numpy as np
import pytest
from helpers import assert_close, randomize_normalizations
from keras import layers
from naive_layers import images
from programs.run_on_engine import numpy
from refusals import refused
from small_models import small_model

import lambdanet
from lambdanet.backend import ENGINE
from lambdanet.explain import grad_cam, implied_attentions, integrated_gradients

pytestmark = [
    # Of Keras on torch, for NumPy 2.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    # Of Keras, on maps of a single position.
    pytest.mark.filterwarnings("ignore:(?s).*You are using a softmax over axis"),
]

SMALL = images(2, 16, 16, 3)


@pytest.fixture(scope="module")
def tiny():
    """A smooth network: integrals over kinks need many steps."""
    model = small_model("lambda_resnet_tiny", num_classes=4, activation="swish")
    randomize_normalizations(model)
    return model


@pytest.mark.slow
def test_maps_of_a_model_give_the_outputs_of_its_layers(tiny):
    x = images(2, 32, 32, 3)
    found = implied_attentions(tiny, x)
    names = [
        layer.name for layer in tiny.layers if isinstance(layer, lambdanet.LambdaLayer)
    ]
    assert [*found] == names
    outputs = keras.Model(tiny.input, [tiny.get_layer(name).output for name in names])
    for expected, maps in zip(outputs(x), found.values(), strict=True):
        flat = numpy(expected).reshape([2, -1, expected.shape[-1]])
        assert_close(numpy(maps.outputs()), flat, 1e-4)
    some = implied_attentions(tiny, x, names[-1:], {names[-1]: [0]})
    total = numpy(found[names[-1]].total)
    assert_close(numpy(some[names[-1]].total), total[:, :, :1], 1e-5)


@pytest.mark.slow
def test_maps_of_a_layer_that_is_called_twice_with_a_mask():
    inputs = keras.Input([6, 8])
    mask = keras.Input([6, 6], dtype="bool")
    layer = lambdanet.LambdaLayer(8, scope=3, name="shared")
    x = layer(inputs, attention_mask=mask)
    model = keras.Model([inputs, mask], layer(x, context=inputs))
    x = images(2, 6, 8)
    pairs = np.tril(np.ones([2, 6, 6], bool))
    found = implied_attentions(model, [x, pairs])
    assert [*found] == ["shared", "shared_2"]
    assert_close(numpy(found["shared_2"].outputs()), numpy(model([x, pairs])), 1e-5)
    assert not np.triu(numpy(found["shared"].total), 1).any()


def test_grad_cam_of_a_pooled_map_has_the_weights_of_the_classifier():
    inputs = keras.Input([None, None, 3])
    maps = layers.Conv2D(5, 3, 2, padding="same", activation="relu")(inputs)
    x = layers.GlobalAveragePooling2D()(maps)
    model = keras.Model(inputs, layers.Dense(4)(x))
    with refused("has no layer with a map"):
        implied_attentions(model, SMALL)
    with refused("model must be"):
        grad_cam(maps, SMALL)
    x = images(2, 8, 6, 3)
    values = numpy(keras.Model(model.input, maps)(x))
    kernel = numpy(model.layers[-1].kernel)
    for classes in ([1, 3], None):
        chosen = numpy(model(x)).argmax(-1) if classes is None else classes
        weights = kernel[:, chosen] / 12  # [5, b]
        expected = np.maximum(np.einsum("bhwc,cb->bhw", values, weights), 0)
        found = numpy(grad_cam(model, x, classes))
        assert_close(found, expected, 1e-6)


@pytest.mark.skipif(ENGINE != "tensorflow", reason="depends on names of layers alone")
@pytest.mark.parametrize(
    "name",
    [
        "lambda_resnet_50",
        "mobilenet_v2_lambda",
        "haloregnetz_b",
        "efficientnet_b0",
    ],
)
def test_grad_cam_reads_the_last_map_of_a_level(name):
    model = small_model(name, input_size=64)
    found = [grad_cam(model, images(1, 64, 64, 3), 0, level) for level in (None, 3)]
    assert [tuple(x.shape) for x in found] == [(1, 2, 2), (1, 8, 8)]


def test_integrated_gradients_of_a_linear_model_are_its_terms():
    model = keras.Sequential(
        [keras.Input([4, 4, 3]), layers.Flatten(), layers.Dense(2)]
    )
    x = images(2, 4, 4, 3)
    baseline = np.full([4, 4, 3], 0.5, np.float32)
    kernel = numpy(model.layers[-1].kernel)[:, 1].reshape([4, 4, 3])
    found = integrated_gradients(model, x, 1, baseline, steps=1)
    assert_close(numpy(found), (x - baseline) * kernel, 1e-6)


@pytest.mark.parametrize("classes", [None, [1, 0]])
@pytest.mark.slow
def test_integrated_gradients_add_up_to_the_difference_of_logits(tiny, classes):
    x = images(2, 16, 16, 3)
    logits = numpy(tiny(x))
    chosen = logits.argmax(-1) if classes is None else classes
    expected = (logits - numpy(tiny(np.zeros_like(x))))[[0, 1], chosen]
    found = numpy(integrated_gradients(tiny, x, classes, steps=16))
    total = found.sum((1, 2, 3))
    assert_close(total, expected, 1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: implied_attentions(model, SMALL, ["c9"]), "unknown layer with"),
        (lambda _: implied_attentions(None, SMALL), "model must be a functional model"),
        (lambda model: grad_cam(model, SMALL, 4), "must be a class from 0 to 3"),
        (lambda model: grad_cam(model, SMALL, [0]), "or 2, one for each image"),
        (lambda model: grad_cam(model, SMALL, level=7), "level must be one of"),
        (
            lambda model: integrated_gradients(model, SMALL, baseline=np.ones(3)),
            r"baseline must be of the shape \(16, 16, 3\)",
        ),
        (lambda model: integrated_gradients(model, SMALL, steps=0), "steps must be a"),
    ],
)
def test_a_wrong_argument_is_one_line(tiny, call, message):
    with refused(message):
        call(tiny)
