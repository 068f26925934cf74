# SPDX-License-Identifier: Apache-2.0
"""Optimizers against timm, their formulas in NumPy, and steps by hand."""

import dataclasses

import keras
import numpy as np
import pytest

from lambdanet import configs
from lambdanet.configs import recipe_values
from lambdanet.training.run import build, optimizers

RECIPE = dataclasses.replace(
    configs.get_recipe("digits"),
    schedule="constant",
    warmup_epochs=0,
    weight_decay=0.0,
    global_batch_size=8,
)


def _optimizer(**changes):
    return build.build_optimizer(
        dataclasses.replace(RECIPE, **changes), steps_per_epoch=10
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


def _step(optimizer, steps=1):
    variables, gradients = _variables()
    for step in range(steps):
        optimizer.apply([keras.ops.array(g * (step + 1)) for g in gradients], variables)
    return [np.array(variable) for variable in variables]


def test_lamb_equals_algorithm_2():
    """Of You et al. (2020); weights without decay take the step of Adam."""
    got = _step(_optimizer(optimizer="lamb", learning_rate=0.01, weight_decay=0.02), 4)
    for weight, gradient, decay, result in zip(
        *_variables(), (0.02, 0, 0), got, strict=True
    ):
        w, m, v = np.array(weight, np.float64), 0.0, 0.0
        for t in range(1, 5):
            g = t * gradient.astype(np.float64)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            update = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + decay * w
            trust = np.linalg.norm(w) / np.linalg.norm(update) if decay else 1
            w -= 0.01 * trust * update
        np.testing.assert_allclose(result, w, rtol=2e-6, atol=1e-7)


def test_lamb_equals_timm(timm):
    import torch
    from timm.optim import Lamb

    variables, gradients = _variables()
    weights = [
        torch.nn.Parameter(torch.tensor(np.array(variable))) for variable in variables
    ]
    groups = [
        {"params": weights[:1], "weight_decay": 0.02},
        {"params": weights[1:], "weight_decay": 0.0},
    ]
    lamb = Lamb(groups, lr=0.01, max_grad_norm=1.0)
    for step in range(3):
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = torch.tensor(gradient * (step + 1))
        lamb.step()
    got = _step(
        _optimizer(
            optimizer="lamb", learning_rate=0.01, weight_decay=0.02, clip_norm=1.0
        ),
        3,
    )
    for a, b in zip(got, weights, strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adamw", "lion"])
def test_steps_decay_kernels_only(optimizer):
    plain, decayed = (
        _step(_optimizer(optimizer=optimizer, learning_rate=0.1, weight_decay=decay))
        for decay in (0.0, 0.5)
    )
    kernel, *others = (np.array(variable) for variable in _variables()[0])
    np.testing.assert_allclose(plain[0] - decayed[0], 0.1 * 0.5 * kernel, atol=1e-6)
    for a, b in zip(plain[1:], decayed[1:], strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(others) == 2


def test_loss_decays_kernels_of_other_optimizers():
    for optimizer in recipe_values.OPTIMIZERS:
        recipe = dataclasses.replace(
            RECIPE, optimizer=optimizer, weight_decay=0.1, momentum=0.9
        )
        assert (build._kernel_regularizer(recipe) is None) == recipe.decays_in_steps
        assert (
            build.build_optimizer(recipe, 1).weight_decay or 0
        ) == 0.1 * recipe.decays_in_steps


def test_clip_norm_scales_all_gradients_together():
    variables, gradients = _variables()
    length = np.sqrt(sum(np.square(g).sum() for g in gradients))
    moved = _step(_optimizer(momentum=0, learning_rate=1, clip_norm=0.5))
    for before, after, gradient in zip(variables, moved, gradients, strict=True):
        np.testing.assert_allclose(
            np.array(before) - after, gradient * 0.5 / length, rtol=1e-4, atol=1e-6
        )


def test_adaptive_clip_equals_timm(timm):
    import torch
    from timm.utils.agc import adaptive_clip_grad

    clip, draw = optimizers.adaptive_clip(0.1), np.random.default_rng(0).normal
    for name, shape, to_torch in [
        ("conv/kernel", (3, 3, 2, 4), (3, 2, 0, 1)),
        ("conv/depthwise_kernel", (3, 3, 4, 1), (2, 3, 0, 1)),
        ("query/kernel", (5, 4), (1, 0)),
        ("norm/gamma", (6,), (0,)),
        ("cls/cls", (1, 1, 6), (0, 1, 2)),
        ("pointwise/kernel", (1, 1, 1, 4), (3, 2, 0, 1)),
    ]:
        weights, gradient = (
            draw(size=shape).astype("f"),
            draw(size=shape).astype("f") * 0.2,
        )
        parameter = torch.nn.Parameter(torch.tensor(weights.transpose(to_torch)))
        parameter.grad = torch.tensor(gradient.transpose(to_torch))
        adaptive_clip_grad(parameter, 0.1)
        got = np.array(clip(gradient, _variable(name, weights)))
        np.testing.assert_allclose(
            got.transpose(to_torch), parameter.grad.numpy(), atol=1e-6
        )
        assert np.any(got != gradient)


def test_adaptive_clip_leaves_classifier():
    gradients = _variables()[1]
    clipped = _step(_optimizer(momentum=0, learning_rate=1, clip_adaptive=1e-4))
    plain = _step(_optimizer(momentum=0, learning_rate=1))
    assert np.all(clipped[0] != plain[0]) and np.all(clipped[2] == plain[2])
    assert len(gradients) == 3


@pytest.mark.parametrize("optimizer", sorted(recipe_values.OPTIMIZERS))
def test_rates_per_layer_scale_steps(optimizer):
    """The change of each weight, decay included, is in proportion to its rate."""
    settings = {"optimizer": optimizer, "learning_rate": 0.01, "weight_decay": 0.1}
    plain, scaled = (
        _optimizer(**settings),
        _optimizer(**settings, layer_decay=0.5, head_rate=10),
    )
    begin = [np.array(variable) for variable in _variables()[0]]
    for before, a, b, factor in zip(
        begin, _step(plain), _step(scaled), (0.5, 0.5, 10), strict=True
    ):
        np.testing.assert_allclose(
            b - before, factor * (a - before), rtol=2e-3, atol=1e-6
        )
    assert float(scaled.learning_rate) == float(plain.learning_rate)


def test_layers_are_stem_blocks_and_classifier():
    names = "stem1_conv stem2_norm c2_block1_expand_conv c2_block2_se block3a_x block12_y final_conv logits"
    variables = [_variable(f"{name}/kernel", 0.0) for name in names.split()]
    depths = [5, 5, 4, 3, 2, 1, 1, 0]
    factors = optimizers.layer_rate_factors(0.5, 3.0)(variables)
    assert factors == [0.5**depth * (3.0 if depth == 0 else 1.0) for depth in depths]


@pytest.mark.parametrize("optimizer", sorted(recipe_values.OPTIMIZERS))
def test_unfrozen_weights_step_as_at_the_beginning(optimizer):
    settings = {
        "optimizer": optimizer,
        "learning_rate": 0.01,
        "weight_decay": 0.1,
        "layer_decay": 0.5,
    }
    (kernel, *_, bias), (gradient, *_, other) = _variables()
    optimizer = _optimizer(**settings)
    optimizer.build([kernel, bias])
    for _ in range(5):
        optimizer.apply([other], [bias])
    optimizer.count_from(5, [kernel])
    for _ in range(3):
        optimizer.apply([gradient, other], [kernel, bias])
    (expected, *_, untouched), fresh = _variables()[0], _optimizer(**settings)
    for _ in range(3):
        fresh.apply([gradient, other], [expected, untouched])
    np.testing.assert_allclose(kernel, expected, rtol=1e-6)
    assert int(optimizer.iterations) == 8
