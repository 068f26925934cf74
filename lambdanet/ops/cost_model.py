# SPDX-License-Identifier: Apache-2.0
"""Which form of the position lambda to run: a model of its arithmetic and of the memory it moves.

Two choices are free, because all of them give the same numbers: which contraction comes first, the one with
the context or the one with the query, and into which blocks of queries the map is cut. A block sees the
window of context around it. With n queries in blocks of s with windows of w positions, one example costs

  lambda first: n w k v u multiply-adds in one large product, and stores n k v numbers,
  query first:  n w h u v multiply-adds, and n w h u k that yield n w h u numbers, each a sum over k alone,

and both store the windows, n w v u / s numbers, and share the embeddings of a block, s w k u numbers. Cutting
saves where the map is larger than the scope, and costs where a block is much smaller than the scope. The
estimate is arithmetic over the device's rates plus the bytes stored over its bandwidth.

Convolutions with the scope as their kernel are not among the choices: none came out ahead where measured, and
the gradient of one with a large scope does not compile for a TPU in reasonable time. They can be asked for by
name. On a TPU "lambda first" is a convolution of another kind where the map is higher than a window
(`row_convolution`), and a few keys at a time elsewhere (`keywise`).
"""

import dataclasses
import functools
import itertools

import tensorflow as tf

from lambdanet import device as devices
from lambdanet.ops import blocking
from lambdanet.tensors import product

BLOCKS = (2, 4, 7, 8, 14, 16, 28, 32)


@dataclasses.dataclass(frozen=True)
class Problem:
    """The sizes of one call, in the paper's letters; None for sizes that are not known."""

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
    def of(
        cls, queries: tf.Tensor, values: tf.Tensor, table: tf.Tensor, strides: int, dilation: int
    ) -> "Problem":
        """Reads the sizes off queries [..., h, k], values [..., v, u] and table [..., k, u]."""
        b, *query_size, h, k = queries.shape
        _, *context_size, v, u = values.shape
        scope = table.shape.as_list()[:-2]
        size = (tuple(query_size), tuple(context_size), tuple(scope))
        return cls(b, *size, h, k, v, u, strides, dilation, queries.dtype.size)

    @property
    def is_open(self) -> bool:
        """Whether the size of the map is not known."""
        return None in self.query_size or None in self.context_size


@dataclasses.dataclass(frozen=True)
class Plan:
    """A form of the position lambda.

    Attributes:
      query_first: whether the query is contracted before the context.
      block: queries per block along each axis; None for the whole map.
      size: how many blocks of the batch are computed at a time; None for all at once.
    """

    query_first: bool
    block: tuple[int, ...] | None = None
    size: int | None = None


@functools.lru_cache(maxsize=4096)
def choose(problem: Problem, query_first: bool | None = None, kind: str = "CPU") -> Plan:
    """Returns the plan with the least estimated time.

    Args:
      problem: the sizes of the call.
      query_first: restricts the choice to one order, cut into blocks.
      kind: of device, a key of `DEVICES`.
    """
    orders = (False, True) if query_first is None else (query_first,)
    if None in problem.scope:  # a table stretched over a map of unknown size: every position is in scope
        plans = [Plan(order, None) for order in orders]
    else:
        plans = [Plan(order, block) for order in orders for block in _blocks(problem)]
        if query_first is None and not problem.is_open:
            plans += [Plan(order, None) for order in orders]
    return min(plans, key=lambda plan: estimate(problem, plan, kind))


def estimate(problem: Problem, plan: Plan, kind: str = "CPU") -> float:
    """Returns the estimated seconds of a forward and a backward pass, of use in comparisons.

    Sizes that are not known are taken to be 64 along each axis and 8 for the batch.
    """
    p, device = problem, devices.DEVICES[kind]
    length, window, counts = _cut(p, plan.block)
    num_blocks = (p.b or 8) * counts
    n = num_blocks * length
    padded = functools.partial(devices.tiled, tile=device.tile)
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


def pools_first(problem: Problem, pool_size: int, strides: int, kind: str = "CPU") -> bool:
    """Whether averaging outputs over windows is best done with the queries, before the context is contracted.

    On a CPU it was not, where measured: collecting the queries of windows took more than the products saved.

    Args:
      problem: the sizes of the call at full resolution.
      pool_size: positions of a window along each axis.
      strides: the distance of two windows.
      kind: of device, a key of `DEVICES`.
    """
    if kind != "TPU" or problem.is_open or None in problem.scope:
        return False
    query_size = tuple(-(-n // strides) for n in problem.query_size if n is not None)
    depth = problem.k * pool_size ** len(query_size)
    pooled = dataclasses.replace(problem, query_size=query_size, k=depth)
    return estimate(pooled, Plan(True), kind) < estimate(problem, choose(problem, None, kind), kind)


def bounded(problem: Problem, plan: Plan, kind: str = "CPU") -> Plan:
    """Returns the plan with as many blocks at a time as keep its memory bounded.

    A batch of unknown size is taken to be of 8.
    """
    p, device = problem, devices.DEVICES[kind]
    length, window, counts = _cut(p, plan.block)
    per_block = length * p.bytes * (p.h * window * p.u if plan.query_first else p.k * p.v)
    if (p.b or 8) * counts * per_block <= device.max_intermediate_bytes:
        return plan
    return dataclasses.replace(plan, size=max(1, int(device.chunk_bytes / per_block)))


def _blocks(problem: Problem) -> list[tuple[int, ...]]:
    """The cuts to choose from: the same few lengths along every axis, and the whole axis."""
    if problem.is_open:
        return [(8,) * len(problem.query_size), (16,) * len(problem.query_size)]
    sides = [n for n in problem.query_size if n is not None]
    lengths = [[s for s in BLOCKS if s < n] + [n] for n in sides]
    return list(itertools.product(*lengths))


def _cut(problem: Problem, block: tuple[int, ...] | None) -> tuple[int, int, int]:
    """Queries per block, context positions per window, and the number of blocks."""
    query_size = [n or 64 for n in problem.query_size]
    context_size = [m or 64 for m in problem.context_size]
    halos = [(r or 1) // 2 * problem.dilation for r in problem.scope]
    geometry = zip(query_size, context_size, block or [None] * len(halos), halos, strict=True)
    axes = [blocking.Axis.of(*axis, problem.strides) for axis in geometry]
    return (
        product([a.length for a in axes]),
        product([a.window for a in axes]),
        product([a.count for a in axes]),
    )
