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

from lambdanet import blocks, cost, keywise, pooling, position, row_convolution
from lambdanet.errors import InputError, unknown
from lambdanet.pieces import in_pieces
from lambdanet.precision import at_least_float32

IMPLEMENTATIONS = ("einsum", "query_first", "blocked", "blocked_query_first", "conv", "depthwise_conv")
KEY_NORMALIZATIONS = ("softmax", "l2", None)
# exp(40) / exp(-40) is still far from the largest float32.
_LARGEST_KEY = 40.0


def content_lambda(keys: tf.Tensor, values: tf.Tensor, normalization: str | None = "softmax") -> tf.Tensor:
    """Returns the content lambda, the same for every query: keys and values as below -> [b, k, v]."""
    keys = tf.cast(_normalized(at_least_float32(keys), normalization), values.dtype)
    return tf.einsum("bmku,bmvu->bkv", keys, values)


def apply_content_lambda(
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    normalization: str | None = "softmax",
    mask: tf.Tensor | str | None = None,
) -> tf.Tensor:
    """Applies the content lambda: one for all query positions, or one for each where there is a mask.

    Args:
      queries: [b, n, h, k].
      keys: [b, m, k, u], before they are normalised.
      values: [b, m, v, u].
      normalization: of each key channel over the context: one of `KEY_NORMALIZATIONS`.
      mask: None, or 0 and 1 for each query and context position, [n, m], or "causal" for the contexts
        m <= n of n = m positions, which costs sums that are linear in n. Under a mask every query normalises
        over its own context, and a softmax reads keys beyond +-40 as +-40: sums then need no look
        at the rest of the context, on which a causal output must not depend.

    Returns:
      [b, n, h, v].
    """
    if mask is None:
        return tf.einsum("bnhk,bkv->bnhv", queries, content_lambda(keys, values, normalization))
    dtype = values.dtype
    queries, keys, values = map(at_least_float32, (queries, keys, values))
    weights = (
        tf.exp(tf.clip_by_value(keys, -_LARGEST_KEY, _LARGEST_KEY)) if normalization == "softmax" else keys
    )
    apply = _apply_causal if isinstance(mask, str) else _apply_masked
    outputs = [
        apply(queries, weights[..., i], values[..., i], normalization, mask) for i in range(keys.shape[-1])
    ]
    return tf.cast(tf.add_n(outputs), dtype)


def _normalized(keys, normalization):
    """Keys [b, m, k, u] normalised over m."""
    if normalization == "softmax":
        return tf.nn.softmax(keys, axis=1)
    return tf.math.l2_normalize(keys, axis=1) if normalization == "l2" else keys


def _apply_masked(queries, weights, values, normalization, mask):
    mask = tf.cast(mask, queries.dtype)
    norms = _norms(weights, normalization, lambda x: tf.einsum("nm,bmk->bnk", mask, x))
    similarity = tf.einsum("bnhk,bmk->bnhm", tf.math.divide_no_nan(queries, norms), weights)
    return tf.einsum("bnhm,bmv->bnhv", similarity * mask[:, tf.newaxis], values)


def _apply_causal(queries, weights, values, normalization, mask):
    norms = _norms(weights, normalization, lambda x: tf.cumsum(x, axis=1))
    lambdas = tf.cumsum(weights[..., tf.newaxis] * values[:, :, tf.newaxis], axis=1)  # [b, n, k, v]
    return tf.matmul(tf.math.divide_no_nan(queries, norms), lambdas)


def _norms(weights, normalization, total):
    """What the keys of each query's context are divided by, [b, n, 1, k], from a sum over that context."""
    if normalization == "softmax":
        return total(weights)[:, :, tf.newaxis]
    if normalization == "l2":
        return tf.sqrt(total(tf.square(weights)) + 1e-12)[:, :, tf.newaxis]
    return 1.0


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
      implementation: one of `IMPLEMENTATIONS`, or "auto" for the cheapest (see `lambdanet.cost`).
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
        convolve = _convolution if implementation == "conv" else _depthwise_convolution
        outputs = convolve(queries, values, table, strides, dilation)
        return outputs if content is None else outputs + tf.einsum("b...hk,bkv->b...hv", queries, content)
    if implementation in ("einsum", "query_first"):
        plan = cost.Plan(query_first=implementation == "query_first")
    else:
        order = {"blocked": False, "blocked_query_first": True}.get(implementation)
        problem, kind = cost.Problem.of(queries, values, table, strides, dilation), cost.device_kind()
        plan = cost.choose(problem, order, kind)
        if block is not None:
            plan = cost.Plan(plan.query_first, tuple(block))
        plan = cost.bounded(problem, plan, kind)
    return _matrix_products(queries, values, table, strides, dilation, plan, content)


