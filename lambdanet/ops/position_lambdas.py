# SPDX-License-Identifier: Apache-2.0
"""The position lambdas applied to their queries (Bello 2021, equations 1 and 2).

Letters are those of `lambdanet.ops.reference`. There is no softmax between the two contractions in

    y[b, n, h, v] = sum over k and m of q[b, n, h, k] E[n, m, k] V[b, m, v],

so their order is free. Every implementation gives the same numbers as the reference, at another cost.
"""

from collections.abc import Sequence

from lambdanet import backend as K
from lambdanet.backend import tensors
from lambdanet.errors import check_known
from lambdanet.ops import blocking, convolution, cost_model, kernels, pooling
from lambdanet.ops.contractions import Operands
from lambdanet.ops.position_term import Geometry, PositionTerm
from lambdanet.ops.relative_positions import PairAxis

IMPLEMENTATIONS = ("einsum", "query_first", "blocked", "blocked_query_first", "conv", "depthwise_conv")

_CONVOLUTIONS = {"conv": convolution.convolve, "depthwise_conv": convolution.convolve_depthwise}
_WHOLE_MAP = {"einsum": cost_model.Plan(query_first=False), "query_first": cost_model.Plan(query_first=True)}
_QUERY_FIRST = {"blocked": False, "blocked_query_first": True}


def apply_position_lambdas(
    queries: K.Tensor,
    values: K.Tensor,
    table: K.Tensor,
    implementation: str = "auto",
    strides: int = 1,
    dilation: int = 1,
    block: Sequence[int] | None = None,
    pool_size: int = 1,
    content: K.Tensor | None = None,
) -> K.Tensor:
    """Applies the position lambdas of every query position to its queries.

    Args:
      queries: [b, *query_size, h, k], with one to three spatial axes of any size, known or not. Query i
        along an axis is at position `strides * i` of the context.
      values: [b, *context_size, v], or [b, *context_size, v, u].
      table: relative embeddings [r, ..., k], or [r, ..., k, u]: one axis of odd length r per spatial
        axis, for the offsets -(r // 2) ... r // 2 from query to context, in steps of `dilation`.
      implementation: one of `IMPLEMENTATIONS`, which is then the form on every device, or "auto" for the
        one that is fastest on this process's device (see `lambdanet.ops.cost_model` and
        `lambdanet.ops.kernels`).
      strides: the distance between queries.
      dilation: the distance between offsets.
      block: for the blocked forms, the queries per block along each axis; default: by cost.
      pool_size: the side of the windows over which outputs are averaged, `strides` apart, with "same"
        padding. With more than 1, there must be a query for every position of the context.
      content: a content lambda, [b, k, v], to add to all position lambdas. Matrix products take it as k more
        positions of the context, whose embeddings are the columns of the identity.

    Returns:
      [b, *query_size, h, v]; with a pool, one position per window.

    Raises:
      InputError: for an unknown implementation, or a depthwise convolution over three axes.
    """
    if len(values.shape) == len(queries.shape) - 1:  # u = 1 without an axis of its own
        values, table = values[..., K.newaxis], table[..., K.newaxis]
    term = PositionTerm(queries, values, table, Geometry(strides, dilation, pool_size), content)
    return apply_term(term, implementation, block)


def apply_term(
    term: PositionTerm, implementation: str = "auto", block: Sequence[int] | None = None
) -> K.Tensor:
    """Applies position lambdas; `implementation` and `block` as in `apply_position_lambdas`."""
    check_known("implementation", implementation, ("auto", *IMPLEMENTATIONS))
    kernel = kernels.current(implementation)
    if form := kernel.map_form(term):
        return form.apply(term)
    strides, pool_size = term.geometry.strides, term.geometry.pool_size
    if pool_size == 1:
        return _apply(term, implementation, block, kernel)
    if implementation == "auto":
        problem = cost_model.ProblemSize.of(term)
        if cost_model.should_pool_queries(problem, pool_size, strides, kernel.device):
            return _apply_pooled(term, kernel)
    outputs = apply_term(term.without_pool(), implementation, block)
    return pooling.mean(outputs, len(term.scope), pool_size, strides)


