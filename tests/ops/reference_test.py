# SPDX-License-Identifier: Apache-2.0
"""The paper's equations as einsums against loops, and the fast forms against them."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from fuzzing import pairwise
from helpers import assert_close, assert_equal_with_gradients
from numpy.random import default_rng
from position_cases import CASES, random_case, reference_term, with_content

from lambdanet.backend import device
from lambdanet.ops import (
    apply_content_lambda,
    apply_position_lambdas,
    causal_content,
    reference,
)
from lambdanet.ops.kernels import IMPLEMENTATIONS
from lambdanet.ops.position_term import Geometry, PositionTerm
from lambdanet.ops.tpu.products import TpuProduct

MASKS = ["none", "triangle", "random", "examples"]


def mask_of(kind, n, m):
    if kind == "none":
        return None
    if kind == "examples":
        return default_rng(9).integers(0, 2, [2, n, m])
    random = default_rng(9).integers(0, 2, [n, m])
    # Query 1 sees nothing.
    return np.tri(n, m) if kind == "triangle" else random * (np.arange(n) != 1)[:, None]


def loop_over_pairs(
    queries, keys, values, table, mask=None, strides=1, dilation=1, axis=None
):
    """Equations 1 and 2, one head of one query and one context position at a time.

    Offsets are numbers of steps of `dilation` from the query, at `strides` times its own number.
    """
    outputs = np.zeros([*queries.shape[:-1], values.shape[-2]])
    *scope, _, _ = table.shape
    places = list(np.ndindex(*values.shape[1:-2]))
    for example, *n, head in np.ndindex(*queries.shape[:-1]):
        number = np.ravel_multi_index(n, queries.shape[1:-2])
        seen = []
        for m, place in enumerate(places):
            later = axis is not None and place[axis] > n[axis] * strides
            of_example = mask if np.ndim(mask) < 3 else mask[example]
            if not later and (mask is None or of_example[number][m]):
                seen.append(place)
        total = sum(np.exp(keys[(example, *m)]) for m in seen)
        for m in seen:
            weight = np.exp(keys[(example, *m)]) / total
            offset = []
            for i, (r, to, start) in enumerate(zip(scope, m, n, strict=True)):
                middle = r - 1 if i == axis else r // 2
                offset.append((to - start * strides) / dilation + middle)
            if all(o in range(r) for o, r in zip(offset, scope, strict=True)):
                weight = weight + table[tuple(map(int, offset))]
            query = queries[(example, *n, head)]
            outputs[(example, *n, head)] += query @ weight @ values[(example, *m)].T
    return outputs


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("size", "scope", "options"),
    [
        ([4, 3], [3, 5], {}),
        ([4, 3], [3, 3], {"dilation": 2}),
        ([5, 4], [3, 5], {"strides": 2}),
        ([2, 3, 2], [3, 1, 3], {}),
        ([7], [3], {"axis": 0}),
        ([3, 4], [5, 2], {"axis": 1, "strides": 2, "dilation": 2}),
    ],
)
def test_reference_equals_loops_over_pairs(size, scope, options, mask):
    """A causal table ends with the offset 0."""
    query_size = [-(-side // options.get("strides", 1)) for side in size]
    queries, values, table = random_case(0, query_size, scope, u=2, v=3, context=size)
    keys = default_rng(1).normal(size=[2, *size, 3, 2])
    n, m = np.prod(query_size), np.prod(size)
    arrays = queries, keys, values, table
    options["mask"] = mask_of(mask, n, m)
    outputs = reference_term(
        *map(tf.constant, (queries, values, table)),
        keys=tf.reshape(keys, [2, m, 3, 2]),
        **options,
    )
    assert_close(outputs, loop_over_pairs(*arrays, **options), 1e-10)


FORMS = [(name, None) for name in ("auto", *IMPLEMENTATIONS)]
FORMS += [
    (name, block) for name in ("blocked", "blocked_query_first") for block in (1, 2, 9)
]
# RUNTIME_INT8 is the same device as RUNTIME.
KINDS = [kind for kind in device.DEVICES if kind != "RUNTIME_INT8"]


def case_of(name):
    arguments = dict(CASES[name])
    geometry = {
        name: arguments.pop(name)
        for name in ("strides", "dilation")
        if name in arguments
    }
    return [tf.constant(x) for x in (*random_case(0, **arguments), CONTENT)], geometry


CONTENT = default_rng(1).normal(size=[2, 3, 4])


@pytest.mark.parametrize(
    ("form", "case", "kind"),
    [
        (form, case, kind)
        for form, case, kind in pairwise(FORMS, list(CASES), KINDS)
        # No kernel, or none for its gradient.
        if len(CASES[case]["spatial"]) < 3 or "conv" not in form[0]
    ],
)
def test_every_form_equals_the_reference(form, case, kind):
    """Outputs and gradients, with a content lambda, in blocks of any size, on every kind of device."""
    implementation, block = form
    inputs, geometry = case_of(case)

    def compute(*inputs):
        options = {
            "block": block and [block] * (inputs[0].ndim - 3),
            "content": inputs[3],
            **geometry,
        }
        with device.assume(kind):
            return apply_position_lambdas(*inputs[:3], implementation, **options)

    assert_equal_with_gradients(
        compute, partial(with_content, **geometry), inputs, 1e-9
    )


@pytest.mark.parametrize(
    ("case", "query_first", "block"),
    pairwise(list(CASES), [False, True], [None, 2]),
)
def test_products_on_a_tpu_equal_the_reference(case, query_first, block):
    inputs, geometry = case_of(case)

    def compute(queries, values, table, content):
        if values.ndim == queries.ndim - 1:
            values, table = values[..., None], table[..., None]
        form = TpuProduct(query_first, block and (block,) * (queries.ndim - 3))
        term = PositionTerm(queries, values, table, Geometry(**geometry), content)
        return form.apply(term, device.DEVICES["TPU"])

    assert_equal_with_gradients(
        compute, partial(with_content, **geometry), inputs, 1e-9
    )


@pytest.mark.parametrize("has_padding", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("u", [1, 2])
def test_content_lambda_equals_the_reference(u, mask, has_padding):
    rng = default_rng(4)
    queries, keys, values = (
        tf.constant(rng.normal(size=size))
        for size in ([2, 4, 2, 3], [2, 4, 3, u], [2, 4, 5, u])
    )
    given = mask_of(mask, 4, 4)
    padding_mask = np.array([[1, 1, 0, 0], [0, 1, 1, 1]], bool) if has_padding else None
    expected = reference.apply_lambdas(
        queries, keys, values, tf.zeros([4, 4, 3, u], tf.float64), given, padding_mask
    )
    if has_padding:  # as a layer gives them
        values *= padding_mask[..., np.newaxis, np.newaxis]
    inputs = queries, keys, values
    outputs = apply_content_lambda(*inputs, mask=given, padding_mask=padding_mask)
    assert_close(outputs, expected, 1e-10)
    if mask == "triangle":
        outputs, _ = causal_content.apply(*inputs, padding_mask=padding_mask)
        assert_close(outputs, expected, 1e-10)


@pytest.mark.parametrize("kind", ["triangle", "random"])
@pytest.mark.parametrize("known", [False, True])
def test_masked_softmax_is_exact_for_keys_of_any_size(kind, known):
    """In float32, beside float64: with a maximum over the whole context, small keys would vanish."""
    rng = default_rng(7)
    n = 33
    queries = rng.normal(size=[2, n, 2, 3])
    keys = rng.normal(size=[2, n, 3, 1]) * 30 + np.linspace(-500, 500, n)[:, None, None]
    values = rng.normal(size=[2, n, 4, 1])
    mask = mask_of(kind, n, n)
    if kind == "triangle":

        def apply(*inputs):
            return causal_content.apply(*inputs)[0]

    else:
        apply = partial(apply_content_lambda, mask=mask)
    no_positions = np.zeros([n, n, 3, 1])
    inputs = [tf.constant(x) for x in (queries, keys, values)]
    call = tf.function(
        apply,
        input_signature=[
            tf.TensorSpec([2, n if known else None, *x.shape[2:]]) for x in inputs
        ],
        autograph=False,
    )
    assert_equal_with_gradients(
        lambda *inputs: tf.cast(
            call(*(tf.cast(x, tf.float32) for x in inputs)), tf.float64
        ),
        lambda *inputs: reference.apply_lambdas(*inputs, no_positions, mask),
        inputs,
        2e-5,
    )
