# SPDX-License-Identifier: Apache-2.0
"""Numbers that Keras or a backend would lose, on the backend of this process."""

import keras
import numpy as np
import pytest
from fuzzing import computing_in
from naive_layers import images
from numpy.testing import assert_allclose
from processes import output_of
from refusals import refused

import lambdanet
from lambdanet import backend as K
from lambdanet.backend import compat
from lambdanet.explain import implied_attention
from lambdanet.layers.batch_norm import BatchNormalization

NEEDS_FLOAT64 = pytest.mark.skipif(K.ENGINE == "torch", reason="torch refuses float64")


@pytest.fixture
def float64():
    with computing_in("float64"):
        yield


def normalized(x, epsilon, axes=(0, 1, 2)):
    x = x.astype("float64")
    return (x - x.mean(axes)) / np.sqrt(x.var(axes) + epsilon)


@pytest.mark.skipif(K.ENGINE != "tensorflow", reason="TensorFlow's product")
@pytest.mark.slow
def test_one_matrix_for_all_rows():
    """In a process of its own: with oneDNN, TensorFlow's product writes outside of its memory."""
    output_of("products.py", TF_ENABLE_ONEDNN_OPTS="1")


@pytest.mark.parametrize("shape", [(2, 1, 1, 64), (2, 9, 64)])
def test_batch_norm_of_nearly_constant_channels(shape):
    """Where the variance is small beside the squared mean, their difference would be negative."""
    x = 12 + 1e-3 * images(*shape)
    found = BatchNormalization(epsilon=1e-5)(x, training=True)
    expected = normalized(x, 1e-5, tuple(range(len(shape) - 1)))
    # The mean is rounded to 5e-7, and deviations are divided by at least 3e-3.
    assert_allclose(K.convert_to_numpy(found), expected, atol=1e-3)


@pytest.mark.filterwarnings("ignore:.*You are using a softmax:UserWarning")
@pytest.mark.slow
def test_training_begins_with_finite_numbers():
    pictures = images(2, 16, 16, 3)
    sequences = 12 + 1e-3 * images(2, 32, 40)
    of_sequences = lambdanet.create_sequence_model("lambda_resnet18_1d")
    of_images = lambdanet.create_unet("lambda_unet_2d")
    for network, x, training in (
        (of_sequences, sequences, True),
        (of_images, np.ones_like(pictures), True),
        # Inference too, from the first step on.
        (of_images, pictures, True),
        (of_images, pictures, False),
    ):
        outputs = network(x, training=training)
        assert np.isfinite(K.convert_to_numpy(outputs)).all()


@NEEDS_FLOAT64
def test_batch_norm_keeps_float64(float64):
    x = np.random.default_rng(0).normal(size=[2, 3, 3, 8])
    layer = BatchNormalization(epsilon=1e-3, dtype="float64")
    found = K.convert_to_numpy(layer(x, training=True))
    assert_allclose(found, normalized(x, 1e-3), atol=1e-12)


@pytest.mark.skipif(K.ENGINE != "torch", reason="of torch alone")
@pytest.mark.parametrize("name", ["resnet_50", "lambda_resnet_tiny"])
def test_float64_is_refused_on_torch(name):
    """Of which Keras computes a part in float32."""
    expected = "dtype must be narrower than float64 on torch, .* got 'float64'"
    for layer in (lambdanet.LambdaLayer, BatchNormalization):
        with refused(f"^{expected}"):
            layer(dtype="float64")
    with compat.dtype_policy("float64"), refused(f"^{expected}"):
        lambdanet.create_model(name)


@NEEDS_FLOAT64
@pytest.mark.parametrize("padded", [False, True])
def test_implied_attention_keeps_float64(float64, padded):
    position = lambdanet.RelativePositionEmbedding(
        scope=5, use_bias=True, dtype="float64"
    )
    layer = lambdanet.LambdaLayer(
        8, 2, position=position, strides=2, pool_size=3, dtype="float64"
    )
    x = np.random.default_rng(0).normal(size=[2, 6, 4])
    layer.build(x.shape)
    layer.position.bias.assign(np.ones(layer.position.bias.shape))
    mask = np.array([[1, 1, 1, 1, 0, 0], [1] * 6], bool) if padded else None
    expected = K.convert_to_numpy(layer(x, padding_mask=mask))
    found = implied_attention(layer, x, padding_mask=mask).outputs()
    assert_allclose(K.convert_to_numpy(found), expected.reshape([2, 3, 8]), atol=1e-12)


@pytest.mark.parametrize(
    "policy",
    ["mixed_bfloat16", "mixed_float16", pytest.param("float64", marks=NEEDS_FLOAT64)],
)
def test_gradients_of_logits_of_other_types(float64, policy):
    with compat.dtype_policy(policy):
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input([8, 8, 3]),
                layers.Conv2D(4, 3, padding="same"),
                layers.GlobalAveragePooling2D(),
                layers.Dense(3),
            ]
        )
    pixels = np.arange(2 * 8 * 8 * 3, dtype="uint8").reshape([2, 8, 8, 3])
    assert tuple(lambdanet.explain.grad_cam(model, pixels).shape) == (2, 8, 8)
    shares = lambdanet.explain.integrated_gradients(model, pixels, 1, steps=2)
    shares = np.asarray(K.convert_to_numpy(shares), "float64").sum((1, 2, 3))
    logits = np.asarray(K.convert_to_numpy(model(pixels)), "float64")[:, 1]
    # A linear model: the shares of a logit add up to it, in the precision of Keras's layers.
    tolerance = 1e-6 if policy == "float64" else 2e-2
    assert_allclose(shares, logits, atol=tolerance * np.abs(logits).max())
