# SPDX-License-Identifier: Apache-2.0
"""Random configurations of the layers against their equations, on a CPU and in the forms for a TPU."""

import random
from typing import NamedTuple

import keras
import numpy as np
import pytest
from fuzzing import computing_in, rounds
from naive_layers import images, lambda_by_equations, naive_halo_attention, randomize

import lambdanet
from lambdanet import backend as K
from lambdanet.backend import device
from lambdanet.backend.tensors import per_axis
from lambdanet.layers.old_arguments import translate
from lambdanet.layers.position_argument import with_position

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*You are using a softmax:UserWarning"),
]
# Torch refuses float64.
TOLERANCES = {"float32": 2e-6} | ({} if K.ENGINE == "torch" else {"float64": 1e-13})
WIDEST = [*TOLERANCES][-1]
# A context that is no larger than one block of queries.
FELL = (236,)


class Case(NamedTuple):
    """A random configuration of the layer, and what it is called with."""

    arguments: dict
    x: np.ndarray
    context: np.ndarray | None
    masks: dict
    training: bool | None
    is_shared: bool


def random_case(seed):
    dice = random.Random(seed)
    rng = np.random.default_rng(seed)
    num_heads = dice.choice([1, 2, 3])
    rank = dice.choice([1, 2, 2, 3])
    side = {1: 9, 2: 5, 3: 3}[rank]

    def sides():
        return [dice.randint(1, side) for _ in range(rank)]

    def one_or_per_axis(values):
        each = [dice.choice(values) for _ in range(rank)]
        return dice.choice([each[0], tuple(each)])

    x = rng.normal(size=[2, *sides(), 3])
    context = rng.normal(size=[2, *sides(), 2]) if dice.random() < 0.3 else None
    position = dice.choice(["relative", "relative", "relative", "unstructured", None])
    arguments = {
        "filters": num_heads * dice.randint(1, 3),
        "num_heads": num_heads,
        "key_dim": dice.randint(1, 4),
        "intra_depth": dice.choice([1, 1, 2]),
        "position": position,
        "content": position is None or dice.random() < 0.7,
        "key_normalization": dice.choice(["softmax", "l2", None]),
        "query_normalization": dice.choice([None, "softmax"]),
        "use_batch_norm": dice.random() < 0.5,
        "use_bias": dice.random() < 0.3,
        "multi_head": dice.random() < 0.5,
        "position_bias": dice.random() < 0.5,
        "implementation": dice.choice(
            ["auto", "auto", "einsum", "query_first", "blocked", "conv"]
        ),
        "strides": one_or_per_axis([1, 1, 2]),
        "pool_size": one_or_per_axis([1, 3]) if dice.random() < 0.3 else 1,
        "scope": one_or_per_axis([1, 3, 5, 9, None]),
    }
    if None in per_axis(arguments["scope"], rank):
        arguments["map_size"] = 2 * side
    else:
        arguments["dilation"] = one_or_per_axis([1, 1, 2])
    if context is None and arguments["pool_size"] == 1 and dice.random() < 0.5:
        arguments["causal"] = dice.choice(["time", *range(1, rank + 1)])
    layer = lambdanet.LambdaLayer(**translate(arguments))
    n = np.prod(layer.compute_output_shape(x.shape)[1:-1])
    m = np.prod((x if context is None else context).shape[1:-1])
    masks = {}
    if arguments["pool_size"] == 1 and dice.random() < 0.5:
        masks["attention_mask"] = rng.random(dice.choice([[n, m], [2, n, m]])) < 0.5
    if dice.random() < 0.5:
        # The first example is nothing but padding in half of the cases.
        shares = [[rng.choice([0, 0.6])], [0.6]]
        masks["padding_mask"] = rng.random([2, m]) < shares
    is_shared = position == "relative" and dice.random() < 0.3
    return Case(arguments, x, context, masks, dice.choice([None, False]), is_shared)


def call_compiled(layer, x, arguments):
    """On JAX compiled at once, which takes a tenth of the time of each operation alone."""
    if K.ENGINE != "jax":
        return layer(x, **arguments)
    import jax

    return jax.jit(lambda x: layer(x, **arguments))(x)


