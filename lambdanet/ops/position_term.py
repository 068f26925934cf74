# SPDX-License-Identifier: Apache-2.0
"""The position term of a lambda layer: queries, values and relative embeddings, and how they are aligned.

Letters as in `lambdanet.ops.reference`. All forms give the same numbers at different costs. A form in
twenty lines, whose function `candidates` a device uses once it is in its row of `lambdanet.ops.kernels`:

    @dataclasses.dataclass(frozen=True)
    class Einsums(Form):

        def seconds(self, sizes, speed):  # of the product that makes the lambdas
            lambdas = product([sizes.b, *sizes.query_size, sizes.k, sizes.v])
            return lambdas * product(sizes.context_size) * sizes.u / speed.rate

        def compute(self, term, device):
            b, *query_size, h, k = sizes(term.queries)
            v = term.values.shape[-2]
            embeddings = expand_table(term.table, cut_axes(term, None))  # [n, k, m * u]
            values = K.reshape(term.values_by_depth(), [b, -1, v])  # [b, m * u, v]
            lambdas = K.einsum("nkm,bmv->bnkv", embeddings, values)
            queries = K.reshape(term.queries, [b, -1, h, k])
            outputs = K.einsum("bnhk,bnkv->bnhv", queries, lambdas)
            return K.reshape(outputs, [b, *query_size, h, v])

    def candidates(sizes):
        return [Einsums()] if sizes.known and sizes.known_scope else []
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

from lambdanet import backend as K
from lambdanet.backend import Tensor
from lambdanet.backend.device import Device, Speed, num_devices
from lambdanet.backend.tensors import PerAxis, Size, ceil_div, per_axis, sizes
from lambdanet.ops import content_lambdas, pooling
from lambdanet.ops.blocking import BlockAxis


@dataclasses.dataclass(frozen=True)
class Spacing:
    """The spacing of outputs, queries and offsets on the context along one axis.

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

    @property
    def pool_strides(self) -> int:
        """The distance between pools, in queries."""
        return 1 if self.pool_size == 1 else self.strides


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The spacing along every axis; each attribute is a number for all axes, or one for each of them.

    Attributes:
      strides, dilation, pool_size: as in `Spacing`.
    """

    strides: PerAxis = 1
    dilation: PerAxis = 1
    pool_size: PerAxis = 1

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int):
                # One number if it is the same along all axes, so that equal geometries are equal.
                same = value[0] if len(set(value)) == 1 else tuple(value)
                object.__setattr__(self, field.name, same)

    def along(self, rank: int) -> list[Spacing]:
        """Returns the spacing along each of `rank` axes."""
        fields = self.strides, self.dilation, self.pool_size
        by_axis = [per_axis(value, rank) for value in fields]
        return [Spacing(*values) for values in zip(*by_axis, strict=True)]

    @property
    def has_pool(self) -> bool:
        """Whether outputs are averages along any axis."""
        return self.pool_size != 1

    def pool(self, x: Tensor) -> Tensor:
        """Averages over the positions of each output: [b, *query_size, h, v] -> [b, *output_size, h, v]."""
        if not self.has_pool:
            return x
        axes = self.along(len(x.shape) - 3)
        lengths = [axis.pool_size for axis in axes]
        return pooling.mean(x, lengths, [axis.pool_strides for axis in axes])


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a term in the paper's letters, by which a form is chosen.

    Unknown sizes count as 64 along each axis, and as 8 for the batch.

    Attributes:
      batch: b, or None if unknown.
      query_size, context_size, scope, h, k, v, u, geometry: as in `PositionTerm`.
      bytes: the bytes per number.
      needs_gradient: as in `PositionTerm`.
      known: whether all sizes but the batch are known.
      known_scope: whether the sizes of the table are known.
    """

    batch: int | None
    query_size: tuple[int, ...]
    context_size: tuple[int, ...]
    scope: tuple[int, ...]
    h: int
    k: int
    v: int
    u: int = 1
    geometry: Geometry = Geometry()
    bytes: int = 4
    needs_gradient: bool = True
    known: bool = True
    known_scope: bool = True

    @property
    def b(self) -> int:
        """The number of examples."""
        return self.batch or 8


