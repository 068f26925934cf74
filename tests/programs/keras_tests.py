# SPDX-License-Identifier: Apache-2.0
"""Runs `run_layer_test` of Keras on every layer, tests models for inference and, on torch, gradients."""

import inspect
import unittest
from functools import partial

import keras
import numpy as np
from keras.src import testing
from layer_table import LAYERS
from programs.run_on_engine import constant_initializers, random_value

import lambdanet
from lambdanet import backend as K
from lambdanet.errors import InputError
from lambdanet.layers.layer import Layer

IMAGES = (2, 4, 3, 8)
SEQUENCES, VOLUMES = (2, 5, 4), (2, 2, 3, 3, 4)
# Of a class with several entries, those that differ in more than a form of the same computation.
VARIANTS = ("LambdaLayer_u", "LambdaLayer_global", "LambdaLayer_content")
SMALL = {"filters": 4, "num_heads": 2, "key_dim": 2, "scope": 3}
CASES = {
    **{name: (make, IMAGES) for name, make in LAYERS.items() if "_" not in name or name in VARIANTS},
    "sequence": (partial(lambdanet.LambdaLayer, **SMALL), SEQUENCES),
    "unstructured": (partial(lambdanet.LambdaLayer, **SMALL, position="unstructured"), SEQUENCES),
    "volume": (partial(lambdanet.LambdaLayer, **SMALL, strides=2, pool_size=3), VOLUMES),
    "PooledBatchNormalization": (lambdanet.PooledBatchNormalization, IMAGES),
}
POSITIONS = {"RelativePositionEmbedding", "UnstructuredPositionEmbedding"}  # parts of the lambda layers


def check_every_class_is_tested() -> None:
    public = {value.__name__ for value in map(lambdanet.__getattr__, lambdanet.__all__) if is_layer(value)}
    assert {type(make()).__name__ for make, _ in CASES.values()} == public - POSITIONS


def is_layer(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, Layer)


class KerasTest(testing.TestCase):
    def runTest(self) -> None:
        for name, (make, shape) in CASES.items():
            returns_pair = name == "PooledBatchNormalization"  # Keras's test cannot train with a list
            with self.subTest(name):
                self.run_layer_test(make, {}, input_shape=shape, run_training_check=not returns_pair)


class InferenceTest(testing.TestCase):
    """A model for inference rejects training, and takes part in that of another model."""

    def runTest(self) -> None:
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2), keras.layers.BatchNormalization()])
        fast, x = lambdanet.for_inference(model), np.ones([4, 3], "float32")
        for train in (lambda: fast(x, training=True), lambda: fast.fit(x, x)):
            self.assertRaisesRegex(InputError, "training must be False", train)
        outer = keras.Sequential([keras.Input([3]), fast, keras.layers.Dense(1)])
        outer.compile("sgd", "mse")
        outer.fit(x, x[:, :1], verbose=0)


class Float64Test(testing.TestCase):
    """Derivatives in float64 equal differences of outputs, which would be 0.1 apart in float32."""

    def runTest(self) -> None:
        if K.ENGINE != "torch":
            return
        for name, (make, shape) in CASES.items():
            with self.subTest(name):
                self.check(make(dtype="float64"), shape)
        causal = lambdanet.LambdaLayer(**SMALL, key_normalization="l2", dtype="float64")
        self.check(causal, SEQUENCES, mask="causal")

    def check(self, layer: Layer, shape: tuple[int, ...], **arguments: object) -> None:
        import torch

        random = np.random.default_rng(0)
        x, direction = (torch.tensor(random.normal(size=shape)) for _ in range(2))
        layer(x)
        for weight in layer.weights:
            weight.assign(random_value(weight.path, weight.shape, 0.3))
        modes = (False, True) if type(layer).__name__ != "StochasticDepth" else (False,)  # else random
        for training in modes:
            options = arguments | ({"training": training} if layer._call_has_training_arg else {})

            def loss(x, options=options):
                outputs = K.flatten(layer(x, **options))
                assert all(output.dtype == torch.float64 for output in outputs)
                return sum(torch.sin(output).sum() for output in outputs)

            x.requires_grad_()
            (gradient,) = torch.autograd.grad(loss(x), x)
            derivative, step = (gradient * direction).sum(), 1e-5
            x = x.detach()
            difference = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
            self.assertAllClose(difference, derivative, atol=1e-6, rtol=1e-6)


if __name__ == "__main__":
    check_every_class_is_tested()
    with constant_initializers():
        unittest.main()
