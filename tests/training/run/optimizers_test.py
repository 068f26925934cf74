# SPDX-License-Identifier: Apache-2.0
"""Optimizers against their formulas in NumPy, and steps by hand."""

from dataclasses import replace

import keras
import numpy as np
import pytest
from helpers import assert_equal_arrays
from numpy.testing import assert_allclose
from refusals import refused
from training_runs import CONSTANT

from lambdanet import configs
from lambdanet.configs import recipe_values
from lambdanet.training.run import build, optimizers

# But ftrl, whose step is not in proportion to its learning rate, and one that is refused.
EVERY_OPTIMIZER = pytest.mark.parametrize(
    "optimizer", sorted({*recipe_values.OPTIMIZERS} - {"ftrl", "schedulefreeadamw"})
)


def _variable(name, value):
    scope, _, own = name.rpartition("/")
    with keras.name_scope(scope):
        return keras.Variable(value, name=own)


def _variables():
    """A kernel, a table and a bias, as in a lambda layer, and their gradients."""
    draw = np.random.default_rng(0).normal
    shapes = {
        "c2_block1_conv/kernel": (3, 4),
        "c2_block1_conv/table": (5, 2),
        "logits/bias": (4,),
    }
    variables = [
        _variable(name, draw(size=shape).astype("f")) for name, shape in shapes.items()
    ]
    return variables, [draw(size=shape).astype("f") for shape in shapes.values()]


def _weights():
    """The values of the variables."""
    return [np.array(variable) for variable in _variables()[0]]


def _step(steps=1, **changes):
    """The values of the variables after steps with an optimizer of the recipe."""
    variables, gradients = _variables()
    recipe = replace(CONSTANT, **changes)
    optimizer = build.build_optimizer(recipe, variables, 10)
    for step in range(steps):
        optimizer.apply([keras.ops.array(g * (step + 1)) for g in gradients], variables)
    return [np.array(variable) for variable in variables]


def test_lamb_equals_algorithm_2():
    """Of You et al. (2020); weights without decay take the step of Adam."""
    got = _step(4, optimizer="lamb", learning_rate=0.01, weight_decay=0.02)
    for weight, gradient, decay, result in zip(
        _weights(), _variables()[1], (0.02, 0, 0), got, strict=True
    ):
        w, m, v = weight.astype(np.float64), 0.0, 0.0
        for t in range(1, 5):
            g = t * gradient.astype(np.float64)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            update = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + decay * w
            trust = np.linalg.norm(w) / np.linalg.norm(update) if decay else 1
            w -= 0.01 * trust * update
        assert_allclose(result, w, rtol=2e-6, atol=1e-7)


@EVERY_OPTIMIZER
def test_either_steps_or_loss_decay_kernels(optimizer):
    recipe = replace(CONSTANT, optimizer=optimizer, weight_decay=0.1)
    decay = 0.1 if recipe.decays_in_steps else 0
    assert (build._kernel_regularizer(recipe) is None) == recipe.decays_in_steps
    built = build.build_optimizer(recipe, _variables()[0], 1)
    assert (built.weight_decay or 0) == decay


@pytest.mark.parametrize("clip_adaptive", [0.0, 0.5])
def test_clip_norm_scales_all_gradients_together(clip_adaptive):
    """After they are clipped by channel, but for those of the classifier."""
    _, gradients = _variables()
    for number in range(2 if clip_adaptive else 0):
        sizes = np.linalg.norm([_weights()[number], gradients[number]], axis=1)
        gradients[number] *= np.minimum(1, clip_adaptive * sizes[0] / sizes[1])
    length = np.sqrt(sum(np.square(g).sum() for g in gradients))
    moved = _step(
        momentum=0, learning_rate=1, clip_norm=0.5, clip_adaptive=clip_adaptive
    )
    for before, after, gradient in zip(_weights(), moved, gradients, strict=True):
        assert_allclose(before - after, gradient * 0.5 / length, rtol=1e-4, atol=1e-6)


def test_optimizer_begins_at_its_place():
    recipe = configs.get_recipe("digits")
    optimizer = build.build_optimizer(recipe, _variables()[0], 10, first=25)
    expected = build.build_schedule(recipe, 10)(25)
    assert float(optimizer.learning_rate) == float(expected) != 0


@pytest.mark.parametrize(
    ("name", "shape", "axes"),
    [
        ("conv/kernel", (3, 3, 2, 4), (0, 1, 2)),
        ("conv/depthwise_kernel", (3, 3, 4, 2), (0, 1)),
        ("query/kernel", (5, 4), (0,)),
        ("norm/gamma", (6,), (0,)),
        ("cls/cls", (1, 1, 6), (0, 1, 2)),
    ],
)
def test_adaptive_clip_is_by_output_channel(name, shape, axes):
    random = np.random.default_rng(0)
    weights = random.normal(size=shape).astype("f")
    gradient = random.normal(size=shape).astype("f")
    norms = [
        np.sqrt(np.sum(np.square(x), axes, keepdims=True)) for x in (weights, gradient)
    ]
    # Below the median, a part of the channels is clipped.
    limit = float(np.median(norms[1] / norms[0])) * 0.99
    expected = gradient * np.minimum(1, limit * norms[0] / norms[1])
    found = optimizers.adaptive_clip(gradient, _variable(name, weights), limit)
    assert_allclose(found, expected, rtol=1e-5)


@EVERY_OPTIMIZER
def test_rates_per_layer_scale_steps(optimizer):
    """The change of each weight, decay included, is in proportion to its rate; kernels alone decay."""
    settings = {"optimizer": optimizer, "learning_rate": 0.01}
    plain = _step(**settings, weight_decay=0.1)
    assert_equal_arrays(plain[1:], _step(**settings)[1:])
    scaled = _step(**settings, weight_decay=0.1, layer_decay=0.5, head_rate=10)
    for before, a, b, factor in zip(
        _weights(), plain, scaled, (0.5, 0.5, 10), strict=True
    ):
        assert_allclose(b - before, factor * (a - before), rtol=2e-3, atol=1e-6)


def test_weights_that_nobody_evaluates_are_refused():
    message = "optimizer must be another one, .*average.*, got 'schedulefreeadamw'"
    with refused(message):
        replace(CONSTANT, optimizer="ScheduleFreeAdamW")


def test_layers_are_stem_blocks_and_classifier():
    names = "stem1_conv stem2_norm c2_block1_expand_conv c2_block2_se block3a_x block12_y final_conv logits"
    variables = [_variable(f"{name}/kernel", 0.0) for name in names.split()]
    depths = [5, 5, 4, 3, 2, 1, 1]
    factors = optimizers.layer_rate_factors(variables, 0.5, 3.0)
    assert factors == [*(0.5**depth for depth in depths), 3.0]