def errors_of(case, dtype):
    """The largest errors of the layer, and of one that shares its table, on a CPU and in a TPU's forms."""
    layer = lambdanet.LambdaLayer(**translate({**case.arguments, "dtype": dtype}))
    calls = [(layer, case.x, {"context": case.context, **case.masks})]
    context_shape = None if case.context is None else case.context.shape
    layer.build_from_config(
        {"input_shape": case.x.shape, "context_shape": context_shape}
    )
    if case.is_shared:
        others = with_position(layer.get_config(), layer.position)
        others |= {"name": None, "strides": 1}
        other = lambdanet.LambdaLayer.from_config(others)
        x = case.x[:, ::-1, ..., :2]
        other.build(x.shape)
        calls.append((other, x, {}))
    for found, _, _ in calls:
        randomize(found)
    for found, x, others in calls:
        expected = lambda_by_equations(found, x, **others)
        for kind in ("CPU", "TPU"):
            with device.assume(kind):
                y = call_compiled(found, x, {**others, "training": case.training})
            assert y.shape == found.compute_output_shape(x.shape) == expected.shape
            error = np.abs(K.convert_to_numpy(y) - expected).max(initial=0)
            yield error / max(1, np.abs(expected).max(initial=0))


@pytest.mark.parametrize("seed", sorted({*range(rounds(40)), *FELL}))
def test_lambda_layers_equal_the_paper_equations(seed):
    """The first cases of the 300 of `make fuzz`, and those that fell."""
    case = random_case(seed)
    for dtype, tolerance in TOLERANCES.items():
        with computing_in(dtype):
            assert np.max([*errors_of(case, dtype)]) < tolerance, (dtype, case)


@pytest.mark.parametrize("seed", range(rounds(6)))
def test_new_weights_hold_in_random_layers(seed):
    """In the form for inference, after a trace."""
    case = random_case(seed)
    layer = lambdanet.LambdaLayer(**translate(case.arguments))
    inputs = keras.Input(case.x.shape[1:])
    model = keras.Model(inputs, layer(inputs))
    fast = lambdanet.for_inference(model)
    x = case.x.astype("float32")
    fast.predict_on_batch(x)
    randomize(layer, seed=seed + 1)
    fast.set_weights(lambdanet.for_inference(model).get_weights())
    expected = lambda_by_equations(layer, x)
    error = np.abs(fast.predict_on_batch(x) - expected).max()
    assert error < 1e-5 * max(1, np.abs(expected).max()), case


@pytest.mark.parametrize("seed", range(rounds(30)))
def test_halo_attention_equals_the_loop(seed):
    dice = random.Random(seed)
    num_heads = dice.choice([1, 2, 3])
    arguments = {
        "filters": 2 * num_heads * dice.randint(1, 2),
        "num_heads": num_heads,
        "block_size": dice.randint(1, 5),
        "halo_size": dice.randint(0, 3),
        "value_ratio": dice.choice([1.0, 0.5, 2.0]),
        "key_dim": dice.choice([None, 2, 4]),
        "mask_padding": dice.choice([False, True]),
        "strides": dice.choice([1, 1, 2, 3]),
        "positions": dice.choice(["concatenated", "added"]),
    }
    if arguments["block_size"] % arguments["strides"] == 0:
        arguments["compact_offsets"] = dice.choice([False, True])
    x = images(2, dice.randint(1, 6), dice.randint(1, 6), 3)
    with computing_in(WIDEST):
        layer = lambdanet.HaloAttention(**arguments, dtype=WIDEST)
        layer.build(x.shape)
        randomize(layer)
        expected = naive_halo_attention(layer, x)
        for kind in ("CPU", "TPU"):
            with device.assume(kind):
                outputs = K.convert_to_numpy(call_compiled(layer, x, {}))
            tolerance = 10 * TOLERANCES[WIDEST]
            np.testing.assert_allclose(outputs, expected, tolerance, tolerance)
