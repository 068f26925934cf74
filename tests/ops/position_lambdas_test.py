# SPDX-License-Identifier: Apache-2.0
"""Every implementation against a naive loop over queries, offsets, heads and depths."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
from position_cases import CASES, naive_position_lambdas, random_case

from lambdanet.backend import device
from lambdanet.errors import InputError
from lambdanet.ops import (
    content_lambdas,
    kernels,
    pooling,
    position_lambdas,
    products,
    relative_positions,
)
from lambdanet.ops.position_term import Geometry, PositionTerm, Sizes
from lambdanet.ops.products import Product, in_chunks
from lambdanet.ops.relative_positions import PairAxis
from lambdanet.ops.tpu import pooled_queries
from lambdanet.ops.tpu.products import TpuProduct
from lambdanet.ops.tpu.row_convolution import RowConvolution


@pytest.mark.parametrize("implementation", [*position_lambdas.IMPLEMENTATIONS, "auto"])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_naive_loop(case, implementation):
    geometry = {name: CASES[case][name] for name in ("strides", "dilation") if name in CASES[case]}
    arguments = random_case(0, **{name: value for name, value in CASES[case].items() if name not in geometry})
    if implementation == "depthwise_conv" and case == "video":
        with pytest.raises(InputError, match="axes of depthwise_conv must be one or two, got 3"):
            position_lambdas.apply_position_lambdas(*map(tf.constant, arguments), implementation)
        return
    inputs = [tf.constant(x, tf.float32) for x in arguments]
    outputs = position_lambdas.apply_position_lambdas(*inputs, implementation, **geometry)
    np.testing.assert_allclose(outputs, naive_position_lambdas(*arguments, **geometry), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", [name for name in CASES if "strides" not in name])
@pytest.mark.parametrize("pools_first", [False, True])
@pytest.mark.parametrize(("pool_size", "strides"), [(3, 2), (2, 2), (4, 3)])
def test_pool_equals_average_pool(case, pools_first, pool_size, strides, monkeypatch):
    """Whether the context or the mean over windows is first; also the gradients."""
    if pools_first:
        row = dataclasses.replace(kernels.KERNELS["CPU"], position_lambdas=(pooled_queries.candidates,))
        monkeypatch.setitem(kernels.KERNELS, "CPU", row)
    arguments = dict(CASES[case])
    dilation = arguments.pop("dilation", 1)
    inputs = [tf.Variable(x) for x in random_case(6, **arguments)]
    with tf.GradientTape(persistent=True) as tape:
        expected = position_lambdas.apply_position_lambdas(*inputs, "query_first", dilation=dilation)
        for axis, n in enumerate(arguments["spatial"], start=1):
            rows = tf.eye(n, dtype=tf.float64)[tf.newaxis]
            means = tf.nn.avg_pool1d(rows, pool_size, strides, "SAME")[0]
            expected = tf.experimental.numpy.moveaxis(tf.tensordot(means, expected, [[1], [axis]]), 0, axis)
        outputs = position_lambdas.apply_position_lambdas(
            *inputs, strides=strides, dilation=dilation, pool_size=pool_size
        )
        losses = [tf.reduce_sum(tf.sin(x)) for x in (outputs, expected)]
    np.testing.assert_allclose(outputs, expected, atol=1e-10)
    for got, gradient in zip(*(tape.gradient(loss, inputs) for loss in losses), strict=True):
        np.testing.assert_allclose(got, gradient, atol=1e-10)


PRODUCTS = [Product(query_first, block) for query_first in (False, True) for block in (None, 2)]


def outputs_and_gradients(term, form):
    inputs = [x for x in (term.queries, term.values, term.table, term.content) if x is not None]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = form.apply(term, device.DEVICES["TPU"])
        loss = tf.reduce_sum(tf.sin(outputs))
    return outputs, *tape.gradient(loss, inputs)


@pytest.mark.parametrize("form", PRODUCTS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_products_on_a_tpu_equal_the_naive_loop(case, form):
    """Also the gradients, which equal those of the generic form."""
    arguments = dict(CASES[case])
    geometry = Geometry(arguments.pop("strides", 1), arguments.pop("dilation", 1))
    inputs = random_case(0, **arguments)
    naive = naive_position_lambdas(*inputs, geometry.strides, geometry.dilation)
    if "u" not in arguments:
        inputs = [inputs[0], inputs[1][..., None], inputs[2][..., None]]
    term = PositionTerm(*map(tf.constant, inputs), geometry)
    form = dataclasses.replace(form, block=form.block and (form.block,) * len(arguments["spatial"]))
    expected = outputs_and_gradients(term, form)
    np.testing.assert_allclose(expected[0], naive, atol=1e-10)
    for a, b in zip(
        outputs_and_gradients(term, TpuProduct(form.query_first, form.block)), expected, strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-10)


@pytest.mark.parametrize("implementation", position_lambdas.IMPLEMENTATIONS)
def test_a_named_form_is_the_same_on_every_device(implementation):
    """The graph of a form that is asked for by name has the same operations for a CPU and for a TPU."""
    specs = [tf.TensorSpec(shape) for shape in ([8, 28, 28, 2, 4], [8, 28, 28, 128], [7, 7, 4])]
    operations = []
    for kind in ("CPU", "TPU"):
        traced = tf.function(
            lambda *x: position_lambdas.apply_position_lambdas(*x, implementation, block=[14, 14]),
            autograph=False,
        )
        with device.assume(kind):
            graph = traced.get_concrete_function(*specs).graph
        operations.append([op.type for op in graph.get_operations()])
    assert operations[0] == operations[1]


@pytest.mark.parametrize("kind", ["CPU", "TPU"])
@pytest.mark.parametrize("pool_size", [1, 3])
@pytest.mark.parametrize("implementation", [*position_lambdas.IMPLEMENTATIONS, "auto"])
def test_content_adds_one_lambda_to_all(implementation, pool_size, kind):
    """Also to those of several blocks, with an intra-depth, and to means over windows."""
    arguments = [tf.constant(x) for x in random_case(0, [9, 6], [5, 3], u=2)]
    queries, values, _ = arguments
    content = tf.constant(np.random.default_rng(1).normal(size=[2, queries.shape[-1], values.shape[-2]]))
    options = {"implementation": implementation, "strides": 2, "pool_size": pool_size}
    if pool_size == 1:
        arguments[0] = queries = queries[:, :5, :3]
    expected = position_lambdas.apply_position_lambdas(*arguments, **options)
    if pool_size > 1:
        queries = pooling.mean(queries, 2, pool_size, 2)
    expected += tf.einsum("byxhk,bkv->byxhv", queries, content)
    blocked = {"block": [2, 3]} if implementation.startswith("blocked") and pool_size == 1 else {}
    with device.assume(kind):
        outputs = position_lambdas.apply_position_lambdas(*arguments, **options, **blocked, content=content)
    np.testing.assert_allclose(outputs, expected, atol=1e-10)


def test_auto_convolves_rows_on_a_tpu():
    """Only "auto": the blocked form by name is in blocks there too."""
    specs = [tf.TensorSpec(shape) for shape in ([32, 56, 56, 4, 16], [32, 56, 56, 32], [23, 23, 16])]
    traced = tf.function(position_lambdas.apply_position_lambdas, autograph=False)
    for implementation in ("auto", "blocked", "einsum"):
        with device.assume("TPU"):
            graph = traced.get_concrete_function(*specs, implementation).graph
        assert ("Conv2D" in {op.type for op in graph.get_operations()}) == (implementation == "auto")


@pytest.mark.parametrize(
    ("images", "query_size", "scope"),
    [
        (2048, [None, 50], [5, 5]),
        (2048, [56], [5]),
        (2048, [14, 14], [23, 23]),
        (128, [64, 64], [23, 23]),
    ],
)
def test_row_convolution_is_not_applicable(images, query_size, scope):
    @tf.function
    def applicable(queries, values):
        term = PositionTerm(queries, values, tf.zeros([*scope, 3, 1]))
        tpu = kernels.KERNELS["TPU"]
        form = position_lambdas.choose_form(term.sizes, "auto", tpu, by_xla=True)
        assert not isinstance(form, RowConvolution)

    shapes = [[images // 4, *query_size, 2, 3], [images // 4, *query_size, 4, 1]]
    applicable.get_concrete_function(*map(tf.TensorSpec, shapes))


@pytest.mark.parametrize("implementation", ["blocked", "blocked_query_first"])
@pytest.mark.parametrize("block", [[1, 1], [2, 3], [4, 2], [3, 9]])
def test_blocks_of_any_size(block, implementation):
    """Also those that leave a remainder, and those that cover one axis or both."""
    arguments = random_case(0, [5, 8], [5, 3], u=2)
    outputs = position_lambdas.apply_position_lambdas(
        *map(tf.constant, arguments), implementation, block=block
    )
    np.testing.assert_allclose(outputs, naive_position_lambdas(*arguments), atol=1e-10)


@pytest.mark.parametrize("scope", [[5, 3], [11, 1]])
@pytest.mark.parametrize(
    ("implementation", "block"),
    [(name, None) for name in position_lambdas.IMPLEMENTATIONS]
    + [("blocked", [2, 3]), ("blocked_query_first", [3, 2])],
)
def test_gradients_equal_the_naive_contraction(implementation, block, scope):
    """The naive contraction selects the embedding of each pair of positions by ones and zeros."""
    queries, values, table = random_case(1, [5, 4], scope, u=2)
    uses = np.zeros([5, 4, 5, 4, *scope])
    for yn, xn, ym, xm in itertools.product(range(5), range(4), range(5), range(4)):
        row, column = ym - yn + scope[0] // 2, xm - xn + scope[1] // 2
        if 0 <= row < scope[0] and 0 <= column < scope[1]:
            uses[yn, xn, ym, xm, row, column] = 1
    inputs = [tf.Variable(x) for x in (queries, values, table)]
    weights = np.random.default_rng(2).normal(size=[2, 5, 4, 2, 4])
    with tf.GradientTape(persistent=True) as tape:
        naive = tf.einsum("yxpqrs,rsku,byxhk,bpqvu->byxhv", uses, inputs[2], inputs[0], inputs[1])
        naive_loss = tf.reduce_sum(naive * weights)
        outputs = position_lambdas.apply_position_lambdas(
            *map(tf.convert_to_tensor, inputs), implementation, block=block
        )
        loss = tf.reduce_sum(outputs * weights)
    np.testing.assert_allclose(outputs, naive, atol=1e-10)
    for gradient, expected in zip(
        tape.gradient(loss, inputs), tape.gradient(naive_loss, inputs), strict=True
    ):
        np.testing.assert_allclose(gradient, expected, atol=1e-10)


@pytest.mark.parametrize("implementation", position_lambdas.IMPLEMENTATIONS)
def test_unknown_batch_height_and_width(implementation):
    """One traced function serves every size, also maps smaller than the scope."""
    traced = tf.function(
        lambda q, v, t: position_lambdas.apply_position_lambdas(q, v, t, implementation),
        input_signature=[
            tf.TensorSpec([None, None, None, 2, 3]),
            tf.TensorSpec([None, None, None, 4]),
            tf.TensorSpec([5, 5, 3]),
        ],
        autograph=False,
    )
    for spatial in ([2, 2], [3, 7], [8, 4]):
        inputs = [tf.constant(x, tf.float32) for x in random_case(3, spatial, [5, 5])]
        expected = naive_position_lambdas(*[x.numpy() for x in inputs])
        np.testing.assert_allclose(traced(*inputs), expected, atol=1e-5, rtol=1e-5)


MASKS = {
    "no mask": None,
    "causal": "causal",
    "mask": np.array([[1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]]),
}


@pytest.mark.parametrize("normalization", content_lambdas.KEY_NORMALIZATIONS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("u", [1, 2])
def test_content_lambda_equals_the_naive_loop(u, mask, normalization):
    """Every query normalizes the keys over its own context; one that sees nothing gets zero."""
    rng = np.random.default_rng(4)
    queries, keys, values = (rng.normal(size=size) for size in ([2, 4, 2, 3], [2, 4, 3, u], [2, 4, 5, u]))
    norm = {
        "softmax": lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
        "l2": lambda x: x / np.sqrt((x**2).sum(1, keepdims=True)),
        None: lambda x: x,
    }[normalization]
    allowed = {"no mask": np.ones([4, 4]), "causal": np.tril(np.ones([4, 4]))}.get(mask, MASKS[mask])
    expected = np.zeros([2, 4, 2, 5])
    for n in range(4):
        context = np.flatnonzero(allowed[n])
        if context.size:
            content_lambda = np.einsum("bmku,bmvu->bkv", norm(keys[:, context]), values[:, context])
            expected[:, n] = np.einsum("bhk,bkv->bhv", queries[:, n], content_lambda)
    outputs = content_lambdas.apply_content_lambda(
        *map(tf.constant, (queries, keys, values)), normalization, MASKS[mask]
    )
    np.testing.assert_allclose(outputs, expected, atol=1e-6 if normalization == "l2" else 1e-10)


def test_content_lambda_ignores_the_order_of_the_context():
    rng = np.random.default_rng(5)
    queries, keys, values = (rng.normal(size=size) for size in ([2, 4, 2, 3], [2, 6, 3, 1], [2, 6, 5, 1]))
    order = rng.permutation(6)
    outputs = content_lambdas.apply_content_lambda(*map(tf.constant, (queries, keys, values)))
    shuffled = content_lambdas.apply_content_lambda(
        *map(tf.constant, (queries, keys[:, order], values[:, order]))
    )
    np.testing.assert_allclose(outputs, shuffled, atol=1e-10)


def test_masked_content_stays_finite_for_keys_far_apart():
    """A query whose context lacks the largest key must not divide zero by zero."""
    keys = tf.constant([[[[100.0]], [[-100.0]], [[0.0]]]])
    mask = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 1]])
    outputs = content_lambdas.apply_content_lambda(
        tf.ones([1, 3, 1, 1]), keys, tf.constant([[[[1.0]], [[2.0]], [[3.0]]]]), mask=mask
    )
    np.testing.assert_allclose(tf.squeeze(outputs), [1, 2, 1], rtol=1e-5)


def test_unknown_implementation_names_the_nearest():
    inputs = random_case(5, [2, 2], [3, 3])
    with pytest.raises(InputError, match="'queryfirst'.*query_first"):
        position_lambdas.apply_position_lambdas(*map(tf.constant, inputs), "queryfirst")


@pytest.mark.parametrize("size", [1, 2, 5])
def test_chunks_give_the_same_values_and_gradients(size):
    rng = np.random.default_rng(7)
    inputs = [tf.Variable(rng.normal(size=shape)) for shape in ([5, 4, 2, 3], [5, 6, 2], [4, 3, 6])]
    weights = rng.normal(size=[5, 4, 2, 2])

    @tf.function(autograph=False)
    def value_and_gradients(function):
        with tf.GradientTape() as tape:
            outputs = function(*[tf.convert_to_tensor(x) for x in inputs])
            loss = tf.reduce_sum(outputs * weights)
        return outputs, tape.gradient(loss, inputs)

    expected = value_and_gradients(products.query_first)
    got = value_and_gradients(lambda *x: in_chunks(products.query_first, *x, size))
    for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_chunks_compile_with_an_unknown_batch():
    """On a map with so many heads that the blocked form is computed in chunks."""
    rng = np.random.default_rng(8)
    queries, values, table = (
        tf.constant(rng.normal(size=shape), tf.float32)
        for shape in ([4, 32, 32, 8, 2], [4, 32, 32, 2], [9, 9, 2])
    )

    def gradients(queries, values, table, *form):
        with tf.GradientTape() as tape:
            tape.watch([queries, values, table])
            outputs = position_lambdas.apply_position_lambdas(queries, values, table, *form)
        return outputs, tape.gradient(outputs, [queries, values, table])

    sizes = Sizes(None, (32, 32), (32, 32), (9, 9), 8, 2, 2)
    assert Product(True, (16, 16)).chunk(sizes, device.DEVICES["CPU"])
    expected = gradients(queries, values, table, "query_first")
    unknown = [tf.TensorSpec([None, *x.shape[1:]]) for x in (queries, values)] + [tf.TensorSpec(table.shape)]
    for jit_compile in (False, True):
        traced = tf.function(
            lambda *x: gradients(*x, "blocked_query_first", 1, 1, [16, 16]),
            input_signature=unknown,
            jit_compile=jit_compile,
            autograph=False,
        )
        for a, b in zip(
            tf.nest.flatten(traced(queries, values, table)), tf.nest.flatten(expected), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("implementation", ["einsum", "query_first", "blocked"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_sums_in_float32(dtype, implementation):
    """4096 ones add up to 4096, where sums in the dtype itself would stop at 2048 or 256.

    The table of a global scope over so long a sequence is read without one-hot rows, which would take 500 GB.
    """
    ones = [tf.ones(shape, dtype) for shape in ([1, 4096, 1, 1], [1, 4096, 1], [8191, 1])]
    outputs = position_lambdas.apply_position_lambdas(*ones, implementation, block=[1024])
    np.testing.assert_array_equal(tf.cast(outputs, tf.float32), tf.fill([1, 4096, 1, 1], 4096.0))
    content = content_lambdas.apply_content_lambda(ones[0], ones[0], ones[0], normalization=None)
    np.testing.assert_array_equal(tf.cast(content, tf.float32), tf.fill([1, 4096, 1, 1], 4096.0))


def test_both_ways_of_reading_a_table_agree(monkeypatch):
    table = tf.random.stateless_normal([7, 5, 3, 2], [0, 0])
    axes = [PairAxis(4, 5, strides=2, dilation=2), PairAxis(6, 9, strides=2, dilation=2)]

    def value_and_gradient():
        with tf.GradientTape() as tape:
            tape.watch(table)
            embeddings = relative_positions.expand_table(table, axes)
            loss = tf.reduce_sum(tf.sin(embeddings))
        return embeddings, tape.gradient(loss, table)

    by_product = value_and_gradient()
    monkeypatch.setattr(relative_positions, "_LARGEST_ONE_HOT", 0)
    by_gather = value_and_gradient()
    for a, b in zip(by_product, by_gather, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
