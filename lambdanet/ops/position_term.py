# SPDX-License-Identifier: Apache-2.0
"""The position term of a lambda layer: queries, values and relative embeddings, and how they are aligned."""

import dataclasses
import functools
from collections.abc import Sequence

from lambdanet import backend as K
from lambdanet.backend.tensors import Size, sizes
from lambdanet.ops.blocking import BlockAxis


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The spacing of outputs, queries and offsets on the context, the same along every axis.

    Attributes:
      strides: the distance between outputs.
      dilation: the distance between offsets.
      pool_size: the positions over which an output is averaged, with "same" padding. With more than one,
        there are queries at every position of the context.
    """

    strides: int = 1
    dilation: int = 1
    pool_size: int = 1

    @property
    def query_strides(self) -> int:
        """The distance between the queries that are given."""
        return self.strides if self.pool_size == 1 else 1


@dataclasses.dataclass(frozen=True, eq=False)
class PositionTerm:
    """The tensors that position lambdas are made of and applied to.

    Attributes:
      queries: [b, *query_size, h, k].
      values: [b, *context_size, v, u].
      table: [r, ..., k, u].
      geometry: the spacing along each axis.
      content: a content lambda to add to all position lambdas, [b, k, v], or None.
      needs_gradient: whether a backward pass may follow, for which another form may be faster.
    """

    queries: K.Tensor
    values: K.Tensor
    table: K.Tensor
    geometry: Geometry = Geometry()
    content: K.Tensor | None = None
    needs_gradient: bool = True

    @functools.cached_property
    def query_size(self) -> list[Size]:
        """The number of queries along each axis."""
        return sizes(self.queries)[1:-2]

    @functools.cached_property
    def context_size(self) -> list[Size]:
        """The number of context positions along each axis."""
        return sizes(self.values)[1:-2]

    @functools.cached_property
    def scope(self) -> list[Size]:
        """The length of the table along each axis."""
        return sizes(self.table)[:-2]

    def without_pool(self) -> "PositionTerm":
        """Returns the term whose outputs, at every position, are not averaged yet."""
        geometry = dataclasses.replace(self.geometry, strides=1, pool_size=1)
        return dataclasses.replace(self, geometry=geometry)

    def block_axes(self, block: Sequence[int] | None) -> list[BlockAxis]:
        """Cuts each axis into blocks of the given numbers of queries; None for one block."""
        strides, dilation = self.geometry.strides, self.geometry.dilation
        halos = [r // 2 * dilation for r in self.scope]
        lengths = block or (None,) * len(halos)
        axes = zip(self.query_size, self.context_size, lengths, halos, strict=True)
        return [BlockAxis.cut(*axis, strides, dilation) for axis in axes]

    def depth_first_values(self) -> K.Tensor:
        """Returns the values [b, *context_size, u * v], with the intra-depth outside, where it can join m."""
        b, *context_size, v, u = sizes(self.values)
        values = K.einsum("...vu->...uv", self.values) if u > 1 else self.values
        return K.reshape(values, [b, *context_size, u * v])
