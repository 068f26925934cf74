# SPDX-License-Identifier: Apache-2.0
"""The lambda layer of LambdaUNet, for stacks of slices (Ou et al. 2021, arXiv 2104.13917)."""

from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Shape, Tensor, keras
from lambdanet.backend.tensors import sizes
from lambdanet.core.errors import InputError, invalid
from lambdanet.layers.argument_checks import check_scope
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.layers.position_embedding import RelativePositionEmbedding

# Arguments of a lambda layer that have one value here.
FIXED = {"causal": False, "strides": 1, "pool_size": 1}


@keras.saving.register_keras_serializable(package="lambdanet")
class SliceLambdaLayer(LambdaLayer):
    """Lambda layer in 2.5 dimensions: within each slice of a stack, and at one place across slices.

    With the letters of `LambdaLayer`, and s the number of a slice, a query has the lambda

      lambda_sn = sum over m of (softmax(K_s)_m + E_nm) V_sm^T + sum over z of F_z V_(s+z)n^T:

    the content and the positions of its own slice, and a second table of embeddings F for the slices around
    it.

    Input: stacks [b, slices, h, w, c]. Output: the same shape with `filters` channels. All but the channels
    may be unknown and may change from call to call.

    Args:
      filters: as in `LambdaLayer`.
      slice_scope: the number of embeddings in F, odd: the slices, its own in the middle, in which a query
        sees its own place.
      **kwargs: other arguments of `LambdaLayer`, for one slice, but `causal`, `strides` and `pool_size`, such
        as `scope` for E. With `position_bias`, both tables have one.

    Raises:
      InputError: as in `LambdaLayer`; for an input that is no stack, or one of fewer slices than
        `slice_scope` needs: with (slice_scope + 1) / 2, each embedding is used.

    Example:
      >>> layer = SliceLambdaLayer(filters=64, scope=3, slice_scope=3)
      >>> tuple(layer(keras.ops.zeros([2, 6, 14, 10, 32])).shape)
      (2, 6, 14, 10, 64)
    """

    PARTS = (*LambdaLayer.PARTS, "slice_position")

    def __init__(self, filters: int | None = None, slice_scope: int = 3, **kwargs: Any):
        for name, value in FIXED.items():
            if kwargs.get(name, value) != value:
                raise invalid(f"{name} of a SliceLambdaLayer", f"{value}", kwargs[name])
        super().__init__(filters, **kwargs)
        if self.implementation == "reference":
            name = "implementation of a SliceLambdaLayer"
            raise invalid(name, "'auto' or a form", "reference")
        self.slice_scope = check_scope(slice_scope, "slice_scope")
        self.slice_position = RelativePositionEmbedding(
            self.key_dim,
            self.intra_depth,
            self.num_lambdas,
            scope=(self.slice_scope, 1),
            use_bias=getattr(self.position, "use_bias", False),
            embeddings_initializer=getattr(
                self.position, "embeddings_initializer", None
            ),
            dtype=self.dtype_policy,
            name="slice_position",
        )

    def check_call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> None:
        others = [*args, *(x for name, x in kwargs.items() if name != "training")]
        if any(x is not None and x is not False for x in others):
            raise InputError("a SliceLambdaLayer takes no context, mask or state")
        self._check_slices(inputs.shape)
        super().check_call(inputs, **kwargs)

    def build(self, input_shape: Shape) -> None:
        self._check_slices(input_shape)
        b, slices, *size, channels = input_shape
        super().build((b, *size, channels))
        self.input_rank = 5
        # Positions of a slice are on one axis.
        self.slice_position.build_for([slices, None], [slices, None])

    def _check_slices(self, shape: Shape) -> None:
        """Checks the shape of a stack, and that it has a slice for each embedding."""
        if len(shape) != 5:
            accepted = "[b, slices, h, w, c]"
            raise invalid("the shape of the input", accepted, tuple(shape))
        slices = shape[1]
        needed = self.slice_scope // 2 + 1
        if slices is not None and slices < needed:
            accepted = f"at least {needed} for slice_scope={self.slice_scope}"
            raise invalid("the number of slices", accepted, slices)

    def _content_lambda(
        self, keys: Tensor | None, values: Tensor, padding_mask: Tensor | None
    ) -> Tensor | None:
        """Returns the content lambda of each slice, [b * slices, k, v]."""
        return super()._content_lambda(_each_slice(keys), _each_slice(values), None)

    def _apply_lambdas(
        self, queries: Tensor, values: Tensor, content: Any, **options: Any
    ) -> Tensor:
        b, slices, height, width = sizes(queries)[:4]  # [b, slices, h, w, ...]
        within = super()._apply_lambdas(
            _each_slice(queries), _each_slice(values), content, **options
        )
        stack = [b, slices, height * width]
        across = self.slice_position(
            _with_axes(queries, stack),
            _with_axes(values, stack),
            geometry=self.geometry,
            **options,
        )
        outputs = K.reshape(within, sizes(across)) + across
        return _with_axes(outputs, [b, slices, height, width])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "slice_scope": self.slice_scope}


def _each_slice(x: Any) -> Any:
    """[b, slices, h, w, ...] -> [b * slices, h, w, ...]."""
    if x is None:
        return None
    b, slices, *size = sizes(x)[:4]
    return _with_axes(x, [b * slices, *size])


def _with_axes(x: Tensor, axes: list[Any]) -> Tensor:
    """Returns the same positions along other axes, with the last two as they are."""
    return K.reshape(x, [*axes, *sizes(x)[-2:]])