def apply_embeddings(
    queries: tf.Tensor, values: tf.Tensor, embeddings: tf.Tensor, query_first: bool = True
) -> tf.Tensor:
    """Contracts with the embeddings of all pairs (n, m), in either order (Figure 3 of the paper).

    Args:
      queries: [b, n, h, k].
      values: [b, m, v].
      embeddings: [n, k, m]. For u > 1, let m run over positions and intra-depth together.
      query_first: contract k first, n h m (k + v) multiply-adds an example, and not m first,
        n k v (m + h).

    Returns:
      [b, n, h, v].
    """
    b, n, h, k = position.sizes(queries)
    _, m, v = position.sizes(values)
    if query_first and cost.device_kind() == "TPU":  # whose compiler knows best where to transpose
        similarity = tf.einsum("bnhk,nkm->bhnm", queries, embeddings)
        return tf.einsum("bhnm,bmv->bnhv", similarity, values)
    # Matrix products and transpositions are written out, and not left to einsum, so that the backward pass
    # transposes the large intermediate once for both of its gradients.
    if query_first:
        similarity = tf.matmul(tf.reshape(tf.transpose(queries, [1, 0, 2, 3]), [n, b * h, k]), embeddings)
        similarity = tf.transpose(tf.reshape(similarity, [n, b, h, m]), [1, 0, 2, 3])
        outputs = tf.matmul(tf.reshape(similarity, [b, n * h, m]), values)
        return tf.reshape(outputs, [b, n, h, v])
    lambdas = tf.matmul(
        tf.reshape(embeddings, [n * k, m]), tf.reshape(tf.transpose(values, [1, 0, 2]), [m, b * v])
    )
    return tf.matmul(queries, tf.transpose(tf.reshape(lambdas, [n, k, b, v]), [2, 0, 1, 3]))


