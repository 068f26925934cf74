# SPDX-License-Identifier: Apache-2.0
"""Lambda layers with a scope, dilation, strides and pool for each axis; fuzz_layers_test has random ones."""

import causal_cases
import numpy as np
import pytest
from helpers import assert_near, reloaded
from naive_layers import by_reference, images, randomize
from refusals import refused

import lambdanet
from lambdanet import LambdaLayer
from lambdanet.backend import keras
from lambdanet.layers.old_arguments import translate
from lambdanet.models.complexity import count_flops


@pytest.mark.parametrize("name", causal_cases.ALL)
def test_saved_folded_and_reference_layers_are_equal(name, tmp_path):
    options, shape, _ = causal_cases.ALL[name]
    inputs = keras.Input(shape[1:])
    layer = LambdaLayer(8, **causal_cases.arguments_of(options))
    model = keras.Model(inputs, layer(inputs))
    randomize(model)
    x = images(*shape)
    reloaded(model, tmp_path, x)
    assert_near(lambdanet.for_inference(model)(x), model(x), 1e-5)
    assert_near(by_reference(layer)(x), model(x), 1e-5)


def test_a_shared_table_with_axes_of_its_own():
    table = lambdanet.RelativePositionEmbedding(scope=(3, None), map_size=(None, 5))
    first = LambdaLayer(8, position=table, strides=(2, 1))
    second = LambdaLayer(8, position=table, scope=(3, None))
    x = images(2, 6, 5, 8)
    assert second(first(x)).shape == (2, 3, 5, 8)
    assert tuple(table.table.shape) == (3, 9, 16)
    with refused(r"scope beside .*\(3, None\).*, got \(3, 5\)"):
        LambdaLayer(8, position=table, scope=(3, 5))


def test_a_whole_axis_is_stretched_alone():
    """Along the other axis the table keeps its offsets, and the size may be unknown."""
    table = lambdanet.RelativePositionEmbedding(
        scope=(3, None), map_size=(None, 4), resize="interpolate"
    )
    layer = LambdaLayer(8, position=table)
    layer(images(2, 6, 4, 8))
    for size in ([5, 4], [3, 7], [9, 2]):
        assert layer(images(2, *size, 8)).shape == (2, *size, 8)


def test_flops_count_the_scope_along_each_axis():
    def flops(**options):
        inputs = keras.Input([8, 10, 16])
        layer = LambdaLayer(16, num_heads=1, content=False, **options)
        return count_flops(keras.Model(inputs, layer(inputs)))

    projections = flops(scope=1) - 2 * 80 * (16 * 16 + 16 * 16)
    assert flops(scope=(3, None)) == projections + 2 * 80 * (30 * 16 * 16 + 16 * 16)
    assert flops(scope=(5, 5)) == flops(scope=5)


PER_AXIS = "must be one value, or one per spatial axis"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strides": (1, 2, 2)}, rf"^strides {PER_AXIS}, 2 here, got \(1, 2, 2\)$"),
        ({"scope": (3, 7, 7)}, rf"^scope {PER_AXIS}, 2 here, got \(3, 7, 7\)$"),
        ({"scope": (3, 4)}, "^scope must be odd, got 4; 3 and 5 would do$"),
        ({"position": None, "content": False}, "needs content, positions or both"),
        ({"scope": ()}, rf"^scope {PER_AXIS}, got \(\)$"),
        ({"strides": (1, 0)}, "^strides must be a positive integer, got 0$"),
        ({"scope": (None, 3), "dilation": 2}, "^dilation must be 1 with scope=None"),
        ({"scope": None, "map_size": (4, 4, 4)}, rf"^map_size {PER_AXIS}, 2 here"),
    ],
)
def test_settings_that_are_refused(options, message):
    with refused(message):
        LambdaLayer(8, **translate(options))(images(2, 4, 4, 8))


def test_pools_of_one_along_each_axis_allow_masks():
    x = images(2, 4, 3, 8)
    layer = LambdaLayer(8, scope=3, strides=(1, 1), pool_size=[1, 1])
    np.testing.assert_allclose(
        layer(x, attention_mask=np.ones([12, 12])), layer(x), atol=1e-5
    )
    pooled = LambdaLayer(8, scope=3, strides=2, pool_size=3)
    with refused(r"pool_size must be 1 with an attention_mask"):
        pooled(x, attention_mask=np.ones([12, 12]))
