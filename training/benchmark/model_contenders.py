# SPDX-License-Identifier: Apache-2.0
"""The contenders of the model benchmark: models of the zoo on images of noise."""

import ast
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from lambdanet.backend import keras
from lambdanet.errors import invalid
from lambdanet.models import zoo
from lambdanet.models.inference import for_inference
from lambdanet.models.names import ModelInfo
from lambdanet.training.benchmark.cases import LEARNING_RATE, MOMENTUM, ModelCase
from lambdanet.training.benchmark.contenders import Run, compile_runner, start
from lambdanet.training.run import build

__all__ = ["CASE", "CONTENDERS", "ModelCase", "Network", "start"]

PREFIX = "model/"


@dataclasses.dataclass(frozen=True)
class Network:
    """A model, its options and its image size.

    Attributes:
      text: "NAME", "NAME:KEY=VALUE,...", "NAME@SIZE" or "NAME:KEY=VALUE,...@SIZE".
      name: the name in the zoo.
      options: the options of `create_model`.
      size: the side of the images, in pixels; 0: the model's default.
    """

    text: str
    name: str
    options: dict[str, Any]
    size: int

    @classmethod
    def parse(cls, text: str) -> "Network":
        """Parses a text; raises `InputError` if it is not as described."""
        front, at, size = text.partition("@")
        name, _, listed = front.partition(":")
        try:
            options: dict[str, Any] = {}
            for pair in filter(None, listed.split(",")):
                key, value = pair.split("=")
                options[key] = ast.literal_eval(value)
            pixels = int(size) if at else 0
            if at and pixels < 1:
                raise ValueError
        except (ValueError, SyntaxError):
            accepted = "NAME, NAME@SIZE, NAME:KEY=VALUE,... or both, such as resnet_50_llll:key_dim=8@160"
            raise invalid("model", accepted, text) from None
        return cls(text, name, options, pixels)

    def info(self) -> ModelInfo:
        """Returns the size of the model; raises `InputError` for an unknown model."""
        return zoo.model_info(self.name, self.size or None, **self.options)

    def create(self) -> keras.Model:
        """Returns the model with fresh weights."""
        return zoo.create_model(self.name, input_size=self.size or None, **self.options)


def _run(text: str, case: ModelCase) -> Run:
    """Builds a model and returns a function that runs it once."""
    network = Network.parse(text)
    with build.policy("float32" if case.dtype == "float32" else f"mixed_{case.dtype}"):
        model = network.create()
    shape = [case.batch, *model.input_shape[1:]]
    if None in shape:  # the model accepts any size
        size = network.size or zoo.model_info(network.name).input_size
        shape = [case.batch, size, size, 3]
    random = np.random.default_rng(0)
    images = tf.constant(random.standard_normal(shape, np.float32))
    if not case.backward:
        return compile_runner(functools.partial(for_inference(model), training=False), [images])
    labels = tf.constant(random.integers(0, model.output_shape[-1], case.batch))
    return compile_runner(_training_step(model), [images, labels])


def _training_step(model: keras.Model) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
    optimizer.build(model.trainable_variables)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = cross_entropy(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


class _Contenders:
    """Maps the name of a contender to the function that builds it for a case."""

    def __getitem__(self, name: str) -> Callable[[ModelCase], Run]:
        return functools.partial(_run, name.removeprefix(PREFIX))


CASE = ModelCase
CONTENDERS = _Contenders()
