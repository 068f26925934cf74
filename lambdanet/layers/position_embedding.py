# SPDX-License-Identifier: Apache-2.0
"""Position embeddings as layers, which one lambda layer or several can use (Bello 2021)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Shape, Tensor, compat, keras, tensors
from lambdanet.core.errors import (
    InputError,
    check_count,
    check_flags,
    check_known,
    invalid,
)
from lambdanet.layers.argument_checks import (
    OF_ZOO,
    check_optional_count,
    check_per_axis,
    check_scope_or_none,
    own_initializer,
)
from lambdanet.layers.layer import TableLayer
from lambdanet.ops import (
    content_lambdas,
    kernels,
    products,
    reference,
    relative_positions,
)
from lambdanet.ops.position_term import Geometry, PositionTerm, cut_axes

SHARED = "shared_object_id"  # Keras's key for objects that several layers share
RESIZES = ("slice", "interpolate")


class PositionEmbedding(TableLayer):
    """Base class of position embeddings: the depth of an embedding, and applying them per lambda.

    Args:
      key_dim: k, the depth of an embedding.
      intra_depth: u, where an embedding is a [k, u] matrix.
      num_lambdas: the lambdas per position, each with its own embeddings: 1, or the number of heads of a
        multi-head lambda layer. These three are by default those of the first lambda layer that has the
        embedding as `position`.
      embeddings_initializer: the initializer of the table, an initializer of Keras or the name of one. None:
        normal with a standard deviation of 1 (appendix F.2).
      **kwargs: `constant_tables`, and arguments of a Keras layer.

    Raises:
      InputError: for arguments outside these ranges.
    """

    def __init__(
        self,
        key_dim: int | None = None,
        intra_depth: int | None = None,
        num_lambdas: int | None = None,
        embeddings_initializer: Any = None,
        **kwargs: Any,
    ):
        # Computes in the precision of the lambda layer that uses it.
        super().__init__(autocast=False, **kwargs)
        self.key_dim: Any = check_optional_count("key_dim", key_dim)
        self.intra_depth: Any = check_optional_count("intra_depth", intra_depth)
        self.num_lambdas: Any = check_optional_count("num_lambdas", num_lambdas)
        self.embeddings_initializer = own_initializer(embeddings_initializer)
        self.num_users = 0  # the lambda layers that have it
        self.table: Any = None  # until the first `build_for`
        self.causal_axis: Any = None  # that of the first `build_for`

    def add_user(self, layer: Any) -> None:
        """Takes the sizes of a lambda layer where it has none; `InputError` where it has others."""
        for name in ("key_dim", "intra_depth", "num_lambdas"):
            own = getattr(self, name)
            value = getattr(layer, name)
            if own is None:
                setattr(self, name, value)
            elif own != value:
                accepted = f"{value} as in the layer"
                raise invalid(f"{name} of the position embedding", accepted, own)
        self.num_users += 1

    def build_for(
        self,
        query_size: Shape,
        context_size: Shape,
        causal_axis: int | None = None,
    ) -> None:
        """Creates the embeddings, once.

        Args:
          query_size: the queries along each axis.
          context_size: the context positions along each axis.
          causal_axis: the number of the axis along which a query sees only the positions up to its own.

        Raises:
          InputError: for unknown sizes that the table depends on, or for other axes than those of the layers
            that have built it.
        """
        if self.table is None:
            self.causal_axis = causal_axis
            self._create_table(query_size, context_size)
        elif causal_axis != self.causal_axis:
            raise InputError(
                "layers that share a position embedding must be causal along the same axis, got causal_axis="
                f"{causal_axis} after {self.causal_axis}"
            )
        self._check_rank(len(context_size))

    def _create_table(self, query_size: Shape, context_size: Shape) -> None:
        raise NotImplementedError

    def _check_rank(self, rank: int) -> None:
        """Checks the number of spatial axes; unstructured positions have none."""

    def call(
        self,
        queries: Tensor,
        values: Tensor,
        index: int,
        geometry: Geometry,
        mask: Tensor | None = None,
        content: Tensor | None = None,
        training: bool | None = None,
        has_past: bool = False,
    ) -> Tensor:
        """Applies the position lambdas of one lambda to their queries.

        Args:
          queries: [b, *query_size, h, k].
          values: [b, *context_size, v, u].
          index: the number of the lambda, below `num_lambdas`.
          geometry: the spacing of queries and outputs; see `lambdanet.ops.position_term`.
          mask: whether a query sees a context position, [n, m] or [b, n, m], booleans, also along a causal
            axis; None: all, or all up to its own if the layer is causal.
          content: a content lambda to add to the position lambdas, [b, k, v].
          training: False if no gradient is needed, so that the fastest form of the forward pass is chosen.
          has_past: whether the values along the causal axis begin `num_past` positions before the queries.

        Returns:
          [b, *query_size, h, v]; with a pool, one position per window.
        """
        needs_gradient = training is not False

        def apply_table(tables: Any) -> Tensor:
            table = self._table_of(index, tables)
            return self._apply_term(
                PositionTerm(queries, values, table, geometry, content, needs_gradient),
                mask,
                has_past,
            )

        return self._compute_by_tables(apply_table, [self.table], queries.dtype)

    def pair_embeddings(
        self,
        queries: Tensor,
        values: Tensor,
        index: int,
        geometry: Geometry,
        chosen: Any,
        has_past: bool,
    ) -> Tensor:
        """Returns the embeddings of some queries and all context positions, zeros out of scope.

        Args:
          queries, values, index, geometry, has_past: as in `call`.
          chosen: the numbers of the queries among the flattened ones, [c].

        Returns:
          [c, m, k, u].
        """
        table = self._table_of(index, tensors.cast(self.table, queries.dtype))
        term = PositionTerm(queries, values, table, geometry)
        return self._read_pairs(term, chosen, has_past)

    def num_past(self) -> int:
        """Returns the positions before a query that it sees along the causal axis.

        Raises:
          InputError: there is no limit.
        """
        accepted = "relative ones or None, for a layer with a state"
        raise invalid("the positions", accepted, type(self).__name__)

    def _apply_term(
        self, term: PositionTerm, mask: Tensor | None, has_past: bool
    ) -> Tensor:
        raise NotImplementedError

    def _read_pairs(self, term: PositionTerm, chosen: Any, has_past: bool) -> Tensor:
        raise NotImplementedError

    def serialize(self) -> dict[str, Any]:
        """Returns the configuration, marked where several layers share the embedding."""
        config = keras.layers.serialize(self)
        # The layer that uses it builds it, by `build_for`.
        config.pop("build_config", None)
        return config if self.num_users < 2 else {**config, SHARED: id(self)}

    def _add_table(self, shape: Sequence[int]) -> K.Variable:
        """Adds an embedding for each index of `shape`."""
        lambdas = [self.num_lambdas] if self.num_lambdas > 1 else []
        depth = [self.key_dim] + ([self.intra_depth] if self.intra_depth > 1 else [])
        initializer = self.embeddings_initializer or compat.RandomNormal(stddev=1.0)
        # Keras 3 runs a model once without compiling it if a layer is not built
        self.built = True
        return self.add_weight(
            name="table", shape=[*lambdas, *shape, *depth], initializer=initializer
        )

    def _table_of(self, index: int, tables: Any) -> Tensor:
        """The table of one lambda, [..., k, u]."""
        table = tables[index] if self.num_lambdas > 1 else tables
        return table if self.intra_depth > 1 else table[..., K.newaxis]


@keras.saving.register_keras_serializable(package="lambdanet")
class RelativePositionEmbedding(PositionEmbedding):
    """Translation-equivariant embeddings of the offset between query and context on a grid.

    Lambda layers that have the same object as `position` share its table (Table 4 of the paper).

    Args:
      key_dim, intra_depth, num_lambdas, embeddings_initializer: as in `PositionEmbedding`.
      scope: r, odd: a query sees r positions along each axis; None: the whole map. Or one of these per axis:
        (3, None) for three rows and all columns.
      dilation: the distance between positions that a query sees, a number or one per axis; 1 for the scope
        None.
      map_size: for the scope None, the size of the map that the table is for, an integer or one per axis,
        where those along other axes are not used; default: the size of the first input.
      resize: for the scope None and maps of another size: "slice" uses the offsets that occur, on maps no
        larger than `map_size`; "interpolate" stretches the table over any map.
      use_bias: whether to add a vector of depth k to the position lambda of every value channel.
      implementation: the form of `lambdanet.ops.apply_position_lambdas`; a mask [n, m] has its own form.
        "reference" is that of lambda layers with this implementation, and "auto" in others.

    Raises:
      InputError: for arguments outside these ranges, a dilation with the scope None, or a map larger than
        the table.
    """

    def __init__(
        self,
        key_dim: int | None = None,
        intra_depth: int | None = None,
        num_lambdas: int | None = None,
        scope: int | Sequence[int | None] | None = 23,
        dilation: tensors.PerAxis = 1,
        map_size: int | Sequence[int | None] | None = None,
        resize: str = "slice",
        use_bias: bool = False,
        implementation: str = "auto",
        **kwargs: Any,
    ):
        super().__init__(key_dim, intra_depth, num_lambdas, **kwargs)
        check_flags(use_bias=use_bias)
        check_known("resize", resize, RESIZES)
        check_known("implementation", implementation, kernels.OF_LAYERS)
        self.scope = check_per_axis("scope", scope, check_scope_or_none)
        self.dilation = check_per_axis("dilation", dilation, check_count)
        self.map_size = check_per_axis("map_size", map_size, check_optional_count)
        self.resize = resize
        self.use_bias = use_bias
        self.implementation = implementation
        ranks = [len(x) for x in (self.scope, self.dilation) if isinstance(x, tuple)]
        rank = max(ranks, default=1)
        scopes = tensors.per_axis(self.scope, rank, "scope")
        steps = tensors.per_axis(self.dilation, rank, "dilation")
        for r, step in zip(scopes, steps, strict=True):
            if r is None and step > 1:
                accepted = "1 with scope=None, the whole map"
                raise invalid("dilation", accepted, self.dilation)

    def _create_table(self, query_size: Shape, context_size: Shape) -> None:
        rank = len(context_size)
        scopes = tensors.per_axis(self.scope, rank, "scope")
        tensors.per_axis(self.dilation, rank, "dilation")
        sides: Sequence[Any] = scopes
        if None in scopes:
            sides = self.map_size = self._full_map_size(scopes, context_size)
        lengths = [
            2 * side - 1 if r is None else r
            for r, side in zip(scopes, sides, strict=True)
        ]
        if self.causal_axis is not None:
            # The offsets up to 0 alone.
            lengths[self.causal_axis] = lengths[self.causal_axis] // 2 + 1
        self.table = self._add_table(lengths)
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias", shape=[self.key_dim], initializer="zeros"
            )

    def _apply_term(
        self, term: PositionTerm, mask: Tensor | None, has_past: bool
    ) -> Tensor:
        term = self._with_whole_table(term, has_past)
        if mask is None:
            outputs = kernels.apply_term(term, self.implementation)
        else:
            axes = cut_axes(term, None)
            embeddings = relative_positions.expand_table(term.table, axes)
            outputs = products.apply_embeddings(term, embeddings, mask)
        return self._with_bias(outputs, term) if self.use_bias else outputs

    def _read_pairs(self, term: PositionTerm, chosen: Any, has_past: bool) -> Tensor:
        term = self._with_whole_table(term, has_past)
        axes = term.geometry.along(len(term.query_size))
        return reference.gather_embeddings(
            term.table,
            term.query_size,
            term.context_size,
            [axis.query_strides for axis in axes],
            self.dilation,
            chosen=chosen,
        )

    def _with_whole_table(self, term: PositionTerm, has_past: bool) -> PositionTerm:
        """Returns a term whose table fits its map, and has the offsets after a query too."""
        scopes = tensors.per_axis(self.scope, len(term.query_size))
        table = self._fitted(term, scopes) if None in scopes else term.table
        if self.causal_axis is not None:
            table = relative_positions.complete_causal_table(
                table, self.causal_axis, has_past
            )
        geometry = dataclasses.replace(term.geometry, dilation=self.dilation)
        return dataclasses.replace(term, table=table, geometry=geometry)

    def num_past(self) -> int:
        scope = tensors.per_axis(self.scope, self._rank)[self.causal_axis]
        if scope is None:
            accepted = "a number along the causal axis, for a layer with a state"
            raise invalid("scope", accepted, self.scope)
        return (
            scope // 2 * tensors.per_axis(self.dilation, self._rank)[self.causal_axis]
        )

    def _with_bias(self, outputs: Tensor, term: PositionTerm) -> Tensor:
        queries = content_lambdas.flatten_map(term.geometry.pool(term.queries))
        # No einsum with an ellipsis; see `relative_positions.resize_table`.
        added = K.matmul(queries, K.cast(self.bias, queries.dtype)[:, K.newaxis])
        flat = content_lambdas.flatten_map(outputs) + added
        return K.reshape(flat, tensors.sizes(outputs))

    @property
    def _rank(self) -> int:
        """The number of spatial axes of the table."""
        # All but k and, where they are not 1, u and the lambdas.
        depth_axes = 1 + (self.intra_depth > 1) + (self.num_lambdas > 1)
        return len(self.table.shape) - depth_axes

    def _check_rank(self, rank: int) -> None:
        if self._rank != rank:
            raise invalid(
                "the spatial axes of the input",
                f"{self._rank} as in the position table",
                rank,
            )

    def _full_map_size(
        self, scopes: Shape, context_size: Shape
    ) -> tuple[int | None, ...]:
        """Returns the size of the map along the axes of the scope None, and None along the others."""
        rank = len(scopes)
        given = tensors.per_axis(self.map_size, rank, "map_size")
        sides = []
        for r, side, size in zip(scopes, given, context_size, strict=True):
            if r is None and side is None and size is None:
                raise invalid(
                    "the map of a global scope",
                    "of known size",
                    tuple(context_size),
                    "or set map_size",
                )
            sides.append((side or size) if r is None else None)
        return tuple(sides)

    def _fitted(self, term: PositionTerm, scopes: Shape) -> Tensor:
        """Fits a table to maps of another size, along the axes of the scope None."""
        lengths = list(term.scope)
        axes = term.geometry.along(len(scopes))
        extents = []
        for number, r in enumerate(scopes):
            last_query = (term.query_size[number] - 1) * axes[number].query_strides
            extent = tensors.largest(term.context_size[number], last_query + 1)
            extents.append(extent)
            if r is None:
                is_causal = number == self.causal_axis
                lengths[number] = extent if is_causal else 2 * extent - 1
        if self.resize == "interpolate":
            return relative_positions.resize_table(term.table, lengths)
        for extent, size in zip(extents, self.map_size, strict=True):
            if size is None:
                continue
            if not isinstance(extent, int):
                K.check_at_most(
                    extent, size, "the map is larger than the position table"
                )
            elif extent > size:
                raise invalid(
                    "the size of the map",
                    f"at most {self.map_size}",
                    tuple(extents),
                    f"resize='interpolate' allows any size; {OF_ZOO}",
                )
        return term.table


@keras.saving.register_keras_serializable(package="lambdanet")
class UnstructuredPositionEmbedding(PositionEmbedding):
    """One embedding per pair of a query and a context position, for inputs that are no grid: [n, m, k].

    Args:
      key_dim, intra_depth, num_lambdas, embeddings_initializer: as in `PositionEmbedding`.
      num_queries: n; default: as in the first input.
      num_context: m; default: as in the first input.

    Raises:
      InputError: for a size that is not known, or an input with more positions than the table.
    """

    def __init__(
        self,
        key_dim: int | None = None,
        intra_depth: int | None = None,
        num_lambdas: int | None = None,
        num_queries: int | None = None,
        num_context: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(key_dim, intra_depth, num_lambdas, **kwargs)
        self.num_queries: Any = check_optional_count("num_queries", num_queries)
        self.num_context: Any = check_optional_count("num_context", num_context)

    def _create_table(self, query_size: Shape, context_size: Shape) -> None:
        self.num_queries = _count("num_queries", self.num_queries, query_size)
        self.num_context = _count("num_context", self.num_context, context_size)
        self.table = self._add_table([self.num_queries, self.num_context])

    def _apply_term(
        self, term: PositionTerm, mask: Tensor | None, has_past: bool
    ) -> Tensor:
        n, m = self._checked_counts(term)
        embeddings = _first_pairs(term.table, n, m)
        axis = self.causal_axis
        if axis is not None and mask is None:
            strides = term.geometry.along(len(term.query_size))[axis].query_strides
            mask = reference.causal_mask(
                term.query_size, term.context_size, axis, strides
            )
        outputs = products.apply_embeddings(term, embeddings, mask)
        return term.geometry.pool(outputs)

    def _read_pairs(self, term: PositionTerm, chosen: Any, has_past: bool) -> Tensor:
        _, m = self._checked_counts(term)
        return K.take(K.convert_to_tensor(term.table), chosen, axis=0)[:, :m]

    def _checked_counts(self, term: PositionTerm) -> tuple[tensors.Size, tensors.Size]:
        """Returns n and m of a term; `InputError` where the table has fewer."""
        n = tensors.product(term.query_size)
        m = tensors.product(term.context_size)
        for positions, size, kind in (
            (n, self.num_queries, "query"),
            (m, self.num_context, "context"),
        ):
            if not isinstance(positions, int):
                K.check_at_most(
                    positions, size, f"more {kind} positions than the table has"
                )
            elif positions > size:
                raise invalid(
                    f"{kind} positions",
                    f"at most {size}, those of the table",
                    positions,
                )
        return n, m


def _count(name: str, count: Any, size: Shape) -> int:
    """Returns the number of positions of a table: the argument or, by default, that of the first map."""
    if count is not None:
        return count
    if None in size:
        raise invalid(
            "the map of unstructured positions",
            "of known size",
            tuple(size),
            f"or set {name}",
        )
    return tensors.product(size)


@tensors.constant_folding
def _first_pairs(table: Tensor, n: tensors.Size, m: tensors.Size) -> Tensor:
    """Returns the embeddings of the first queries and context positions: [.., .., k, u] -> [n, k, m * u]."""
    *_, k, u = table.shape
    return K.reshape(
        K.transpose(K.convert_to_tensor(table)[:n, :m], [0, 2, 1, 3]), [n, k, m * u]
    )
