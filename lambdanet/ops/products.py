# SPDX-License-Identifier: Apache-2.0
"""Position lambdas by matrix products, in either order, over the whole map or in blocks of queries.

There is no softmax between the two contractions in

    y[b, n, h, v] = sum over k and m of q[b, n, h, k] E[n, m, k] V[b, m, v],

so their order is free. A block of queries sees the window of context around it, and one table of pairs E
serves all blocks. With n queries in blocks of s with windows of w positions, one example costs

  lambda first: n w k v u multiply-adds in one large product, and stores n k v numbers,
  query first:  n w h u v multiply-adds, and n w h u k that yield n w h u numbers, each a sum over k alone,

and both store the windows, n w v u / s numbers, and share the embeddings of a block, s w k u numbers.
Blocks save where the map is larger than the scope, and cost where a block is much smaller than the scope.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Tensor, tensors
from lambdanet.backend.device import Device, Speed
from lambdanet.backend.tensors import ceil_div, pad, product, round_up
from lambdanet.ops import blocking, content_lambdas
from lambdanet.ops.blocking import BlockAxis, gather_windows
from lambdanet.ops.position_term import (
    Form,
    PositionTerm,
    Sizes,
    cut_axes,
    devices_of,
)
from lambdanet.ops.relative_positions import expand_table, read_rows

# Of blocks to choose from, besides the whole axis.
LENGTHS = (2, 4, 7, 8, 14, 16, 28, 32)
LENGTHS_OF_UNKNOWN_MAPS = (8, 16)


@dataclasses.dataclass(frozen=True)
class Product(Form):
    """Contracts the context and the depth k, one after the other.

    Attributes:
      query_first: whether k is contracted before the context; the paper's Figure 3 has the context first.
      block: queries per block along each axis; None for the whole map.
    """

    query_first: bool
    block: tuple[int, ...] | None = None
    # No fields: the form for a TPU replaces both functions.
    gather = staticmethod(gather_windows)
    read_first = staticmethod(read_rows)

    def seconds(self, sizes: Sizes, speed: Speed) -> float:
        """Estimated from the operations and the bytes stored; see the module docstring."""
        groups, n, m = self._groups(sizes)
        m_padded = round_up(m, speed.tile)
        v_padded = round_up(sizes.v, speed.tile)
        stored = n * sizes.k * m_padded + (groups * m * v_padded if self.block else 0)
        if self.query_first:
            per_similarity = (
                sizes.k + v_padded
            ) / speed.rate + 1 / speed.elementwise_rate
            arithmetic = groups * n * sizes.h * m_padded * per_similarity
        else:
            stored += groups * n * sizes.k * v_padded
            arithmetic = groups * n * m * sizes.k * sizes.v / speed.rate
        return arithmetic + stored * sizes.bytes / speed.bandwidth

    def memory(self, sizes: Sizes, device: Device) -> float:
        """Counts the intermediate result and its transpose, windows and embeddings, and the gradients of all.

        The backward pass of `lambda_first` reuses the memory of its lambdas.
        """
        groups, n, m = self._groups(sizes)
        chunk = self.chunk(sizes, device) or groups
        copies = 4 if self.query_first and sizes.needs_gradient else 2
        windows = groups * m * sizes.v if self.block else 0
        kept = (windows + n * sizes.k * m) * sizes.bytes
        return copies * chunk * self._bytes_of_group(sizes) + (
            2 * kept if sizes.needs_gradient else kept
        )

    def chunk(self, sizes: Sizes, device: Device) -> int | None:
        """Returns how many blocks of the batch fit into a chunk; None for all of them.

        Chunks of similarities that fit into a cache take no more time than all of them at once. The lambdas
        of all blocks are one large product, which chunks cut into slower ones.
        """
        groups, _, _ = self._groups(sizes)
        max_bytes = (
            device.max_similarity_bytes if self.query_first else device.max_lambda_bytes
        )
        return device.chunk(groups, self._bytes_of_group(sizes), max_bytes)

    def _bytes_of_group(self, sizes: Sizes) -> int:
        """The size of the similarities, or else of the lambdas, of one block of one example."""
        _, n, m = self._groups(sizes)
        numbers = sizes.h * m if self.query_first else sizes.k * sizes.v
        return n * numbers * sizes.bytes

    def compute(self, term: PositionTerm, device: Device) -> Tensor:
        axes = cut_axes(term, self.block)
        has_open_batch = K.is_tensor(tensors.sizes(term.queries)[0])
        if self.query_first:
            multiply = query_first
        elif has_open_batch and not term.sizes.needs_gradient:
            multiply = lambda_first_by_example
        else:
            multiply = lambda_first
        outputs = in_chunks(
            multiply, *self.operands(term, axes), self.chunk(term.sizes, device)
        )
        return self.merge(outputs, term, axes)

    def operands(
        self, term: PositionTerm, axes: Sequence[BlockAxis]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries [b * blocks, n, h, k], values [b * blocks, m * u, v], embeddings [n, k, m * u]."""
        embeddings = expand_table(term.table, axes, self.read_first)
        queries = term.queries
        values = term.values_by_depth()
        if self.block:
            queries = blocking.split(queries, axes)
            values = blocking.extract_windows(values, axes, self.gather)
        n, _, m = tensors.sizes(embeddings)
        queries = K.reshape(queries, [-1, n, *term.queries.shape[-2:]])
        return queries, K.reshape(values, [-1, m, term.values.shape[-2]]), embeddings

    def merge(
        self, outputs: Tensor, term: PositionTerm, axes: Sequence[BlockAxis]
    ) -> Tensor:
        """Puts the outputs of blocks together: [b * blocks, n, h, v] -> [b, *query_size, h, v]."""
        if self.block:
            return blocking.merge(outputs, axes, term.query_size)
        return K.reshape(
            outputs, [*tensors.sizes(term.queries)[:-1], outputs.shape[-1]]
        )

    def _groups(self, sizes: Sizes) -> tuple[int, int, int]:
        """The number of blocks in the batch, the queries of one, and the context of each times u."""
        axes = cut_axes(sizes, self.block)
        n = product([axis.num_queries for axis in axes])
        m = product([axis.num_context for axis in axes])
        return sizes.b * blocking.num_blocks(axes), n, m * sizes.u