def apply_embeddings(
    queries: K.Tensor,
    values: K.Tensor,
    embeddings: K.Tensor,
    mask: K.Tensor | None = None,
    content: K.Tensor | None = None,
) -> K.Tensor:
    """Applies position lambdas whose embeddings are given for all pairs of positions.

    Args:
      queries: [b, *query_size, h, k].
      values: [b, *context_size, v, u].
      embeddings: [n, k, m * u].
      mask: 1 where a query sees a context position, else 0, [n, m]; None: it sees all.
      content: a content lambda to add to all position lambdas, [b, k, v].

    Returns:
      [b, *query_size, h, v].
    """
    b, *query_size, h, k = tensors.sizes(queries)
    _, *context_size, v, u = tensors.sizes(values)
    n, m = tensors.product(query_size), tensors.product(context_size)
    if mask is not None:
        embeddings = embeddings * K.repeat(K.cast(mask, embeddings.dtype), u, axis=1)[:, K.newaxis]
    values = K.reshape(K.einsum("...vu->...uv", values), [b, m * u, v])
    operands = Operands(K.reshape(queries, [b, n, h, k]), values, embeddings, content)
    return K.reshape(kernels.current().query_first(operands), [b, *query_size, h, v])


def _apply(
    term: PositionTerm, implementation: str, block: Sequence[int] | None, kernel: kernels.Kernels
) -> K.Tensor:
    """Applies the position lambdas at every query, without a pool."""
    if convolve := _CONVOLUTIONS.get(implementation):
        outputs = convolve(term)
        if term.content is not None:
            outputs += K.einsum("b...hk,bkv->b...hv", term.queries, term.content)
        return outputs
    plan = _WHOLE_MAP.get(implementation)
    if plan is None:
        problem = cost_model.ProblemSize.of(term)
        plan = cost_model.choose(problem, kernel.device, _QUERY_FIRST.get(implementation))
        if block is not None:
            plan = cost_model.Plan(plan.query_first, tuple(block))
        plan = cost_model.limit_memory(problem, plan, kernel.device)
    return apply_plan(term, plan, kernel)


def apply_plan(term: PositionTerm, plan: cost_model.Plan, kernel: kernels.Kernels) -> K.Tensor:
    """Applies the position lambdas in blocks of queries, each with the window of context in its scope.

    One table of pairs serves all blocks. One block is every query with every context position; with more,
    cost and memory are linear in n, as for a convolution, but the work is matrix products.
    """
    axes = term.block_axes(plan.block)
    windows = kernel.extract_windows(term.depth_first_values(), axes)  # [b * blocks, window, u * v]
    embeddings = kernel.expand_table(term.table, axes)  # [n, k, m = window * u]
    queries = blocking.split(term.queries, axes)  # [b * blocks, n, h, k]
    v = term.values.shape[-2]
    windows = K.reshape(windows, [tensors.sizes(windows)[0], tensors.sizes(embeddings)[2], v])
    operands = Operands(queries, windows, embeddings, term.content, blocking.num_blocks(axes))
    contract = kernel.query_first if plan.query_first else kernel.lambda_first
    return blocking.merge(contract(operands, plan.chunk), axes, term.query_size)


def _apply_pooled(term: PositionTerm, kernel: kernels.Kernels) -> K.Tensor:
    """Applies the position lambdas to the queries of whole pools.

    The mean over a pool is linear in its queries, so they and their embeddings can be contracted together,
    over positions of the pool and depth, before the context: once per output instead of once per position.
    """
    b, *size, h, k = tensors.sizes(term.queries)
    v, geometry = term.values.shape[-2], term.geometry
    pools = [pooling.Windows.same(n, geometry.pool_size, geometry.strides) for n in size]
    counts, positions = [pool.count for pool in pools], geometry.pool_size ** len(pools)
    axes = [
        PairAxis(pool.count, m, -pool.first, geometry.strides, geometry.dilation, geometry.pool_size)
        for pool, m in zip(pools, term.context_size, strict=True)
    ]
    embeddings = kernel.expand_table(term.table, axes)  # [n, positions * k, m * u]
    n = tensors.product(counts)
    queries = K.reshape(pooling.gather(term.queries, pools), [b, n, positions, h, k])
    queries = K.reshape(K.transpose(queries, [0, 1, 3, 2, 4]), [b, n, h, positions * k])
    outputs = apply_embeddings(queries, term.values, embeddings, content=term.content)
    return pooling.divide_by_count(K.reshape(outputs, [b, *counts, h, v]), pools)
