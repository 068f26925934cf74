# SPDX-License-Identifier: Apache-2.0
"""Uses a network of the zoo as a backbone of KerasHub, with Keras 3 on torch."""

import tempfile

import keras
import keras_hub
import numpy as np

import lambdanet
from lambdanet.errors import InputError
from lambdanet.models.keras_hub_backbone import LambdaNetBackbone

IMAGES = np.random.default_rng(0).normal(size=[2, 32, 32, 3]).astype("float32")


def main() -> None:
    keras.utils.set_random_seed(0)
    trunk = lambdanet.create_model("lambda_resnet_tiny", input_size=32, features_only=True)
    backbone = LambdaNetBackbone("lambda_resnet_tiny", {"input_size": 32})
    backbone.set_weights(trunk.get_weights())
    expected = trunk.predict(IMAGES, verbose=0)
    pyramid = keras.Model(backbone.input, backbone.pyramid_outputs).predict(IMAGES, verbose=0)
    for level, features in expected.items():
        np.testing.assert_array_equal(pyramid[f"P{level}"], features)
    np.testing.assert_array_equal(backbone.predict(IMAGES, verbose=0), expected["5"])

    classifier = keras_hub.models.ImageClassifier(backbone=backbone, num_classes=2, preprocessor=None)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    classifier.compile(keras.optimizers.SGD(0.01), loss)
    losses = classifier.fit(IMAGES, np.array([0, 1]), epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    with tempfile.TemporaryDirectory() as folder:
        backbone.save(f"{folder}/backbone.keras")
        loaded = keras.models.load_model(f"{folder}/backbone.keras")
    np.testing.assert_array_equal(loaded.predict(IMAGES, verbose=0), backbone.predict(IMAGES, verbose=0))
    try:
        LambdaNetBackbone.from_preset("lambda_resnet_51")
    except InputError as error:
        assert "did you mean lambda_resnet_50" in str(error)


if __name__ == "__main__":
    main()
