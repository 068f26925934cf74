# SPDX-License-Identifier: Apache-2.0
"""Maps, Grad-CAM and integrated gradients of networks, compared with closed forms and with the networks."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import images, randomize_normalizations
from small_models import small_model

import lambdanet
from lambdanet.errors import InputError
from lambdanet.explain import grad_cam, implied_attentions, integrated_gradients


@pytest.fixture(scope="module")
def tiny():
    """A smooth network: integrals over kinks need many steps."""
    model = small_model("lambda_resnet_tiny", num_classes=4, activation="swish")
    randomize_normalizations(model)
    return model


def test_maps_of_a_model_give_the_outputs_of_its_layers(tiny):
    x = images(2, 32, 32, 3)
    found = implied_attentions(tiny, x)
    names = [
        layer.name for layer in tiny.layers if isinstance(layer, lambdanet.LambdaLayer)
    ]
    assert [*found] == names
    outputs = keras.Model(tiny.input, [tiny.get_layer(name).output for name in names])
    for expected, maps in zip(outputs(x), found.values(), strict=True):
        flat = tf.reshape(expected, [2, -1, expected.shape[-1]])
        np.testing.assert_allclose(maps.outputs(), flat, rtol=1e-4, atol=1e-4)
    some = implied_attentions(tiny, x, names[-1:], {names[-1]: [0]})
    np.testing.assert_allclose(
        some[names[-1]].total, found[names[-1]].total[:, :, :1], atol=1e-5
    )


def test_maps_of_a_layer_that_is_called_twice_with_a_mask():
    inputs = keras.Input([6, 8])
    mask = keras.Input([6, 6], dtype="bool")
    layer = lambdanet.LambdaLayer(8, scope=3, name="shared")
    x = layer(inputs, mask=mask)
    model = keras.Model([inputs, mask], layer(x, context=inputs))
    x = images(2, 6, 8)
    pairs = tf.constant(np.tril(np.ones([2, 6, 6], bool)))
    found = implied_attentions(model, [x, pairs])
    assert [*found] == ["shared", "shared_2"]
    np.testing.assert_allclose(
        found["shared_2"].outputs(), model([x, pairs]), atol=1e-5
    )
    assert not np.triu(found["shared"].total, 1).any()


def pooled_classifier():
    inputs = keras.Input([None, None, 3])
    maps = keras.layers.Conv2D(5, 3, 2, padding="same", activation="relu")(inputs)
    x = keras.layers.GlobalAveragePooling2D()(maps)
    return keras.Model(inputs, keras.layers.Dense(4)(x)), maps


def test_grad_cam_of_a_pooled_map_has_the_weights_of_the_classifier():
    model, maps = pooled_classifier()
    x = images(2, 8, 6, 3)
    values = keras.Model(model.input, maps)(x)
    kernel = model.layers[-1].kernel
    for classes in ([1, 3], None):
        chosen = np.argmax(model(x), -1) if classes is None else classes
        weights = tf.gather(kernel, chosen, axis=1) / 12  # [5, b]
        expected = tf.nn.relu(tf.einsum("bhwc,cb->bhw", values, weights))
        np.testing.assert_allclose(grad_cam(model, x, classes), expected, atol=1e-6)


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
        [keras.Input([4, 4, 3]), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    x = images(2, 4, 4, 3)
    baseline = np.full([4, 4, 3], 0.5, np.float32)
    kernel = tf.reshape(model.layers[-1].kernel[:, 1], [4, 4, 3])
    found = integrated_gradients(model, x, 1, baseline, steps=1)
    np.testing.assert_allclose(found, (x - baseline) * kernel, atol=1e-6)


@pytest.mark.parametrize("classes", [None, [1, 0]])
def test_integrated_gradients_add_up_to_the_difference_of_logits(tiny, classes):
    x = images(2, 16, 16, 3)
    chosen = tf.argmax(tiny(x), -1) if classes is None else classes
    logits = tiny(x) - tiny(tf.zeros_like(x))
    expected = tf.gather(logits, chosen, axis=1, batch_dims=1)
    total = tf.reduce_sum(integrated_gradients(tiny, x, classes, steps=16), [1, 2, 3])
    np.testing.assert_allclose(total, expected, rtol=1e-3, atol=1e-4)


SMALL = images(2, 16, 16, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: implied_attentions(model, SMALL, ["c9"]), "unknown layer with"),
        (
            lambda _: implied_attentions(pooled_classifier()[0], SMALL),
            "has no layer with a map",
        ),
        (lambda _: implied_attentions(None, SMALL), "model must be a functional model"),
        (
            lambda model: grad_cam(model, SMALL, 4),
            "classes must be a class from 0 to 3",
        ),
        (lambda model: grad_cam(model, SMALL, [0]), "or 2, one for each image"),
        (lambda model: grad_cam(model, SMALL, level=7), "level must be one of"),
        (lambda _: grad_cam(pooled_classifier()[1], SMALL), "model must be"),
        (
            lambda model: integrated_gradients(model, SMALL, baseline=np.ones(3)),
            r"baseline must be of the shape \(16, 16, 3\)",
        ),
        (
            lambda model: integrated_gradients(model, SMALL, steps=0),
            "steps must be a positive integer",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(tiny, call, message):
    with pytest.raises(InputError, match=message) as error:
        call(tiny)
    assert "\n" not in str(error.value)
