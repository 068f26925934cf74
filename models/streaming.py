# SPDX-License-Identifier: Apache-2.0
"""Streaming models: a causal network as one step over a chunk of its input, with a state in and out."""

from collections.abc import Mapping, Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Tensor, compat, keras
from lambdanet.core.errors import InputError, check_count, invalid
from lambdanet.layers.batch_norm import ChannelAffine
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.layers.layer import Layer
from lambdanet.models.inference import for_inference
from lambdanet.ops.causal_content import add_exactly

# Layers that compute every position from that position alone.
POINTWISE = (
    ChannelAffine,
    keras.layers.Activation,
    keras.layers.Add,
    keras.layers.Average,
    keras.layers.Dense,
    keras.layers.ELU,
    keras.layers.Embedding,
    keras.layers.Identity,
    keras.layers.LeakyReLU,
    keras.layers.Maximum,
    keras.layers.Minimum,
    keras.layers.Multiply,
    keras.layers.ReLU,
    keras.layers.Rescaling,
    keras.layers.Subtract,
)
# Layers that compute one position from several neighbors.
WINDOWS = (
    keras.layers.AveragePooling1D,
    keras.layers.Conv1D,
    keras.layers.MaxPooling1D,
)


@keras.saving.register_keras_serializable("lambdanet")
class StreamingModel(keras.Model):
    """The result of `streaming_model`: {"inputs": chunk, **state} -> {"outputs": y, **state}."""

    def initial_state(self, batch_size: int = 1) -> dict[str, Tensor]:
        """Returns the state before the first chunk: zeros, or the lowest number for each maximum.

        Args:
          batch_size: b.
        """
        batch_size = check_count("batch_size", batch_size)
        state = {}
        for name, spec in self.input.items():
            if name != "inputs":
                state[name] = K.zeros([batch_size, *spec.shape[1:]], spec.dtype)
            if name.endswith("maximum"):
                state[name] = state[name] + K.dtype_min(spec.dtype)
        return state

    def step(
        self, inputs: Tensor, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes one chunk after those of the state.

        Args:
          inputs: [b, chunk_size, ...].
          state: as of `initial_state`, or of the step before.

        Returns:
          The model's outputs for the positions of the chunk, and the state of the next step.
        """
        inputs = K.convert_to_tensor(inputs)
        results = self({"inputs": inputs, **state})
        return results.pop("outputs"), results


@keras.saving.register_keras_serializable("lambdanet")
class PastPositions(Layer):
    """Puts the last positions of earlier chunks in front of a chunk.

    Call arguments:

    * inputs: [b, n, c].
    * past: the last positions before them, [b, p, c].

    Returns both together, [b, p + n, c], and the last p of them.
    """

    def call(self, inputs: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        extended = K.concatenate([past, inputs], axis=1)
        return extended, extended[:, inputs.shape[1] :]


@keras.saving.register_keras_serializable("lambdanet")
class RunningMean(Layer):
    """Averages all positions so far, exactly over any number of chunks.

    Call arguments:

    * inputs: [b, n, c].
    * total, error: the sum of earlier positions, and what its rounding has cut off, [b, c] in float32.
    * count: the number of earlier positions, [b, 1].

    Returns the mean, [b, c], and the new total, error and count.
    """

    def __init__(self, **kwargs: Any):
        # The sums keep their precision.
        super().__init__(autocast=False, **kwargs)

    def call(
        self, inputs: Tensor, total: Tensor, error: Tensor, count: Tensor
    ) -> tuple[Tensor, ...]:
        total, error = add_exactly(
            total, error, K.sum(K.cast(inputs, total.dtype), axis=1)
        )
        count = count + inputs.shape[1]
        return K.cast(total / count, self.compute_dtype), total, error, count


def streaming_model(model: keras.Model, chunk_size: int | None = None) -> keras.Model:
    """Returns a causal model as a step over one chunk of its input, with the state as inputs and outputs.

    The outputs of the chunks, one after the other, are those of the model for the whole input; an average
    over all positions becomes that over all positions so far. Every step takes the same time and memory, and
    Keras's own `export` writes it as a SavedModel or a LiteRT file.

    Args:
      model: a functional or Sequential model with one input, [b, n, ...], and one output, of causal lambda
        layers, layers that compute each position for itself, `Conv1D` with padding="causal", windows that see
        no later position (`AveragePooling1D`, `MaxPooling1D` and `Conv1D` of size k and strides s after
        `ZeroPadding1D((k - s, 0))`), and a `GlobalAveragePooling1D`.
      chunk_size: the positions of a chunk, a multiple of the model's strides; default: its strides.

    Returns:
      A `StreamingModel` with a copy of the weights and, as by `for_inference`, with folded normalizations:
      `initial_state(batch_size)` and `step(chunk, state)`.

    Raises:
      InputError: a layer sees later positions, or has no such form; the message names it.

    Example:
      >>> inputs = keras.Input([None, 8])
      >>> model = keras.Model(inputs, LambdaLayer(16, causal=True)(inputs))
      >>> stream = streaming_model(model)
      >>> y, state = stream.step(keras.ops.zeros([1, 1, 8]), stream.initial_state(1))
      >>> tuple(y.shape)
      (1, 1, 16)
    """
    model = for_inference(model)
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        counts = f"{len(model.inputs)} and {len(model.outputs)}"
        raise invalid("inputs and outputs of the model", "one each", counts)
    calls = [*compat.layer_calls(model)]
    stride = _total_stride(calls)
    chunk_size = stride if chunk_size is None else check_count("chunk_size", chunk_size)
    if chunk_size % stride:
        raise invalid("chunk_size", f"a multiple of {stride}, the strides", chunk_size)
    old = model.inputs[0]
    chunk = keras.Input([chunk_size, *old.shape[2:]], dtype=old.dtype, name="inputs")
    stream = _Stream(old, chunk)
    for call in calls:
        if getattr(call.layer, "mask_zero", False):
            reason = "mask_zero=True makes a padding mask: leave it out"
            raise _cannot_stream(call.layer, reason)
    compat.rebuild(calls, stream.tensors, stream.add)
    result = stream.tensors[id(model.outputs[0])]
    if stream.surplus.get(id(model.outputs[0])):
        raise _cannot_stream(calls[-1].layer, "it has no window after it")
    return StreamingModel(
        {"inputs": chunk, **stream.inputs},
        {"outputs": result, **stream.outputs},
        name=model.name,
    )


def _total_stride(calls: Sequence[compat.Call]) -> int:
    """Returns the largest distance between positions of any map, in those of the input."""
    strides: dict[int, int] = {}
    for layer, args, kwargs, outputs in calls:
        before = max(strides.get(id(x), 1) for x in K.flatten([args, kwargs]))
        for x in K.flatten(outputs):
            strides[id(x)] = before * _strides(layer)
    return max(strides.values(), default=1)


def _strides(layer: Any) -> int:
    """Returns the strides of a layer along the first axis."""
    if isinstance(layer, (LambdaLayer, *WINDOWS)):
        strides = layer.strides
        return strides if isinstance(strides, int) else strides[0]
    return 1


class _Stream:
    """A model while it is rebuilt for chunks.

    Attributes:
      tensors: the tensors for chunks, by the identity of the model's.
      surplus: the positions before a chunk that a tensor has, by the identity of the model's.
      inputs, outputs: the states of the layers so far.
    """

    def __init__(self, inputs: Any, chunk: Any):
        self.tensors = {id(inputs): chunk}
        self.surplus: dict[int, int] = {}
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}

    def add(self, call: compat.Call, args: Any, kwargs: Any) -> Any:
        """Adds a call of a layer of the model, which is a copy and may be changed; returns its output."""
        layer = call.layer
        given = K.flatten([call.args, call.kwargs])
        surplus = max(self.surplus.get(id(x), 0) for x in given)
        x = K.flatten(args)[0]
        if getattr(layer, "data_format", "channels_last") != "channels_last":
            raise _cannot_stream(layer, 'it needs data_format="channels_last"')
        if isinstance(layer, WINDOWS):
            return self._window(layer, x, surplus)
        if surplus:
            raise _cannot_stream(layer, "after ZeroPadding1D, only a window can")
        if isinstance(layer, LambdaLayer):
            return self._lambda_layer(layer, x, [args[1:], kwargs])
        if isinstance(layer, keras.layers.ZeroPadding1D):
            before, after = layer.padding
            if after:
                reason = "it adds positions at the end: pad by (n, 0)"
                raise _cannot_stream(layer, reason)
            self.surplus[id(call.results[0])] = before
            return self._with_past(layer, x, before)
        if isinstance(layer, keras.layers.GlobalAveragePooling1D):
            return self._mean(layer, x)
        if _is_pointwise(layer, K.flatten(args)):
            return layer(*args, **kwargs)
        hint = (
            "compute it after the stream, or replace it by what streaming_model names"
        )
        raise _cannot_stream(layer, f"it may see other positions: {hint}")

    def _window(self, layer: Any, x: Any, surplus: int) -> Any:
        """Adds a convolution or a pool, of windows that end with a position of the chunk."""
        strides = _strides(layer)
        if isinstance(layer, keras.layers.Conv1D):
            size = (layer.kernel_size[0] - 1) * layer.dilation_rate[0] + 1
        else:
            size = layer.pool_size[0]
        if layer.padding == "causal" and not surplus:
            x = self._with_past(layer, x, size - 1)
            layer.padding = "valid"
            return layer(x)
        needed = max(size - strides, 0)
        if surplus != needed or (needed and layer.padding != "valid"):
            hint = f'ZeroPadding1D(({needed}, 0)) before it, with padding="valid", sees none'
            raise _cannot_stream(layer, f"it sees later positions; {hint}")
        return layer(x)

    def _with_past(self, layer: Any, x: Any, count: int) -> Any:
        """Puts the last positions of earlier chunks in front of one, at first zeros."""
        if count == 0:
            return x
        past = self._input(layer, "past", (count, x.shape[2]), x.dtype)
        extended, past = PastPositions(name=f"{layer.name}_context")(x, past)
        self._output(layer, "past", past)
        return extended

    def _lambda_layer(self, layer: LambdaLayer, x: Any, others: Any) -> Any:
        if layer.causal_axis != 0:
            raise _cannot_stream(
                layer, "it is not causal along the first axis: use causal='time'"
            )
        if any(hasattr(y, "shape") for y in K.flatten(others)):
            raise _cannot_stream(layer, "it has a mask or a context: leave it out")
        # Keras takes the number of outputs from the first call, which had no state.
        layer = layer.for_inference()
        state = []
        for index, tensors in enumerate(layer.initial_state(1)):
            state.append(
                {
                    name: self._input(layer, f"{index}_{name}", x.shape[1:], x.dtype)
                    for name, x in tensors.items()
                }
            )
        y, state = layer(x, initial_state=state, return_state=True)
        for index, tensors in enumerate(state):
            for name, tensor in tensors.items():
                self._output(layer, f"{index}_{name}", tensor)
        return y

    def _mean(self, layer: Any, x: Any) -> Any:
        if layer.keepdims:
            raise _cannot_stream(layer, "it needs keepdims=False")
        sizes = {"total": x.shape[2], "error": x.shape[2], "count": 1}
        state = [
            self._input(layer, name, (size,), "float32") for name, size in sizes.items()
        ]
        y, *state = RunningMean(name=layer.name, dtype=layer.dtype_policy)(x, *state)
        for name, tensor in zip(sizes, state, strict=True):
            self._output(layer, name, tensor)
        return y

    def _input(self, layer: Any, name: str, shape: Sequence[int], dtype: Any) -> Any:
        """Adds an input of the state."""
        name = f"{layer.name}_{name}"
        if name in self.inputs:
            raise _cannot_stream(layer, "it is called twice: use a layer for each call")
        self.inputs[name] = keras.Input(shape, dtype=K.dtype_name(dtype), name=name)
        return self.inputs[name]

    def _output(self, layer: Any, name: str, tensor: Any) -> None:
        """Adds an output of the state, under the name of its input."""
        self.outputs[f"{layer.name}_{name}"] = tensor


def _is_pointwise(layer: Any, inputs: Sequence[Any]) -> bool:
    """Returns whether a layer computes every position, [b, n, ...], from that position alone."""
    rank = len(inputs[0].shape)
    # Others are a mean over positions, for each of them, or a pool of all of them.
    lengths = {x.shape[1] if len(x.shape) > 2 else None for x in inputs}
    if len(lengths) > 1 or any(len(x.shape) != rank for x in inputs):
        return False
    if isinstance(layer, keras.layers.Concatenate | keras.layers.LayerNormalization):
        axes = K.flatten(layer.axis)
        return axes in ([-1], [rank - 1])
    return isinstance(layer, POINTWISE)


def _cannot_stream(layer: Any, reason: str) -> InputError:
    kind = type(layer).__name__
    return InputError(f"layer {layer.name!r} ({kind}) cannot stream: {reason}")