def candidates(sizes: Sizes) -> list[Product]:
    """Returns both orders, over a whole map of known size and in blocks."""
    whole = [None] if sizes.known and sizes.known_scope else []
    return [
        Product(order, block)
        for order in (False, True)
        for block in (*blocks(sizes), *whole)
    ]


def blocks(sizes: Sizes) -> Iterable[tuple[int, ...] | None]:
    """Returns the blocks to choose from: the same few lengths along every axis, and the whole axis."""
    # A table stretched over a map of unknown size: every position is in scope.
    if not sizes.known_scope:
        return [None]
    if not sizes.known:
        return [(s,) * len(sizes.query_size) for s in LENGTHS_OF_UNKNOWN_MAPS]
    return itertools.product(*map(_lengths, sizes.query_size))


def _lengths(num_queries: int) -> list[int]:
    """Returns the lengths of blocks to choose from along one axis."""
    return [length for length in LENGTHS if length < num_queries] + [num_queries]


def query_first(queries: Tensor, values: Tensor, embeddings: Tensor) -> Tensor:
    """Contracts k first: [b, n, h, k], [b, m, v], [n, k, m] -> [b, n, h, v].

    Products and transpositions instead of einsums let the backward pass transpose the similarities only once.
    """
    b, n, h, k = tensors.sizes(queries)
    _, m, v = tensors.sizes(values)
    similarity = K.matmul(
        K.reshape(K.transpose(queries, [1, 0, 2, 3]), [n, b * h, k]), embeddings
    )
    # [b, n, h, m]
    similarity = K.transpose(K.reshape(similarity, [n, b, h, m]), [1, 0, 2, 3])
    return K.reshape(
        K.matmul(K.reshape(similarity, [b, n * h, m]), values), [b, n, h, v]
    )


def lambda_first(queries: Tensor, values: Tensor, embeddings: Tensor) -> Tensor:
    """Contracts m first, as in the paper's Figure 3; shapes as in `query_first`."""
    b, n, _, k = tensors.sizes(queries)
    _, m, v = tensors.sizes(values)
    context = K.reshape(K.transpose(values, [1, 0, 2]), [m, b * v])
    lambdas = K.matmul(K.reshape(embeddings, [n * k, m]), context)
    return K.matmul(
        queries, K.transpose(K.reshape(lambdas, [n, k, b, v]), [2, 0, 1, 3])
    )


