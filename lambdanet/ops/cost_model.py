# SPDX-License-Identifier: Apache-2.0
"""A cost model that chooses how to compute the position lambda, from arithmetic and memory traffic.

Two choices are free, because all of them give the same numbers: whether the context or the query is
  contracted first, and into which blocks of queries the map is cut. A block sees the window of context
  around it. With n queries in blocks of s with windows of w positions, one example costs

  lambda first: n w k v u multiply-adds in one large product, and stores n k v numbers,
  query first:  n w h u v multiply-adds, and n w h u k that yield n w h u numbers, each a sum over k alone,

and both store the windows, n w v u / s numbers, and share the embeddings of a block, s w k u numbers.
Blocks save where the map is larger than the scope, and cost where a block is much smaller than the scope.
The estimate is arithmetic over the device's rates plus the bytes stored over its bandwidth.

Convolutions with the whole scope as their kernel are available by name alone: none was fastest where
measured, and the gradient of one with a large scope does not compile for a TPU in reasonable time. The form
for whole maps on a TPU is in `kernels`.
"""

import dataclasses
import functools
import itertools

from lambdanet import backend as K
from lambdanet.backend.device import Device
from lambdanet.backend.tensors import ceil_div, product, round_up
from lambdanet.ops.blocking import BlockAxis
from lambdanet.ops.position_term import PositionTerm

BLOCKS = (2, 4, 7, 8, 14, 16, 28, 32)


@dataclasses.dataclass(frozen=True)
class ProblemSize:
    """The sizes of one call, in the paper's letters; None for unknown ones."""

    b: int | None
    query_size: tuple[int | None, ...]
    context_size: tuple[int | None, ...]
    scope: tuple[int | None, ...]
    h: int
    k: int
    v: int
    u: int
    strides: int
    dilation: int
    bytes: int

    @classmethod
    def of(cls, term: PositionTerm) -> "ProblemSize":
        """Reads the sizes off the tensors of a position term."""
        b, *query_size, h, k = term.queries.shape
        _, *context_size, v, u = term.values.shape
        scope = list(term.table.shape)[:-2]
        strides, dilation = term.geometry.query_strides, term.geometry.dilation
        size = (tuple(query_size), tuple(context_size), tuple(scope))
        return cls(b, *size, h, k, v, u, strides, dilation, K.itemsize(term.queries.dtype))

    @property
    def has_unknown_map(self) -> bool:
        """Whether the size of the map is unknown."""
        return None in self.query_size or None in self.context_size


@dataclasses.dataclass(frozen=True)
class Plan:
    """A form of the position lambda.

    Attributes:
      query_first: whether the query is contracted before the context.
      block: queries per block along each axis; None for the whole map.
      chunk: blocks of the batch that are computed at a time; None for all at once.
    """

    query_first: bool
    block: tuple[int, ...] | None = None
    chunk: int | None = None


@functools.lru_cache(maxsize=4096)
def choose(problem: ProblemSize, device: Device, query_first: bool | None = None) -> Plan:
    """Returns the plan of the shortest estimated time; `query_first` restricts it to one order in blocks."""
    orders = (False, True) if query_first is None else (query_first,)
    if None in problem.scope:  # a table stretched over a map of unknown size: every position is in scope
        plans = [Plan(order, None) for order in orders]
    else:
        plans = [Plan(order, block) for order in orders for block in _blocks(problem)]
        if query_first is None and not problem.has_unknown_map:
            plans += [Plan(order, None) for order in orders]
    return min(plans, key=lambda plan: estimate(problem, plan, device))


def estimate(problem: ProblemSize, plan: Plan, device: Device) -> float:
    """Returns the estimated seconds of a forward and a backward pass, for comparisons.

    Unknown sizes count as 64 along each axis and 8 for the batch.
    """
    p = problem
    length, window, counts = _block_sizes(p, plan.block)
    num_blocks = (p.b or 8) * counts
    n = num_blocks * length
    padded = functools.partial(round_up, multiple=device.tile)
    stored = length * p.k * padded(window * p.u)
    if plan.block is not None:
        stored += num_blocks * window * p.u * padded(p.v)
    if plan.query_first:
        similarity = n * p.h * padded(window * p.u)
        arithmetic = similarity * ((p.k + padded(p.v)) / device.rate + 1 / device.elementwise_rate)
    else:
        stored += n * p.k * padded(p.v)
        arithmetic = n * window * p.u * p.k * p.v / device.rate
    return arithmetic + stored * p.bytes / device.bandwidth


def should_pool_queries(problem: ProblemSize, pool_size: int, strides: int, device: Device) -> bool:
    """Whether outputs are averaged faster by contracting the queries of a window before the context.

    Along each axis, windows have `pool_size` positions of the full resolution and are `strides` apart.
    """
    if not device.pools_queries or problem.has_unknown_map or None in problem.scope:
        return False
    query_size = tuple(ceil_div(n, strides) for n in problem.query_size if n is not None)
    depth = problem.k * pool_size ** len(query_size)
    pooled = dataclasses.replace(problem, query_size=query_size, k=depth)
    last = estimate(problem, choose(problem, device), device)
    return estimate(pooled, Plan(query_first=True), device) < last


def limit_memory(problem: ProblemSize, plan: Plan, device: Device) -> Plan:
    """Returns the plan with a chunk where its largest intermediate would exceed the device's limit.

    An unknown batch counts as 8.
    """
    p = problem
    length, window, counts = _block_sizes(p, plan.block)
    per_block = length * p.bytes * (p.h * window * p.u if plan.query_first else p.k * p.v)
    if (p.b or 8) * counts * per_block <= device.max_intermediate_bytes:
        return plan
    return dataclasses.replace(plan, chunk=max(1, int(device.chunk_bytes / per_block)))


def _blocks(problem: ProblemSize) -> list[tuple[int, ...]]:
    """The blocks to choose from: the same few lengths along every axis, and the whole axis."""
    if problem.has_unknown_map:
        return [(8,) * len(problem.query_size), (16,) * len(problem.query_size)]
    sides = [n for n in problem.query_size if n is not None]
    lengths = [[s for s in BLOCKS if s < n] + [n] for n in sides]
    return list(itertools.product(*lengths))


def _block_sizes(problem: ProblemSize, block: tuple[int, ...] | None) -> tuple[int, int, int]:
    """Queries per block, context positions per window, and the number of blocks."""
    query_size = [n or 64 for n in problem.query_size]
    context_size = [m or 64 for m in problem.context_size]
    halos = [(r or 1) // 2 * problem.dilation for r in problem.scope]
    geometry = zip(query_size, context_size, block or [None] * len(halos), halos, strict=True)
    axes = [BlockAxis.cut(*axis, problem.strides) for axis in geometry]
    queries = product([axis.num_queries for axis in axes])
    window = product([axis.num_context for axis in axes])
    return queries, window, product([axis.count for axis in axes])
