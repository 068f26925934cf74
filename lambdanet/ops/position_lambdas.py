# SPDX-License-Identifier: Apache-2.0
"""The two interactions of the lambda layer, applied to their queries (Bello 2021, equations 1 and 2).

Letters, as in the paper:
  b batch, n query positions, m context positions, k query and key depth, v value depth, u intra-depth,
  h heads (queries per position that share a lambda), r scope of the relative positions.

There is no softmax between the two contractions of the position term,
  y[b, n, h, v] = sum over k and m of q[b, n, h, k] E[n, m, k] V[b, m, v],
so their order is free. Every implementation below gives the same numbers at another cost.
"""

import functools
from collections.abc import Sequence

import tensorflow as tf

from lambdanet import device, tensors
from lambdanet.errors import unknown
from lambdanet.ops import blocking, contractions, convolution, cost_model, pooling, relative_positions
from lambdanet.ops.recompute import in_pieces
from lambdanet.ops.tpu import key_chunks, row_convolution

IMPLEMENTATIONS = ("einsum", "query_first", "blocked", "blocked_query_first", "conv", "depthwise_conv")


def apply_position_lambdas(
    queries: tf.Tensor,
    values: tf.Tensor,
    table: tf.Tensor,
    implementation: str = "auto",
    strides: int = 1,
    dilation: int = 1,
    block: Sequence[int] | None = None,
    pool_size: int = 1,
    content: tf.Tensor | None = None,
) -> tf.Tensor:
    """Applies the position lambdas of every query position to its queries.

    Args:
      queries: [b, *query_size, h, k], with one to three spatial axes of any size, known or not. Query i
        along an axis stands at position `strides * i` of the context.
      values: [b, *context_size, v], or [b, *context_size, v, u].
      table: relative embeddings [r, ..., k], or [r, ..., k, u]: one axis of odd length r per spatial
        axis, for the offsets -(r // 2) ... r // 2 from query to context, in steps of `dilation`.
      implementation: one of `IMPLEMENTATIONS`, or "auto" for the cheapest (see `lambdanet.ops.cost_model`).
      strides: the distance of two queries.
      dilation: the distance of two offsets.
      block: for the blocked forms, the queries per block along each axis; default: by cost.
      pool_size: average the outputs over windows of so many positions along each axis that are `strides`
        apart, with "same" padding. The queries then stand at every position of the context.
      content: a content lambda, [b, k, v], to add to all position lambdas. Matrix products take it as k more
        positions of the context, whose embeddings are the columns of the identity.

    Returns:
      [b, *query_size, h, v]; with a pool, as many positions as there are windows.

    Raises:
      InputError: for an unknown implementation, or a depthwise convolution over three axes.
    """
    if implementation not in ("auto", *IMPLEMENTATIONS):
        raise unknown("implementation", implementation, ("auto", *IMPLEMENTATIONS))
    if values.shape.rank == queries.shape.rank - 1:  # u = 1 without an axis of its own
        values, table = values[..., tf.newaxis], table[..., tf.newaxis]
    if pool_size > 1:
        return _pooled(queries, values, table, implementation, strides, dilation, pool_size, content)
    if implementation in ("conv", "depthwise_conv"):
        convolve = (
            convolution._convolution if implementation == "conv" else convolution._depthwise_convolution
        )
        outputs = convolve(queries, values, table, strides, dilation)
        return outputs if content is None else outputs + tf.einsum("b...hk,bkv->b...hv", queries, content)
    if implementation in ("einsum", "query_first"):
        plan = cost_model.Plan(query_first=implementation == "query_first")
    else:
        order = {"blocked": False, "blocked_query_first": True}.get(implementation)
        problem, kind = cost_model.Problem.of(queries, values, table, strides, dilation), device.kind()
        plan = cost_model.choose(problem, order, kind)
        if block is not None:
            plan = cost_model.Plan(plan.query_first, tuple(block))
        plan = cost_model.bounded(problem, plan, kind)
    return _matrix_products(queries, values, table, strides, dilation, plan, content)