def lambda_first_by_example(
    queries: Tensor, values: Tensor, embeddings: Tensor
) -> Tensor:
    """`lambda_first` with the examples outside: an export to LiteRT loses a batch of unknown size inside."""
    _, n, _, k = tensors.sizes(queries)
    b, m, v = tensors.sizes(values)
    context = K.reshape(K.transpose(values, [0, 2, 1]), [b * v, m])
    weights = K.reshape(embeddings, [n * k, m])
    lambdas = K.reshape(K.matmul(context, weights, transpose_b=True), [b, v, n, k])
    return K.matmul(queries, K.transpose(lambdas, [0, 2, 1, 3]), transpose_b=True)


def in_chunks(
    multiply: Any,
    queries: Tensor,
    values: Tensor,
    embeddings: Tensor,
    chunk: int | None = None,
) -> Tensor:
    """Multiplies some examples at a time, and again in the backward pass.

    Only inputs and outputs are kept between the two passes (Chen et al. 2016), so the largest intermediate is
    that of one chunk; chunks that fit into a cache can make up for computing them twice.

    Args:
      multiply: `query_first` or `lambda_first`, or a function of the same arguments.
      queries: [b, n, h, k].
      values: [b, m, v].
      embeddings: [n, k, m], shared by all examples.
      chunk: the number of examples of a device at a time; None: all of them at once.

    Returns:
      [b, n, h, v].
    """
    if chunk is None:
        return multiply(queries, values, embeddings)
    b, n, h, _ = tensors.sizes(queries)
    devices = devices_of(b)
    part = b // devices
    if K.is_tensor(b):  # unknown: fewer than one chunk are not padded to a whole one
        chunk = K.maximum(K.minimum(chunk, b), 1)
        count = K.maximum(ceil_div(b, chunk), 1)  # of no examples too
    else:
        count = ceil_div(part, chunk)

    def split(x: Tensor) -> Tensor:
        """Returns [count, devices * chunk, ...]: each device keeps its examples."""
        size = tensors.sizes(x)[1:]
        x = pad(K.reshape(x, [devices, part, *size]), 1, 0, count * chunk - part)
        x = _swap(K.reshape(x, [devices, count, chunk, *size]))
        return K.reshape(x, [count, devices * chunk, *size])

    outputs = K.map_recomputed(
        multiply, split(queries), split(values), embeddings, count
    )
    size = [n, h, tensors.sizes(values)[2]]
    outputs = _swap(K.reshape(outputs, [count, devices, chunk, *size]))
    outputs = K.reshape(outputs, [devices, count * chunk, *size])[:, :part]
    return K.reshape(outputs, [b, *size])


def _swap(x: Tensor) -> Tensor:
    return K.transpose(x, [1, 0, *range(2, len(x.shape))])


def apply_embeddings(
    term: PositionTerm, embeddings: Tensor, mask: Tensor | None
) -> Tensor:
    """Applies position lambdas whose embeddings are given for all pairs of positions.

    Args:
      term: the queries, the values, and a content lambda to add to all position lambdas.
      embeddings: [n, k, m * u].
      mask: whether a query sees a context position, [n, m] or [b, n, m], booleans; None: it sees all.

    Returns:
      [b, *query_size, h, v].
    """
    *_, v, u = tensors.sizes(term.values)
    shape = [*tensors.sizes(term.queries)[:-1], v]
    values = content_lambdas.flatten_map(term.values)
    values = content_lambdas.join_intra_depth(values)
    flat = content_lambdas.flatten_map(term.queries)
    if mask is None:
        outputs = query_first(flat, values, embeddings)
    else:
        visible = content_lambdas.visible_pairs(mask, None)  # [b or 1, n, m]
        pairs = K.repeat(K.cast(visible, values.dtype), u, axis=2)[:, :, K.newaxis]
        similarity = K.einsum("bnhk,nkm->bnhm", flat, embeddings) * pairs
        outputs = K.einsum("bnhm,bmv->bnhv", similarity, values)
    outputs = K.reshape(outputs, shape)
    if term.content is None:
        return outputs
    return content_lambdas.apply(term.queries, term.content, outputs)