@dataclasses.dataclass(frozen=True, eq=False)
class PositionTerm:
    """The tensors that position lambdas are made of and applied to.

    Attributes:
      queries: [b, *query_size, h, k].
      values: [b, *context_size, v, u].
      table: [r, ..., k, u].
      geometry: the spacing along each axis.
      content: a content lambda to add to all position lambdas, [b, k, v], or None.
      needs_gradient: whether to choose by the time of both passes; False: by the forward pass alone.
    """

    queries: Tensor
    values: Tensor
    table: Tensor
    geometry: Geometry = Geometry()
    content: Tensor | None = None
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
        return sizes(self.table, has_batch=False)[:-2]

    @property
    def sizes(self) -> Sizes:
        """The sizes as numbers, for the examples of one device."""
        b, *_, h, k = K.static_sizes(self.queries.shape)
        *_, v, u = K.static_sizes(self.values.shape)
        known_scope = _is_known(self.scope)
        return Sizes(
            b // devices_of(b) if isinstance(b, int) else None,
            _numbers(self.query_size),
            _numbers(self.context_size),
            _numbers(self.scope),
            h,
            k,
            v,
            u,
            self.geometry,
            K.itemsize(self.queries.dtype),
            self.needs_gradient,
            _is_known(self.query_size + self.context_size) and known_scope,
            known_scope,
        )

    def values_by_depth(self) -> Tensor:
        """Returns the values [b, *context_size, u * v], with the intra-depth outside, where it can join m."""
        b, *context_size, v, u = sizes(self.values)
        values = self.values
        if u > 1:
            values = K.transpose(content_lambdas.flatten_map(values), [0, 1, 3, 2])
        return K.reshape(values, [b, *context_size, u * v])


def devices_of(b: Size) -> int:
    """Returns the number of devices that a batch is divided between, 1 unless they get equal parts."""
    devices = num_devices()
    return devices if isinstance(b, int) and b % devices == 0 else 1


def _is_known(size: Sequence[Size]) -> bool:
    """Returns whether all sizes are numbers, and none is a tensor."""
    return all(isinstance(n, int) for n in size)


def _numbers(size: Sequence[Size]) -> tuple[int, ...]:
    """Returns sizes as numbers, with 64 for each that is unknown."""
    return tuple(n if isinstance(n, int) else 64 for n in size)


def cut_axes(
    part: Sizes | PositionTerm, block: Sequence[int] | None
) -> list[BlockAxis]:
    """Cuts each axis of a term into blocks of queries, with the context that they see.

    Args:
      part: the term, or its sizes.
      block: the number of queries of a block along each axis; None: one block with the whole context, as
        where a number is known to cover its axis.

    Returns:
      One axis for each of the map, in positions of the context.
    """
    axes = []
    lengths = block or part.query_size
    spacings = part.geometry.along(len(lengths))
    for n, m, r, length, spacing in zip(
        part.query_size, part.context_size, part.scope, lengths, spacings, strict=True
    ):
        strides = spacing.query_strides
        dilation = spacing.dilation
        if block is None or (isinstance(n, int) and n <= length):
            axes.append(BlockAxis(n, m, 0, strides, dilation, step=m))
        else:
            step = length * strides
            halo = r // 2 * dilation
            count = ceil_div(n, length)
            window = step - strides + 1 + 2 * halo
            axes.append(
                BlockAxis(
                    length, window, -halo, strides, dilation, count=count, step=step
                )
            )
    return axes


class Form:
    """One way to compute position lambdas, with its settings: what it costs, and how it is computed.

    The file of a form has a function `candidates`: from sizes to the settings that can compute them.
    """

    has_fast_gradient = True

    def seconds(self, sizes: Sizes, speed: Speed) -> float:
        """Returns the estimated time on a device, for comparisons; without content and pool."""
        raise NotImplementedError

    def memory(self, sizes: Sizes, device: Device) -> float:
        """Returns the estimated bytes of a step beyond inputs and outputs; 0 where the time alone decides."""
        return 0.0

    def compute(self, term: PositionTerm, device: Device) -> Tensor:
        """Applies the position lambdas at every query, without content and pool: [b, *query_size, h, v]."""
        raise NotImplementedError

    def apply(self, term: PositionTerm, device: Device) -> Tensor:
        """Applies the position lambdas and the content: [b, *output_size, h, v]."""
        outputs = term.geometry.pool(self.compute(term, device))
        if term.content is None:
            return outputs
        queries = term.geometry.pool(term.queries)
        return content_lambdas.apply(queries, term.content, outputs)


@dataclasses.dataclass(frozen=True)
class TwoForms(Form):
    """Computes the outputs by one form, and the gradients by another one."""

    forward: Form
    backward: Form

    def compute(self, term: PositionTerm, device: Device) -> Tensor:
        def run(form: Form) -> Callable[..., Tensor]:
            return lambda q, v, t: form.compute(
                dataclasses.replace(term, queries=q, values=v, table=t), device
            )

        forms = run(self.backward), run(self.forward)
        return K.with_gradient_of(*forms, term.queries, term.values, term.table)