def with_content(values: tf.Tensor, embeddings: tf.Tensor, content: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Joins a content lambda to the context, as k more positions whose embeddings are those of an identity.

    Args:
      values: [b * blocks, m, v].
      embeddings: [n, p * k, m], for queries of p positions side by side.
      content: [b, k, v].

    Returns:
      values [b * blocks, m + k, v] and embeddings [n, p * k, m + k].
    """
    n, depth, _ = position.sizes(embeddings)
    k = content.shape[1]
    columns = tf.tile(tf.eye(k, dtype=embeddings.dtype), [depth // k, 1])
    embeddings = tf.concat([embeddings, tf.broadcast_to(columns, [n, depth, k])], axis=2)
    num_blocks = position.sizes(values)[0] // position.sizes(content)[0]
    return tf.concat([values, tf.repeat(content, num_blocks, axis=0)], axis=1), embeddings


def _matrix_products(queries, values, table, strides, dilation, plan, content):
    """Blocks of queries, each with the window of context in its scope; one table of pairs serves all blocks.

    One block is every query with every context position; with more, cost and memory are linear in n, as for
    a convolution, but the work is matrix products.
    """
    b, *query_size, h, k = position.sizes(queries)
    _, *context_size, v, u = position.sizes(values)
    rank, scope = len(query_size), position.sizes(table)[:-2]
    on_tpu = cost.device_kind() == "TPU"
    keywise_on_tpu = on_tpu and not plan.query_first
    if keywise_on_tpu and strides == dilation == 1:
        if row_convolution.suits(b * v, query_size, context_size, scope):
            return row_convolution.apply_by_rows(queries, values, table, content)
    halos = [r // 2 * dilation for r in scope]
    geometry = zip(query_size, context_size, plan.block or [None] * rank, halos, strict=True)
    axes = [blocks.Axis.of(*axis, strides) for axis in geometry]
    values = tf.reshape(tf.einsum("...vu->...uv", values) if u > 1 else values, [b, *context_size, u * v])
    windows = blocks.windows(values, axes, by_products=on_tpu)
    embeddings = position.expand_table(
        table,
        [axis.length for axis in axes],
        [axis.window for axis in axes],
        [axis.first for axis in axes],
        strides,
        dilation,
        by_slices=on_tpu,
    )
    windows = tf.reshape(windows, [position.sizes(windows)[0], position.sizes(embeddings)[2], v])  # u joins m
    if content is not None and not keywise_on_tpu:
        windows, embeddings = with_content(windows, embeddings, content)
    apply = functools.partial(apply_embeddings, query_first=plan.query_first)
    queries = blocks.cut(queries, axes)
    if keywise_on_tpu:
        count = position.product([axis.count for axis in axes])
        outputs = keywise.lambda_first(queries, windows, embeddings, count, content)
    elif plan.size is None:
        outputs = apply(queries, windows, embeddings)
    else:
        outputs = in_pieces(
            apply, queries, windows, embeddings, plan.size, [*position.sizes(queries)[1:3], v]
        )
    return blocks.join(outputs, axes, query_size)


def _pooled(queries, values, table, implementation, strides, dilation, pool_size, content):
    """The mean of the outputs over windows of positions.

    It is linear in the queries of a window, so they and their embeddings can be contracted together, over
    positions of the window and depth, before the context: for an output, not for each position.
    """
    b, *size, h, k = position.sizes(queries)
    _, *context_size, v, u = position.sizes(values)
    axes = [pooling.Windows.of(n, pool_size, strides) for n in size]
    problem, kind = cost.Problem.of(queries, values, table, 1, dilation), cost.device_kind()
    if implementation != "auto" or not cost.pools_first(problem, pool_size, strides, kind):
        outputs = apply_position_lambdas(queries, values, table, implementation, 1, dilation, content=content)
        return pooling.mean(outputs, len(size), pool_size, strides)
    counts, places = [axis.count for axis in axes], pool_size ** len(axes)
    first = [-axis.first for axis in axes]
    embeddings = position.expand_table(
        table, counts, context_size, first, strides, dilation, pool_size, by_slices=kind == "TPU"
    )
    n, m = position.product(counts), position.product(context_size) * u
    queries = tf.reshape(pooling.gather(queries, axes), [b, n, places, h, k])
    queries = tf.reshape(tf.transpose(queries, [0, 1, 3, 2, 4]), [b, n, h, places * k])
    values = tf.reshape(tf.einsum("...vu->...uv", values), [b, m, v])
    if content is not None:
        values, embeddings = with_content(values, embeddings, content)
    outputs = apply_embeddings(queries, values, embeddings)
    return pooling.divided(tf.reshape(outputs, [b, *counts, h, v]), axes)


def _convolution(queries, values, table, strides, dilation):
    """The lambda convolution (Figure 5): the table is a kernel that treats v as one more batch axis."""
    b, *query_size, h, k = position.sizes(queries)
    _, *context_size, v, u = position.sizes(values)
    rank = len(query_size)
    images = tf.transpose(values, [0, rank + 1, *range(1, rank + 1), rank + 2])  # [b, v, *spatial, u]
    images = tf.reshape(images, [b * v, *context_size, u])
    kernel = tf.einsum("...ku->...uk", table)
    lambdas = _correlate(tf.nn.convolution, images, kernel, query_size, strides, dilation)
    n = position.product(query_size)
    lambdas = tf.reshape(lambdas, [b, v, n, k])
    outputs = tf.einsum("bnhk,bvnk->bnhv", tf.reshape(queries, [b, n, h, k]), lambdas)
    return tf.reshape(outputs, [b, *query_size, h, v])


def _depthwise_convolution(queries, values, table, strides, dilation):
    """The lambda convolution as a depthwise one with channel multiplier k (Figure 5), on one or two axes."""
    b, *query_size, h, k = position.sizes(queries)
    _, *context_size, v, u = position.sizes(values)
    if len(query_size) > 2:
        raise InputError(f"depthwise_conv takes sequences and images, got {len(query_size)} spatial axes")
    images = tf.reshape(values, [b, *context_size, v * u])
    kernel = tf.einsum("...ku->...uk", table)[..., tf.newaxis, :, :]  # [r, ..., 1, u, k]
    kernel = tf.reshape(tf.repeat(kernel, v, axis=-3), [*table.shape[:-2], v * u, k])
    lambdas = _correlate(_depthwise, images, kernel, query_size, strides, dilation)
    n = position.product(query_size)
    lambdas = tf.reduce_sum(tf.reshape(lambdas, [b, n, v, u, k]), axis=3)
    outputs = tf.einsum("bnhk,bnvk->bnhv", tf.reshape(queries, [b, n, h, k]), lambdas)
    return tf.reshape(outputs, [b, *query_size, h, v])


def _depthwise(images, kernel, strides, padding, dilations):
    """`tf.nn.depthwise_conv2d` on one or two axes."""
    if len(strides) == 1:
        images, kernel = images[:, tf.newaxis], kernel[tf.newaxis]
        strides, dilations = strides * 2, [1, *dilations]
        return tf.nn.depthwise_conv2d(images, kernel, [1, *strides, 1], padding, dilations=dilations)[:, 0]
    return tf.nn.depthwise_conv2d(images, kernel, [1, *strides, 1], padding, dilations=dilations)


def _correlate(convolution, images, kernel, query_size, strides, dilation):
    """Runs a convolution so that output i is centred on position `strides * i`, for every i in query_size."""
    rank = len(query_size)
    for axis, n in enumerate(query_size, start=1):
        halo = kernel.shape[axis - 1] // 2 * dilation
        images = blocks.pad(images, axis, halo, (n - 1) * strides + 1 + halo - position.sizes(images)[axis])
    # TensorFlow has no kernels for strides and dilation together.
    together = strides > 1 and dilation > 1
    outputs = convolution(
        images,
        kernel,
        strides=[1 if together else strides] * rank,
        padding="VALID",
        dilations=[dilation] * rank,
    )
    return outputs[(slice(None), *[slice(None, None, strides)] * rank)] if together else outputs
