# SPDX-License-Identifier: Apache-2.0
"""Runs Keras's own `run_layer_test` on every layer; tests initial values and normalization."""

import contextlib
import inspect
import unittest

import keras
import numpy as np
from keras.src import testing
from layer_table import LAYERS
from programs import run_on_engine
from programs.run_on_engine import (
    ENGINES,
    IMAGES,
    constant_initializers,
    random_value,
)

import lambdanet
from lambdanet import backend as K
from lambdanet.backend import compat, device
from lambdanet.layers.batch_norm import BatchNormalization
from lambdanet.layers.layer import Layer

# Of a class with several entries, those that differ in more than a form of the same computation.
VARIANTS = ("LambdaLayer_u", "LambdaLayer_global", "LambdaLayer_content")
VARIANTS += ("causal", "unstructured", "video", "stacks")
CASES = {
    **{name: (make, IMAGES) for name, make in LAYERS.items() if "_" not in name},
    **{name: run_on_engine.CASES[name][:2] for name in VARIANTS},
    "PooledBatchNormalization": (lambdanet.PooledBatchNormalization, IMAGES),
}
# Parts of the lambda layers.
POSITIONS = {"RelativePositionEmbedding", "UnstructuredPositionEmbedding"}

NUM_DEVICES = len(keras.distribution.list_devices()) if K.ENGINE == "jax" else 1
assert NUM_DEVICES == (2 if K.ENGINE == "jax" else 1)


def check_every_class_is_tested() -> None:
    public = {
        value.__name__
        for value in map(lambdanet.__getattr__, lambdanet.__all__)
        if is_layer(value)
    }
    assert {type(make()).__name__ for make, _ in CASES.values()} == public - POSITIONS


def is_layer(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, Layer)


class KerasTest(testing.TestCase):
    @constant_initializers()
    def runTest(self) -> None:
        for name, (make, shape) in CASES.items():
            # Keras's test cannot train with a list
            returns_pair = name == "PooledBatchNormalization"
            with self.subTest(name):
                self.run_layer_test(
                    make, {}, input_shape=shape, run_training_check=not returns_pair
                )


class InitializersTest(testing.TestCase):
    """Initial values have the mean, the deviation and about the largest value of those of Keras."""

    CASES = (
        ("RandomNormal", 2.0, 3.0),
        ("VarianceScaling", 2.0, "fan_in"),
        ("VarianceScaling", 1.0, "fan_avg"),
        ("VarianceScaling", 2.0, "fan_out", "untruncated_normal"),
        ("VarianceScaling", 1.0, "fan_avg", "uniform"),
    )

    def runTest(self) -> None:
        for name, *arguments in self.CASES:
            with self.subTest(f"{name} {arguments}"):
                ours, theirs = (
                    K.convert_to_numpy(kind(*arguments, seed=1)((3, 3, 40, 200)))
                    for kind in (
                        getattr(compat, name),
                        getattr(keras.initializers, name),
                    )
                )
                stddev = theirs.std()
                self.assertAllClose(ours.mean(), theirs.mean(), atol=0.02 * stddev)
                self.assertAllClose(ours.std(), stddev, rtol=0.02)
                self.assertAllClose(np.abs(ours).max(), np.abs(theirs).max(), rtol=0.2)


class BatchNormTest(testing.TestCase):
    """Steps of training equal those of Keras's layer, on JAX those of one for each of its devices."""

    CASES = (  # precision, options, and the kind of device whose form is used
        ("float32", {}, "CPU"),
        ("float32", {}, "TPU"),
        ("float32", {"synchronized": True}, "CPU"),
        ("mixed_bfloat16", {"scale": False, "center": False}, "CPU"),
    )

    def runTest(self) -> None:
        x = np.random.default_rng(0).normal(1, 2, [16, 3, 5, 4]).astype("float32")
        for precision, options, kind in self.CASES:
            if options.get("synchronized") and K.ENGINE == "torch":
                continue  # Keras rejects it
            with self.subTest(f"{precision} {options} {kind}"):
                self.check(x, precision, dict(options), kind)

    def check(
        self, x: np.ndarray, precision: str, options: dict[str, bool], kind: str
    ) -> None:
        arguments = {"dtype": precision, "momentum": 0.7, "epsilon": 1e-5}
        layer = BatchNormalization(**arguments, **options)
        with device.assume(kind), self.distribution():
            found = self.arrays(layer, x)
        num_parts = 1 if options.pop("synchronized", False) else NUM_DEVICES
        parts = [
            self.arrays(keras.layers.BatchNormalization(**arguments, **options), part)
            for part in np.split(x, num_parts)
        ]
        for name, array in found.items():
            arrays = [part[name] for part in parts]
            if "output" in name:
                expected = np.concatenate(arrays)
            else:
                expected = sum(arrays) / (num_parts if "moving" in name else 1)
            scale = np.abs(expected).max()
            tolerance = 1e-5 if precision == "float32" or "moving" in name else 2e-2
            self.assertAllClose(
                array / scale, expected / scale, atol=tolerance, rtol=0, msg=name
            )

    def distribution(self) -> contextlib.AbstractContextManager:
        if K.ENGINE != "jax":
            return contextlib.nullcontext()
        return keras.distribution.DataParallel(
            devices=keras.distribution.list_devices()
        ).scope()

    def arrays(self, layer: keras.Layer, x: np.ndarray) -> dict[str, np.ndarray]:
        """Returns what has an example's axis, gradients of weights, and moving averages."""
        layer.build(x.shape)
        for variable in layer.trainable_variables:
            variable.assign(random_value(variable.name, variable.shape, 0.3))
        _, outputs, by_input, gradients = ENGINES[K.ENGINE](
            layer, K.cast(x, layer.compute_dtype), {}
        )
        found = {"output": outputs, "output gradient": by_input}
        found |= dict(enumerate(gradients))
        found |= {v.name: v for v in layer.non_trainable_variables}
        return {
            str(name): K.convert_to_numpy(K.cast(array, "float32"))
            for name, array in found.items()
        }


if __name__ == "__main__":
    check_every_class_is_tested()
    unittest.main()
