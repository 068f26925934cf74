# SPDX-License-Identifier: Apache-2.0
"""Random configurations of the layers against their equations, on a CPU and in the forms for a TPU."""

import hypothesis
import numpy as np
import pytest
from fuzzing import rounds
from hypothesis import strategies
from naive_layers import images, lambda_by_equations, naive_halo_attention, randomize

import lambdanet
from lambdanet.backend import device


@strategies.composite
def lambda_layers(draw):
    """A layer's arguments, the shapes of its input and context, and a kind of mask."""
    num_heads = draw(strategies.sampled_from([1, 2, 3]))
    rank = draw(strategies.sampled_from([1, 2, 2, 3]))
    side = strategies.integers(1, {1: 9, 2: 5, 3: 3}[rank])
    arguments = {
        "filters": num_heads * draw(strategies.integers(1, 3)),
        "num_heads": num_heads,
        "key_dim": draw(strategies.integers(1, 4)),
        "intra_depth": draw(strategies.sampled_from([1, 1, 2])),
        "position": draw(
            strategies.sampled_from(["relative", "relative", "unstructured", None])
        ),
        "key_normalization": draw(strategies.sampled_from(["softmax", "l2", None])),
        "query_normalization": draw(strategies.sampled_from([None, "softmax"])),
        "use_batch_norm": draw(strategies.booleans()),
        "multi_head": draw(strategies.booleans()),
        "position_bias": draw(strategies.booleans()),
        "implementation": draw(
            strategies.sampled_from(
                ["auto", "einsum", "query_first", "blocked", "conv"]
            )
        ),
    }
    arguments["content"] = arguments["position"] is None or draw(strategies.booleans())
    spatial = draw(strategies.lists(side, min_size=rank, max_size=rank))
    context = draw(
        strategies.none() | strategies.lists(side, min_size=rank, max_size=rank)
    )
    if context is None:
        causal = strategies.sampled_from(
            [True] if rank == 1 else ["time", *range(1, rank + 1)]
        )
        arguments["causal"] = draw(strategies.just(False) | causal)
    mask = draw(strategies.sampled_from([None, None, "random", "examples"]))
    has_padding = draw(strategies.booleans())

    def one_or_per_axis(values):
        one = strategies.sampled_from(values)
        return draw(one | strategies.tuples(*[one] * rank))

    arguments["strides"] = one_or_per_axis([1, 1, 2])
    scope = arguments["scope"] = one_or_per_axis([1, 3, 5, 9, None])
    if scope is None or (isinstance(scope, tuple) and None in scope):
        arguments["map_size"] = 2 * max([*spatial, *(context or [])])
    else:
        arguments["dilation"] = one_or_per_axis([1, 1, 2])
    return arguments, spatial, context, mask, has_padding


@pytest.mark.slow
@hypothesis.given(lambda_layers())
@hypothesis.settings(max_examples=rounds(80), deadline=None, derandomize=True)
def test_lambda_layers_equal_the_paper_equations(configuration):
    arguments, spatial, context_size, mask, has_padding = configuration
    rng = np.random.default_rng(0)
    x = rng.normal(size=[2, *spatial, 3])
    context = None if context_size is None else rng.normal(size=[2, *context_size, 2])
    layer = lambdanet.LambdaLayer(**arguments, dtype="float64")
    n = np.prod(layer.compute_output_shape([2, *spatial, 3])[1:-1])
    m = np.prod(context_size or spatial)
    if mask == "random":
        mask = rng.integers(0, 2, [n, m])
    elif mask == "examples":
        mask = rng.integers(0, 2, [2, n, m])
    masks = {"mask": mask}
    if has_padding:
        masks["padding_mask"] = rng.integers(0, 2, [2, m]).astype(bool)
    layer(x, context=context, **masks)
    randomize(layer)
    expected = lambda_by_equations(layer, x, context, **masks)
    for kind in ("CPU", "TPU"):
        with device.assume(kind):
            outputs = layer(x, context=context, **masks)
        np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-7)


@strategies.composite
def halo_attentions(draw):
    num_heads = draw(strategies.sampled_from([1, 2, 3]))
    arguments = {
        "filters": 2 * num_heads * draw(strategies.integers(1, 2)),
        "num_heads": num_heads,
        "block_size": draw(strategies.integers(1, 5)),
        "halo_size": draw(strategies.integers(0, 3)),
        "value_ratio": draw(strategies.sampled_from([1.0, 0.5, 2.0])),
        "key_dim": draw(strategies.sampled_from([None, 2, 4])),
        "mask_padding": draw(strategies.booleans()),
        "strides": draw(strategies.sampled_from([1, 1, 2, 3])),
        "positions": draw(strategies.sampled_from(["concatenated", "added"])),
    }
    if arguments["block_size"] % arguments["strides"] == 0:
        arguments["compact_offsets"] = draw(strategies.booleans())
    return arguments, draw(
        strategies.tuples(strategies.integers(1, 6), strategies.integers(1, 6))
    )


@pytest.mark.slow
@hypothesis.given(halo_attentions())
@hypothesis.settings(max_examples=rounds(30), deadline=None, derandomize=True)
def test_halo_attention_equals_the_loop(configuration):
    arguments, size = configuration
    x = images(2, *size, 3)
    layer = lambdanet.HaloAttention(**arguments, dtype="float64")
    layer(x)
    randomize(layer)
    expected = naive_halo_attention(layer, x)
    for kind in ("CPU", "TPU"):
        with device.assume(kind):
            np.testing.assert_allclose(layer(x), expected, rtol=1e-6, atol=1e-8)
