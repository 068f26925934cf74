# SPDX-License-Identifier: Apache-2.0
"""The Vision Transformer (Dosovitskiy et al. 2020) of TF Model Garden, to compare with."""

import dataclasses
from typing import Any

from lambdanet import backend as K
from lambdanet import which_keras
from lambdanet.backend import keras
from lambdanet.errors import InputError
from lambdanet.layers.layer import Layer
from lambdanet.models.architecture import Architecture

PATCH_SIZES = {"ti16": 16, "s16": 16, "b16": 16, "b32": 32, "l16": 16}


@keras.saving.register_keras_serializable("lambdanet")
class VisionTransformerTrunk(Layer):
    """A network of Model Garden without its classifier; imports Model Garden when it is built.

    Images [b, h, w, c] of one known size -> {"map": [b, h / patch, w / patch, d], "token": [b, d]}.

    Args:
      variant: "ti16", "s16", "b16", "b32" or "l16": the size, and the side of the patches in pixels.
      stochastic_depth_rate: the rate of the last block.
      is_condensed: whether to build only the first block, for counting the others by it.
    """

    def __init__(
        self,
        variant: str,
        stochastic_depth_rate: float = 0.0,
        is_condensed: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.variant = variant
        self.stochastic_depth_rate = stochastic_depth_rate
        self.is_condensed = is_condensed

    @K.plain_python  # as in all layers here
    def build(self, input_shape):
        from official.vision.modeling.backbones import vit, vit_specs

        specs = dict(vit_specs.VIT_SPECS[f"vit-{self.variant}"])
        blocks = dict(specs.pop("transformer"))
        self.num_blocks, self.hidden_size = blocks["num_layers"], specs["hidden_size"]
        if self.is_condensed:
            blocks["num_layers"] = 1
        with K.fresh_names():  # files have them
            self.network = vit.VisionTransformer(
                input_specs=keras.layers.InputSpec(shape=input_shape),
                init_stochastic_depth_rate=self.stochastic_depth_rate,
                dropout_rate=0.0,
                output_2d_feature_maps=True,
                **blocks,
                **specs,
            )
        super().build(input_shape)

    @property
    def counted_weights(self) -> list[K.Variable]:
        """The trainable weights; where only one block was built, its own once for each block."""
        return [
            weight
            for weight in self.trainable_weights
            for _ in range(self.num_blocks if self.is_condensed and "encoder_block" in weight.name else 1)
        ]

    def compute_output_shape(self, input_shape):
        b, height, width, _ = K.Shape(input_shape)
        patch = PATCH_SIZES[self.variant]
        feature_map = K.Shape([b, height // patch, width // patch, self.hidden_size])
        return {"map": feature_map, "token": K.Shape([b, self.hidden_size])}

    def call(self, images):
        outputs = dict(self.network(images))
        token = outputs.pop("pre_logits")[:, 0, 0]
        (feature_map,) = outputs.values()
        return {"map": feature_map, "token": token}


@dataclasses.dataclass(frozen=True)
class VisionTransformer(Architecture):
    """A network of TF Model Garden."""

    variant: str  # see `VisionTransformerTrunk`
    source: str = "TF Model Garden, for comparison"
    input_size: int = 224
    is_condensed: bool = False
    poolings = ("token",)

    def endpoints(self, images, builder, stochastic_depth_rate=0.0, **overrides):
        """Builds the trunk: its only map, "4" at stride 16 or "5" at stride 32, and the class "token".

        Raises:
          InputError: Keras 3 is in use, a regularizer or arguments of batch normalization were given, or the
            size of the images is unknown or not a multiple of the patches'.
        """
        name, patch = f"vit_{self.variant}", PATCH_SIZES[self.variant]
        which_keras.require_tf_keras(f"{name} of TF Model Garden")
        if not builder.is_default:
            raise InputError(
                f"{name} is there for comparison as TF Model Garden makes it: "
                "it takes neither kernel_regularizer nor batch_norm"
            )
        height, width = images.shape[1:3]
        if not height or not width or height % patch or width % patch:
            raise InputError(
                f"{name} takes images of one size, in multiples of {patch} pixels, got {height}x{width}; "
                f"pass input_size=, such as {self.input_size}"
            )
        trunk = VisionTransformerTrunk(self.variant, stochastic_depth_rate, self.is_condensed, name="trunk")
        outputs = builder.connect(trunk, images)
        return {{16: "4", 32: "5"}[patch]: outputs["map"], "token": outputs["token"]}

    def embedding(self, endpoints, builder, pooling="token"):
        """Returns what the classifier reads, the class token [b, d]."""
        return endpoints["token"]

    def condensed(self):
        return dataclasses.replace(self, is_condensed=True), {}


MODELS = {f"vit_{variant}": VisionTransformer(variant) for variant in PATCH_SIZES}
