# SPDX-License-Identifier: Apache-2.0
"""The state of a causal lambda layer, with which it computes one position or chunk after the other."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from lambdanet import backend as K
from lambdanet.backend import Shape, Tensor, keras
from lambdanet.backend.tensors import sizes
from lambdanet.errors import InputError, check_count, invalid
from lambdanet.layers.argument_checks import check_state
from lambdanet.layers.layer import Layer
from lambdanet.layers.position_embedding import PositionEmbedding
from lambdanet.ops import causal_content
from lambdanet.ops.position_term import Geometry

# The tensors of each lambda by name; see `CausalLayer.initial_state`.
LambdaState: TypeAlias = dict[str, Tensor]
State: TypeAlias = list[LambdaState]


class CausalLayer(Layer):
    """The part of a lambda layer that knows its causal axis and its state.

    Attributes:
      causal: as in `LambdaLayer`.
      causal_axis: the number of the causal axis among the spatial axes; None: the layer is not causal.
    """

    causal: bool | int | str
    causal_axis: int | None
    content: bool
    intra_depth: int
    key_dim: int
    key_normalization: str | None
    position: PositionEmbedding | None
    geometry: Geometry
    _map_size: Shape
    _num_lambdas: int
    _value_dim: int

    def initial_state(
        self, batch_size: int, size: Sequence[int] | None = None
    ) -> State:
        """Returns the state of a causal layer before the first position, of constant size.

        Args:
          batch_size: b.
          size: the spatial size of the inputs, of which the number along the causal axis does not matter;
            default: that of the input for which the layer was built.

        Returns:
          One dict of tensors for each lambda, in `call`, `step` and a loop of any engine: "maximum",
          [b, u * k, 1], "total" and "error", [b, u * k, v + 1], are sums of content
          (`lambdanet.ops.causal_content`), and "values", [b, *size, v, u], are those that a scope still sees.

        Raises:
          InputError: the layer is not built or not causal, or has positions over the whole causal axis.
        """
        self._check_built()
        size = self._map_size if size is None else tuple(size)
        frame = [n for axis, n in enumerate(size) if axis != self._state_axis()]
        if len(size) != len(self._map_size) or None in frame:
            accepted = f"{len(self._map_size)} numbers, one for each axis"
            raise invalid("size", accepted, size)
        return self._zero_state([check_count("batch_size", batch_size), *size])

    def step(
        self, inputs: Tensor, state: State, training: bool | None = None
    ) -> tuple[Tensor, State]:
        """Computes one position of a sequence, or one frame of a volume, after those of the state.

        Args:
          inputs: [b, c], or [b, *frame_size, c] without the causal axis.
          state: as of `initial_state`, or of the step before.
          training: as in `call`.

        Returns:
          outputs: [b, d] or [b, *frame_size, d], those of `call` for all positions so far, at the last.
          state: that of the next step.

        Raises:
          InputError: for a state of another batch or layer, or strides along the causal axis.
        """
        axis = 1 + self._state_axis()
        outputs, state = self(
            K.expand_dims(inputs, axis),
            training=training,
            initial_state=state,
            return_state=True,
        )
        return outputs[(slice(None),) * axis + (0,)], state

    def compute_output_spec(self, inputs: Tensor, **kwargs: Any) -> Any:
        outputs = super().compute_output_spec(inputs, **kwargs)
        if not kwargs.get("return_state"):
            return outputs
        specs = self._state_specs(inputs.shape)
        state = []
        for _ in range(self._num_lambdas):
            state.append({name: keras.KerasTensor(*specs[name]) for name in specs})
        return outputs, state

    def _state_axis(self) -> int:
        """Returns the causal axis of a layer that can have a state."""
        if self.causal_axis is None:
            raise invalid("causal", "True, 'time' or an axis, for a state", self.causal)
        return self.causal_axis

    def _state_specs(self, shape: Sequence[Any]) -> dict[str, tuple[Any, str]]:
        """Returns the shapes and types of the state of a lambda, for inputs [b, *size, ...]."""
        axis = self._state_axis()
        b, *size = shape[: 1 + len(self._map_size)]
        v = self._value_dim
        u = self.intra_depth
        specs: dict[str, tuple[Any, str]] = {}
        if self.content:
            dtype = "float64" if self.compute_dtype == "float64" else "float32"
            channels = self.key_dim * u
            specs["maximum"] = (b, channels, 1), dtype
            specs["total"] = (b, channels, v + 1), dtype
            specs["error"] = specs["total"]
        if self.position is not None and self.position.num_past():
            size[axis] = self.position.num_past()
            specs["values"] = (b, *size, v, u), self.compute_dtype
        return specs

    def _zero_state(self, shape: Sequence[Any]) -> State:
        """Returns the state before the first position of inputs [b, *size, ...]."""
        specs = self._state_specs(shape)
        zeros = {name: K.zeros(*spec) for name, spec in specs.items()}
        if self.content:
            lowest = K.dtype_min(zeros["maximum"].dtype)
            zeros["maximum"] = zeros["maximum"] + lowest
        return [dict(zeros) for _ in range(self._num_lambdas)]

    def _check_state(self, state: Any, inputs: Tensor, mask: Any) -> None:
        """Checks a call with a state, or with None for one that returns its first."""
        if self.causal is False:
            raise invalid("causal", "True, 'time' or an axis, for a state", False)
        if mask is not None:
            accepted = "None with a state, which a padding_mask may have"
            raise invalid("mask", accepted, tuple(mask.shape[-2:]))
        if state is None and not self.built:
            return
        self._check_built()
        specs = self._state_specs(inputs.shape)
        if state is not None:
            shapes = {name: shape for name, (shape, _) in specs.items()}
            check_state(state, [shapes] * self._num_lambdas)
        axis = self._state_axis()
        strides = self.geometry.along(len(self._map_size))[axis].strides
        length = inputs.shape[axis + 1]
        if length is not None and length % strides:
            accepted = f"divisible by {strides}, the strides, for a state"
            raise invalid("the length of the inputs", accepted, length)

    def _check_built(self) -> None:
        if not self.built:
            raise InputError(
                f"{self.name} has no state before it is built: call it once"
            )

    def _after_past(self, values: Tensor, state: LambdaState) -> tuple[Tensor, Tensor]:
        """Returns the values of a state and these, [b, *size, v, u], and those of the next state."""
        axis = self._state_axis() + 1
        context = K.concatenate([state["values"], values], axis=axis)
        last = slice(sizes(values)[axis], None)
        return context, context[(slice(None),) * axis + (last,)]

    def _apply_past_content(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        padding_mask: Tensor | None,
        state: LambdaState | None,
    ) -> tuple[Tensor, LambdaState]:
        """Applies to each query the content of the positions up to its own, and those of the state."""
        sums = None
        if state is not None:
            sums = causal_content.State(
                state["maximum"], state["total"], state["error"]
            )
        axis = self._state_axis()
        outputs, sums = causal_content.apply(
            queries,
            keys,
            values,
            self.key_normalization,
            axis,
            self.geometry.along(len(self._map_size))[axis].strides,
            padding_mask,
            sums,
        )
        return outputs, sums._asdict()
