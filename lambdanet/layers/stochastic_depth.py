# SPDX-License-Identifier: Apache-2.0
"""Stochastic depth (Huang et al. 2016)."""

from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Shape, Tensor, keras
from lambdanet.core.errors import check_natural
from lambdanet.layers.argument_checks import check_rates
from lambdanet.layers.layer import PointwiseLayer


@keras.saving.register_keras_serializable(package="lambdanet")
class StochasticDepth(PointwiseLayer):
    """Drops the residual branch of whole examples while training, and scales the kept ones by 1 / (1 - rate).

    Input and output: [b, ...]; at inference the identity.

    Args:
      rate: the probability that an example's branch is dropped, in [0, 1).
      seed: seed of the random numbers, not negative; default: the seed of `keras.utils.set_random_seed`.

    Call arguments:

    * inputs: the output of the residual branch, [b, ...].
    * training: whether examples are dropped. None, the default: as in `keras.layers.Dropout`, that is, while
      the model trains.

    Raises:
      InputError: for a rate outside [0, 1), or another seed.
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        check_rates(rate=rate)
        self.rate = rate
        self.seed = None if seed is None else check_natural("seed", seed)
        self._dropout = keras.layers.Dropout(
            rate, seed=self.seed, dtype=self.dtype_policy
        )

    def build(self, input_shape: Shape) -> None:
        self._dropout.build(input_shape)
        super().build(input_shape)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        kept = K.ones(
            [K.shape(inputs)[0]] + [1] * (len(inputs.shape) - 1), inputs.dtype
        )
        return inputs * self._dropout(kept, training=training)
