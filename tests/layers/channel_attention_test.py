# SPDX-License-Identifier: Apache-2.0
"""Channel gates against loops over channels, and centered pooling against a loop over positions."""

import numpy as np
import pytest

import lambdanet
from lambdanet.errors import InputError


def images(*shape):
    return np.random.default_rng(0).normal(size=shape)


def test_efficient_channel_attention_equals_the_loop():
    x = images(2, 3, 5, 7)
    layer = lambdanet.EfficientChannelAttention(kernel_size=5)
    outputs = layer(x.astype(np.float32))
    kernel, means = layer.kernel.numpy()[:, 0, 0], x.mean(axis=(1, 2))
    for c in range(7):
        near = [(kernel[i], means[:, c + i - 2]) for i in range(5) if 0 <= c + i - 2 < 7]
        gate = 1 / (1 + np.exp(-sum(weight * mean for weight, mean in near)))
        np.testing.assert_allclose(outputs[..., c], x[..., c] * gate[:, None, None], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("channels", "size"), [(8, 3), (64, 3), (128, 5), (512, 5), (2048, 7)])
def test_size_of_its_kernel(channels, size):
    layer = lambdanet.EfficientChannelAttention()
    layer.build([None, None, None, channels])
    assert layer.kernel.shape == [size, 1, 1]


@pytest.mark.parametrize(
    ("channels", "ratio", "multiple_of", "hidden"),
    [(64, 1 / 16, 8, 8), (256, 1 / 16, 8, 16), (144, 1 / 4, 8, 40), (6, 1 / 4, 1, 2), (8, 1 / 16, 1, 1)],
)
def test_hidden_width_of_squeeze_and_excitation(channels, ratio, multiple_of, hidden):
    layer = lambdanet.SqueezeExcite(ratio, multiple_of=multiple_of)
    layer.build([None, None, None, channels])
    assert layer.weights[0].shape == [channels, hidden]


@pytest.mark.parametrize(("size", "pool_size", "strides"), [((6, 7), 3, 2), ((5, 4), 5, 3), ((3, 2), 3, 1)])
def test_centered_max_pooling_equals_the_loop(size, pool_size, strides):
    """Of negative numbers, which a padding of zeros would hide."""
    x = images(2, *size, 3).astype(np.float32) - 10
    layer = lambdanet.CenteredMaxPooling2D(pool_size, strides)
    outputs = layer(x)
    assert outputs.shape == layer.compute_output_shape(x.shape)
    reach = pool_size // 2
    for i, j in np.ndindex(*outputs.shape[1:3]):
        rows, columns = (slice(max(0, strides * n - reach), strides * n + reach + 1) for n in (i, j))
        np.testing.assert_array_equal(outputs[:, i, j], x[:, rows, columns].max(axis=(1, 2)))


def test_what_is_rejected():
    with pytest.raises(InputError, match="kernel_size must be odd, got 4; 3 and 5 would do"):
        lambdanet.EfficientChannelAttention(4)
    with pytest.raises(InputError, match="pool_size must be odd, got 2"):
        lambdanet.CenteredMaxPooling2D(2)
    with pytest.raises(InputError, match="multiple_of must be a positive integer, got 0"):
        lambdanet.SqueezeExcite(multiple_of=0)
