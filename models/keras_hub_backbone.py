# SPDX-License-Identifier: Apache-2.0
"""A network of the zoo as a backbone of KerasHub, for the tasks of that library."""

from typing import Any

from keras_hub.models import FeaturePyramidBackbone

from lambdanet.backend import keras
from lambdanet.models import zoo


@keras.saving.register_keras_serializable(package="lambdanet")
class LambdaNetBackbone(FeaturePyramidBackbone):
    """The trunk of a network of the zoo: images [b, h, w, c] -> its last map, [b, h / 32, w / 32, d].

    `pyramid_outputs` has the maps at strides 4, 8, 16 and 32 as "P2" to "P5". Needs Keras 3 and keras-hub.

    Args:
      name: one of `lambdanet.list_models()`.
      options: arguments of `lambdanet.create_model`, such as `{"weights": "imagenet", "input_size": 256}`.
      **kwargs: arguments of a KerasHub backbone.

    Raises:
      InputError: as `create_model`.
    """

    def __init__(self, name: str, options: dict[str, Any] | None = None, **kwargs: Any):
        trunk = zoo.create_model(name, **(options or {}), features_only=True)
        super().__init__(inputs=trunk.input, outputs=trunk.output["5"], **kwargs)
        self.pyramid_outputs = {
            f"P{level}": features for level, features in trunk.output.items()
        }
        self.network = name
        self.options = options or {}

    @classmethod
    def from_preset(
        cls, preset: str, load_weights: bool = True, **kwargs: Any
    ) -> "LambdaNetBackbone":
        """Returns the backbone of a network of the zoo, with its published weights."""
        return cls(preset, {"weights": "imagenet"} if load_weights else None, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of `__init__` but `weights`, which a saved model contains."""
        options = {
            name: value for name, value in self.options.items() if name != "weights"
        }
        return {"name": self.network, "options": options, "trainable": self.trainable}
