# SPDX-License-Identifier: Apache-2.0
"""Builds, trains, saves and loads KerasHub's segmenter, detector and classifier on networks of the zoo."""

import json
import tempfile
from pathlib import Path

import keras
import keras_hub
import numpy as np
from refusals import refused
from small_models import only_few_blocks

import lambdanet
from lambdanet.models import preprocessing
from lambdanet.models.keras_hub_backbone import LambdaNetBackbone
from lambdanet.models.keras_hub_classifier import LambdaNetImageClassifier
from lambdanet.models.weights import weight_files

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.normal(size=[2, 64, 64, 3]).astype("float32")


def main() -> None:
    keras.utils.set_random_seed(0)
    check_segmenter()
    check_detector()
    check_lora()
    # One whose classifier reads another convolution.
    for name in ("lambda_resnet_tiny", "haloregnetz_b"):
        with only_few_blocks(name):
            check_classifier(name)


def check_segmenter() -> None:
    """Of maps at a stride of 16: logits of the size of the pictures; a guide trains it."""
    options = {"input_size": 64, "output_stride": 16}
    encoder = LambdaNetBackbone("lambda_resnet_tiny", options)
    assert list(encoder.pyramid_outputs) == ["P2", "P3", "P4"]
    assert encoder.pyramid_outputs["P4"].shape == (None, 4, 4, 512)
    backbone = keras_hub.models.DeepLabV3Backbone(
        encoder,
        spatial_pyramid_pooling_key="P4",
        upsampling_size=4,
        dilation_rates=[1, 2],
        low_level_feature_key="P2",
        projection_filters=16,
        image_shape=(64, 64, 3),
    )
    segmenter = keras_hub.models.DeepLabV3ImageSegmenter(backbone, num_classes=4)
    assert segmenter.output_shape == (None, 64, 64, 4)
    check_preset(segmenter, keras_hub.models.ImageSegmenter)


def check_detector() -> None:
    encoder = LambdaNetBackbone("lambda_resnet_tiny", {"input_size": 64})
    backbone = keras_hub.models.RetinaNetBackbone(
        encoder, min_level=3, max_level=5, use_p5=False, image_shape=(64, 64, 3)
    )
    detector = keras_hub.models.RetinaNetObjectDetector(backbone, num_classes=3)
    boxes = np.array([[[8, 8, 40, 48]], [[4, 16, 30, 60]]], "float32")
    targets = {"boxes": boxes, "labels": np.array([[1], [2]])}
    detector.compile(keras.optimizers.SGD(0.001))
    history = detector.fit(IMAGES, targets, epochs=1, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    check_preset(detector, keras_hub.models.ObjectDetector)


def check_lora() -> None:
    """Adapters of lambda layers train, and nothing else of a backbone; no adapters at all are refused."""
    # Trained, as blocks of a fresh network begin as the identity.
    options = {"weights": "digits", "input_size": 64}
    backbone = LambdaNetBackbone("lambda_resnet_tiny", options)
    backbone.enable_lora(2)
    adapters = backbone.trainable_weights
    # In each of four lambda layers, two matrices for the queries and two for the values.
    assert len(adapters) == 4 * 4 and all("lora" in v.name for v in adapters)
    before = backbone.get_weights()
    classifier = keras_hub.models.ImageClassifier(backbone, 2, preprocessor=None)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    classifier.compile(keras.optimizers.SGD(0.1), loss)
    # The first of two matrices moves once the second is no longer zero.
    classifier.fit(IMAGES, np.array([0, 1]), epochs=2, verbose=0)
    trained = set(map(id, adapters))
    for variable, value in zip(backbone.weights, before, strict=True):
        is_equal = np.array_equal(keras.ops.convert_to_numpy(variable), value)
        assert is_equal != (id(variable) in trained), variable.path
    plain = LambdaNetBackbone("resnet_50")
    with refused("unknown layer in target_layer_names 'queries'"):
        plain.enable_lora(2)
    with refused("rank must be a positive integer, got 0"):
        plain.enable_lora(0)
    assert all(layer.trainable for layer in plain.layers)


def check_classifier(name: str) -> None:
    """The same logits as the network by itself, with the preprocessing and the classes of its weights."""
    network = lambdanet.create_model(name, num_classes=3)
    pictures = RANDOM.integers(0, 256, [2, 80, 100, 3], "uint8")
    metadata = {
        "input_size": "64",
        "mean": "0.5,0.5,0.5",
        "std": "0.5,0.4,0.3",
        "interpolation": "bicubic",
        "classes": json.dumps(["cat", "dog", "cow"]),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "weights.safetensors")
        weight_files.save(network, path, metadata)
        prepared = np.asarray(preprocessing.of_weights(path)(pictures))
        classifier = LambdaNetImageClassifier.from_zoo(name, path)
        weight_files.save(lambdanet.create_model(name, num_classes=0), path)
        with refused("weights must be of a classifier without num_classes"):
            LambdaNetImageClassifier.from_zoo(name, path)
    logits = classifier.predict(pictures, verbose=0)
    np.testing.assert_allclose(
        logits, network.predict(prepared, verbose=0), rtol=1e-5, atol=1e-5
    )
    loaded = check_preset(classifier, keras_hub.models.ImageClassifier, pictures)
    found = loaded.decode_predictions(logits, top=1)
    assert found == lambdanet.decode_predictions(logits, ["cat", "dog", "cow"], top=1)
    with tempfile.TemporaryDirectory() as folder:
        classifier.save_to_preset(folder)
        other = keras_hub.models.ImageClassifier.from_preset(folder, num_classes=5)
    assert other.predict(pictures, verbose=0).shape == (2, 5)
    assert other.class_names is None


def check_preset(
    task: keras.Model, kind: type, inputs: np.ndarray = IMAGES
) -> keras.Model:
    """Saves a task as a preset, loads it by the class of KerasHub, and compares what both predict."""
    with tempfile.TemporaryDirectory() as folder:
        task.save_to_preset(folder)
        loaded = kind.from_preset(folder)
    assert type(loaded) is type(task)
    found = loaded.predict(inputs, verbose=0)
    expected = task.predict(inputs, verbose=0)
    for one, other in zip(
        keras.tree.flatten(found), keras.tree.flatten(expected), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    return loaded


if __name__ == "__main__":
    main()