def _matrix_products(queries, values, table, strides, dilation, plan, content):
    """Blocks of queries, each with the window of context in its scope; one table of pairs serves all blocks.

    One block is every query with every context position; with more, cost and memory are linear in n, as for
    a convolution, but the work is matrix products.
    """
    b, *query_size, h, k = tensors.sizes(queries)
    _, *context_size, v, u = tensors.sizes(values)
    rank, scope = len(query_size), tensors.sizes(table)[:-2]
    on_tpu = device.kind() == "TPU"
    keywise_on_tpu = on_tpu and not plan.query_first
    if keywise_on_tpu and strides == dilation == 1:
        if row_convolution.suits(b * v, query_size, context_size, scope):
            return row_convolution.apply_by_rows(queries, values, table, content)
    halos = [r // 2 * dilation for r in scope]
    geometry = zip(query_size, context_size, plan.block or [None] * rank, halos, strict=True)
    axes = [blocking.Axis.of(*axis, strides) for axis in geometry]
    values = tf.reshape(tf.einsum("...vu->...uv", values) if u > 1 else values, [b, *context_size, u * v])
    windows = blocking.windows(values, axes, by_products=on_tpu)
    embeddings = relative_positions.expand_table(
        table,
        [axis.length for axis in axes],
        [axis.window for axis in axes],
        [axis.first for axis in axes],
        strides,
        dilation,
        by_slices=on_tpu,
    )
    windows = tf.reshape(windows, [tensors.sizes(windows)[0], tensors.sizes(embeddings)[2], v])  # u joins m
    if content is not None and not keywise_on_tpu:
        windows, embeddings = contractions.with_content(windows, embeddings, content)
    apply = functools.partial(contractions.apply_embeddings, query_first=plan.query_first)
    queries = blocking.cut(queries, axes)
    if keywise_on_tpu:
        count = tensors.product([axis.count for axis in axes])
        outputs = key_chunks.lambda_first(queries, windows, embeddings, count, content)
    elif plan.size is None:
        outputs = apply(queries, windows, embeddings)
    else:
        outputs = in_pieces(apply, queries, windows, embeddings, plan.size, [*tensors.sizes(queries)[1:3], v])
    return blocking.join(outputs, axes, query_size)


def _pooled(queries, values, table, implementation, strides, dilation, pool_size, content):
    """The mean of the outputs over windows of positions.

    It is linear in the queries of a window, so they and their embeddings can be contracted together, over
    positions of the window and depth, before the context: for an output, not for each position.
    """
    b, *size, h, k = tensors.sizes(queries)
    _, *context_size, v, u = tensors.sizes(values)
    axes = [pooling.Windows.of(n, pool_size, strides) for n in size]
    problem, kind = cost_model.Problem.of(queries, values, table, 1, dilation), device.kind()
    if implementation != "auto" or not cost_model.pools_first(problem, pool_size, strides, kind):
        outputs = apply_position_lambdas(queries, values, table, implementation, 1, dilation, content=content)
        return pooling.mean(outputs, len(size), pool_size, strides)
    counts, places = [axis.count for axis in axes], pool_size ** len(axes)
    first = [-axis.first for axis in axes]
    embeddings = relative_positions.expand_table(
        table, counts, context_size, first, strides, dilation, pool_size, by_slices=kind == "TPU"
    )
    n, m = tensors.product(counts), tensors.product(context_size) * u
    queries = tf.reshape(pooling.gather(queries, axes), [b, n, places, h, k])
    queries = tf.reshape(tf.transpose(queries, [0, 1, 3, 2, 4]), [b, n, h, places * k])
    values = tf.reshape(tf.einsum("...vu->...uv", values), [b, m, v])
    if content is not None:
        values, embeddings = contractions.with_content(values, embeddings, content)
    outputs = contractions.apply_embeddings(queries, values, embeddings)
    return pooling.divided(tf.reshape(outputs, [b, *counts, h, v]), axes)
