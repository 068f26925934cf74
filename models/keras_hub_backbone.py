# SPDX-License-Identifier: Apache-2.0
"""A network of the zoo as a backbone of KerasHub, for the tasks of that library."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_hub.models import FeaturePyramidBackbone

from lambdanet.backend import compat, keras
from lambdanet.core.errors import check_count, check_known
from lambdanet.layers.layer import check_unquantized
from lambdanet.models import zoo
from lambdanet.models.output_stride import NATIVE, last_by_stride

LEVELS = (2, 3, 4, 5)


class UnquantizedFiles:
    """A model of KerasHub that is saved as long as no part is quantized."""

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Saves the model as Keras's does; `InputError` where a part is quantized."""
        check_unquantized(self)
        super().save(*args, **kwargs)  # type: ignore[misc]

    def save_to_preset(self, *args: Any, **kwargs: Any) -> None:
        """Writes a folder as KerasHub's does; `InputError` where a part is quantized."""
        check_unquantized(self)
        super().save_to_preset(*args, **kwargs)  # type: ignore[misc]


@keras.saving.register_keras_serializable(package="lambdanet")
class LambdaNetBackbone(UnquantizedFiles, FeaturePyramidBackbone):
    """The trunk of a network of the zoo: images [b, h, w, c] -> the map that is pooled for its classifier.

    `pyramid_outputs` has the last maps at strides 4, 8, 16 and 32 as "P2" to "P5", those of KerasHub's
    DeepLabV3 segmenter and RetinaNet detector; with an `output_stride` of 16, the last one is "P4". Needs
    Keras 3 and keras-hub.

    Args:
      name: one of `lambdanet.list_models()`.
      options: arguments of `lambdanet.create_model`, such as `{"weights": "imagenet", "input_size": 256}`.
      dtype: the precision of all layers, a policy of Keras or its name; None: Keras's global one.
      **kwargs: arguments of a KerasHub backbone.

    Raises:
      InputError: as `create_model`.
    """

    data_format = "channels_last"  # which KerasHub's tasks read

    def __init__(
        self,
        name: str,
        options: dict[str, Any] | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ):
        options = options or {}
        policy = keras.dtype_policies.get(dtype)
        policy = getattr(policy, "default_policy", policy)
        with compat.dtype_policy(policy):
            trunk = zoo.create_model(
                name,
                **options,
                num_classes=0,
                pooling=None,
                features_only=True,
                out_levels=[*LEVELS, zoo.EMBEDDING],
            )
        maps = trunk.output
        outputs = maps[zoo.EMBEDDING]
        super().__init__(inputs=trunk.input, outputs=outputs, dtype=policy, **kwargs)
        self.network = name
        self.options = options
        levels = {str(level): maps[str(level)] for level in LEVELS}
        by_stride = last_by_stride(levels, options.get("output_stride", NATIVE))
        self.pyramid_outputs = {f"P{level}": x for level, x in by_stride.items()}

    @classmethod
    def from_preset(
        cls, preset: str, load_weights: bool = True, **kwargs: Any
    ) -> "LambdaNetBackbone":
        """Returns the backbone of a network of the zoo, with its published weights, or the one in a folder.

        Args:
          preset: one of `lambdanet.list_models()`, or a preset of KerasHub such as a folder.
          load_weights: whether the weights are those of the preset, or random.
          **kwargs: arguments of the backbone.

        Raises:
          InputError: there is no network of this name, and no folder.
        """
        if Path(preset).is_dir() or "://" in preset:
            return super().from_preset(preset, load_weights, **kwargs)
        return cls(preset, {"weights": "imagenet"} if load_weights else None, **kwargs)

    def default_lora_layer_names(self) -> list[str]:
        """Returns the projections of lambda and attention layers that LoRA is for by default."""
        return ["queries", "values"]

    def enable_lora(
        self, rank: int, target_layer_names: Sequence[str] | None = None
    ) -> None:
        """Freezes the backbone but for low-rank adapters (LoRA) of some layers, as KerasHub's backbones do.

        Args:
          rank: the rank of the adapters, at least 1.
          target_layer_names: the names of projections or convolutions; none: `default_lora_layer_names`.

        Raises:
          InputError: the rank is below 1, or there is no such layer, as by default in networks without lambda
            and attention layers.
        """
        check_count("rank", rank)
        accepted = {
            layer.name
            for layer in compat.sublayers(self)
            if hasattr(layer, "enable_lora")
        }
        names = target_layer_names or self.default_lora_layer_names()
        for name in names:
            check_known("layer in target_layer_names", name, accepted)
        super().enable_lora(rank, names)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of `__init__` but `weights`, which a saved model contains."""
        options = {
            name: value for name, value in self.options.items() if name != "weights"
        }
        config = {"name": self.network, "options": options, "trainable": self.trainable}
        # KerasHub's presets take no "mixed_float16" by itself.
        policy = keras.dtype_policies.DTypePolicyMap(self.dtype_policy)
        return {**config, "dtype": keras.dtype_policies.serialize(policy)}
