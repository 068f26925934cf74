# SPDX-License-Identifier: Apache-2.0
"""Tests of what each half of a lambda layer can do, by weights set by hand, and cannot, by equal answers."""

import os
import re
import subprocess
import sys
from functools import partial

import constructions
import numpy as np
import pytest
from helpers import ENGINES, ROOT
from naive_layers import lambda_by_equations

import lambdanet
from lambdanet import LambdaLayer
from lambdanet import backend as K
from lambdanet.backend import keras

TASKS = constructions.SOLUTIONS
PAGE = ROOT / "docs" / "explanation" / "what_each_half_can_do.md"
# Without the half that the task does not need: content would add the mean color to that of a pointer.
HALVES = {
    "pointer grid": {"content": False},
    "recall": {"position": None},
    "in-context recall": {},
}


def assert_solved(outputs, examples):
    right, asked = constructions.count_right(outputs, examples.answers)
    assert right == asked > 40


@pytest.mark.parametrize("task", TASKS)
def test_outputs_of_the_half_are_the_answers(task):
    draw, build = TASKS[task]
    inputs, answers = draw()
    outputs = K.convert_to_numpy(build(**HALVES[task])(inputs, training=False))
    expected = constructions.one_hot(answers, outputs.shape[-1])
    np.testing.assert_allclose(outputs[answers >= 0], expected[answers >= 0], atol=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_solved_by_the_equations_of_the_paper(task):
    draw, build = TASKS[task]
    examples = draw(number=4)
    outputs = examples.inputs
    for layer in build().layers[1:]:
        if isinstance(layer, LambdaLayer):
            outputs = lambda_by_equations(layer, outputs)
        else:
            outputs = examples.inputs + outputs
    assert_solved(outputs, examples)


@pytest.mark.engines
@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_solved_on_every_engine(engine):
    environment = {**os.environ, **ENGINES[engine]}
    command = [sys.executable, "tests/constructions.py"]
    options = {"env": environment, "cwd": ROOT, "capture_output": True, "text": True}
    done = subprocess.run(command, **options, check=False)
    counts = re.findall(r"([\d,]+) +([\d,]+)$", done.stdout, re.MULTILINE)
    assert len(counts) == len(TASKS), done.stderr
    assert done.stdout.strip() in PAGE.read_text(encoding="utf-8")
    assert all(right == asked for right, asked in counts)


def answers_to(examples, *layers, seed=0):
    """The answers of layers with random weights to the only question of each example."""
    keras.utils.set_random_seed(seed)
    x = inputs = keras.Input(examples.inputs.shape[1:])
    for layer in layers:
        x = layer(x)
    outputs = K.convert_to_numpy(
        keras.Model(inputs, x)(examples.inputs, training=False)
    )
    return outputs[examples.answers >= 0]


def assert_equal_to_rounding(first, second):
    """Within 32 units in the last place of the largest number, as products add up in another order."""
    scale = np.abs(first).max()
    np.testing.assert_allclose(
        first, second, rtol=0, atol=32 * np.finfo("float32").eps * scale
    )


def lambda_layer(**options):
    return LambdaLayer(12, num_heads=2, key_dim=4, scope=3, **options)


def point_wise():
    return keras.layers.Dense(12, "relu")


content_alone = partial(lambda_layer, position=None)
position_alone = partial(lambda_layer, content=False)


@pytest.mark.parametrize(
    "make",
    [
        content_alone,
        partial(content_alone, key_normalization="l2", query_normalization="softmax"),
        partial(lambdanet.LinearAttention, 12, num_heads=2),
        lambdanet.SqueezeExcite,
    ],
)
def test_content_alone_cannot_follow_pointers(make):
    """A permutation of the cells permutes the outputs of a network, so it answers both boards equally."""
    examples = constructions.swapped_cells()
    layers = [point_wise(), make(), point_wise(), make()]
    first, second = answers_to(examples, *layers)
    np.testing.assert_allclose(first, second, atol=1e-5)
    # A layer with positions answers them differently.
    first, second = answers_to(examples, point_wise(), position_alone())
    assert np.abs(first - second).max() > 1e-2


@pytest.mark.parametrize(
    "make", [position_alone, partial(keras.layers.Conv2D, 12, 3, padding="same")]
)
def test_a_small_scope_cannot_follow_long_pointers(make):
    first, second = answers_to(constructions.cells_beyond_3x3(), point_wise(), make())
    assert_equal_to_rounding(first, second)


@pytest.mark.parametrize(
    "make", [position_alone, partial(keras.layers.Conv1D, 12, 3, padding="same")]
)
def test_positions_cannot_recall_beyond_their_reach(make):
    """Two layers see two positions far, at three the answers differ."""
    layers = [point_wise(), make(), point_wise(), make()]
    first, second = answers_to(constructions.pairs_beyond(2), *layers)
    assert_equal_to_rounding(first, second)
    first, second = answers_to(constructions.pairs_beyond(1), *layers)
    assert np.abs(first - second).max() > 1e-5
    first, second = answers_to(
        constructions.pairs_beyond(2), point_wise(), lambda_layer()
    )
    assert np.abs(first - second).max() > 1e-5


def causal(**options):
    return lambda_layer(**options, causal=True)


@pytest.mark.parametrize(
    ("draw", "make"),
    [
        (
            constructions.two_arrows,
            lambda: [point_wise(), keras.layers.Conv2D(12, 5, padding="same")],
        ),
        (constructions.two_pairs, lambda: [LambdaLayer(12, scope=None, content=False)]),
        (constructions.two_neighbors, lambda: [point_wise(), causal()]),
    ],
    ids=["convolution", "position alone", "one layer"],
)
def test_sums_over_positions_cannot_answer_four_questions(draw, make):
    """The right answers are p, q, q, p, but the sum of the outer scores equals that of the inner ones."""
    examples = draw()
    p, q, *rest = examples.answers[examples.answers >= 0]
    assert rest == [q, p] and p != q
    for seed in range(3):
        first, second, third, fourth = answers_to(examples, *make(), seed=seed)
        np.testing.assert_allclose(first + fourth, second + third, atol=1e-5)
        assert np.abs(first - second).max() > 1e-3


def test_one_layer_of_content_alone_sees_a_bag_of_tokens():
    first, *others = answers_to(
        constructions.two_neighbors(), point_wise(), causal(position=None)
    )
    for other in others:
        np.testing.assert_allclose(first, other, atol=1e-6)
