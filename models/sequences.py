# SPDX-License-Identifier: Apache-2.0
"""LambdaResNets for sequences (Temporal Lambda Networks, Tura et al. 2021, arXiv 2104.08086).

The causal networks have the same number of parameters. Their lambda layers see 22 positions before their own,
where the others see 11 on each side; both have 23 embeddings. Their convolutions and windows end with their
own position, so that `lambdanet.streaming_model` can compute them chunk by chunk.
"""

import dataclasses
from pathlib import Path
from typing import Any

from lambdanet.backend import Tensor, compat, keras
from lambdanet.core.errors import check_count, check_known, check_natural
from lambdanet.layers.argument_checks import check_optional_count, check_rates
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.models.layer_builder import LayerBuilder, logits_dtype
from lambdanet.models.weights import weight_files

STEM_FILTERS = 16
SCOPE = 23
# The weights that are in this package, by network.
PACKAGED = {"lambda_resnet18_1d_causal": ("mnist1d",)}


@dataclasses.dataclass(frozen=True)
class SequenceNetwork:
    """A LambdaResNet for sequences as data.

    Attributes:
      filters: the channels of each stage, of two blocks.
      strides: the strides of the first block of each stage, after strides of 2 in the stem.
      causal: whether an output depends only on the positions up to its own.
    """

    filters: tuple[int, ...] = (24, 36, 48, 60)
    strides: tuple[int, ...] = (1, 2, 2, 2)
    causal: bool = False

    def features(self, x: Tensor, builder: LayerBuilder) -> Tensor:
        """Builds the trunk: [b, n, c] -> [b, about n / 16, filters of the last stage]."""
        padding = "causal" if self.causal else "valid"
        x = builder.convolution(x, STEM_FILTERS, 3, 1, "stem", padding=padding)
        x = builder.norm_act(x, "stem")
        # The input is not below 0, so that zeros leave a maximum as it is.
        x = keras.layers.ZeroPadding1D((1, 0 if self.causal else 1), name="pool_pad")(x)
        x = keras.layers.MaxPooling1D(3, 2, name="pool")(x)
        stages = zip(self.filters, self.strides, strict=True)
        for stage, (filters, strides) in enumerate(stages, start=1):
            x = self._block(builder, x, filters, strides, f"stage{stage}_block1")
            x = self._block(builder, x, filters, 1, f"stage{stage}_block2")
        return x

    def _block(
        self, builder: LayerBuilder, x: Tensor, filters: int, strides: int, name: str
    ) -> Tensor:
        """A convolution, a lambda layer and a shortcut: [b, n, c] -> [b, n / strides, filters]."""
        residual = x
        changes = strides > 1 or x.shape[-1] != filters
        padding = "causal"
        if not self.causal:
            x = keras.layers.ZeroPadding1D(1, name=f"{name}_pad")(x)
            padding = "valid"
        conv = f"{name}_conv"
        x = builder.convolution(x, filters, 3, strides, conv, padding=padding)
        x = builder.norm_act(x, conv)
        layer = LambdaLayer(
            filters,
            # A causal table has half of its scope: SCOPE embeddings in both cases.
            scope=2 * SCOPE - 1 if self.causal else SCOPE,
            causal=self.causal,
            kernel_regularizer=builder.kernel_regularizer,
            name=f"{name}_lambda",
        )
        x = layer(x)
        if changes:
            sides = (2, 0) if self.causal else (1, 1)
            x = keras.layers.ZeroPadding1D(sides, name=f"{name}_mean_pad")(x)
            x = keras.layers.AveragePooling1D(3, 1, name=f"{name}_mean")(x)
            shortcut = f"{name}_shortcut"
            residual = builder.convolution(residual, filters, 1, strides, shortcut)
            residual = builder.norm(residual, f"{shortcut}_norm")
        x = builder.norm_act(x, f"{name}_lambda")
        x = compat.Add(name=f"{name}_add")([x, residual])
        return builder.act(x, f"{name}_act")


MODELS = {
    "lambda_resnet18_1d": SequenceNetwork(),
    "lambda_resnet18_1d_2x": SequenceNetwork((48, 72, 96, 120)),
    "lambda_resnet18_1d_causal": SequenceNetwork(causal=True),
    "lambda_resnet18_1d_2x_causal": SequenceNetwork((48, 72, 96, 120), causal=True),
}


@compat.channels_last()
def create_sequence_model(
    name: str,
    num_classes: int = 35,
    in_channels: int = 40,
    length: int | None = None,
    weights: str | Path | None = None,
    dropout_rate: float = 0.0,
    kernel_regularizer: Any = None,
    layer_name: str | None = None,
) -> keras.Model:
    """Builds a network for sequences.

    Args:
      name: "lambda_resnet18_1d" (87,423 parameters with the defaults), "lambda_resnet18_1d_2x" (twice as
        wide), or one of them with "_causal" at its end.
      num_classes: the number of logits; 0 for the map that is averaged for them, [b, about n / 16, d].
      in_channels: the channels of a position, such as the bands of a spectrogram.
      length: the number of positions; None leaves it open.
      weights: "mnist1d", a set in this package for the causal network with 10 classes and one channel; a
        `.safetensors` file of the same network; None: random weights.
      dropout_rate: the rate of dropout before the classifier, in [0, 1).
      kernel_regularizer: the regularizer of every kernel.
      layer_name: the name of the model as a layer of another one, in which names differ; None: `name`.

    Returns:
      A functional model: [b, n, in_channels] -> float32 logits [b, num_classes].

    Raises:
      InputError: the name or the weights are unknown, a value is out of range, or the weights do not fit.

    Example:
      >>> model = create_sequence_model("lambda_resnet18_1d", num_classes=35, in_channels=40)
      >>> tuple(model(keras.ops.zeros([1, 100, 40])).shape)
      (1, 35)
    """
    check_known("model", name, MODELS)
    num_classes = check_natural("num_classes", num_classes)
    in_channels = check_count("in_channels", in_channels)
    length = check_optional_count("length", length)
    check_rates(dropout_rate=dropout_rate)
    inputs = keras.Input([length, in_channels], name="sequences")
    builder = LayerBuilder(kernel_regularizer, activation="relu")
    x = MODELS[name].features(inputs, builder)
    if num_classes:
        x = keras.layers.GlobalAveragePooling1D(name="mean")(x)
        x = keras.layers.Dropout(dropout_rate, name="dropout")(x)
        logits = keras.layers.Dense(
            num_classes,
            kernel_regularizer=kernel_regularizer,
            dtype=logits_dtype(),
            name="logits",
        )
        x = logits(x)
    model = keras.Model(inputs, x, name=layer_name or name)
    if weights is not None:
        weight_files.load_weights(model, _weights_file(name, weights))
    return model


def _weights_file(name: str, weights: str | Path) -> Path:
    """Returns the file of a set of weights: one in this package, or a path."""
    path = Path(weights)
    if path.suffix == ".safetensors":
        return path
    check_known(f"weights of {name}", str(weights), PACKAGED.get(name, ()))
    return Path(__file__).with_name(f"{name}_{weights}.safetensors")
