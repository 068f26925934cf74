# SPDX-License-Identifier: Apache-2.0
"""The contenders of the model benchmark: models of the zoo on images of noise."""

import ast
import dataclasses
import functools
from typing import Any

import numpy as np

from benchmarks.interleaved.cases import LEARNING_RATE, MOMENTUM, ModelCase
from benchmarks.interleaved.contenders import Run, compile_runner, policy, start
from lambdanet import backend as K
from lambdanet.backend import Tensor, compat, keras
from lambdanet.core.errors import invalid
from lambdanet.models import zoo
from lambdanet.models.inference import for_inference
from lambdanet.models.names import ModelInfo
from lambdanet.tpu_estimates.steps import map_state

__all__ = ["Network", "build", "start"]

PREFIX = "model/"


@dataclasses.dataclass(frozen=True)
class Network:
    """A model, its options and its image size."""

    # "NAME", "NAME:KEY=VALUE,...", "NAME@SIZE" or "NAME:KEY=VALUE,...@SIZE", and then perhaps " with
    # VARIABLE=VALUE" of the environment.
    text: str
    name: str  # in the zoo
    options: dict[str, Any]  # of `create_model`
    size: int  # the side of the images, in pixels; 0: the model's default

    @classmethod
    def parse(cls, text: str) -> "Network":
        """Parses a text; raises `InputError` if it is not as described."""
        network = text.partition(" with ")[0]
        front, at, size = network.partition("@")
        name, _, listed = front.partition(":")
        try:
            pairs = (pair.split("=") for pair in listed.split(",") if pair)
            options = {key: ast.literal_eval(value) for key, value in pairs}
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


def build(name: str, case: ModelCase) -> Run:
    """Builds a model and returns a function that runs it once, or makes a training step."""
    network = Network.parse(name.removeprefix(PREFIX))
    with compat.dtype_policy(policy(case.dtype)):
        model = network.create()
    # The input size of a model that accepts any.
    side = model.input_shape[1] or network.info().input_size
    random = np.random.default_rng(0)
    images = K.convert_to_tensor(
        random.standard_normal([case.batch, side, side, 3], np.float32)
    )
    if not case.backward:
        inference = for_inference(model)
        return compile_runner(
            functools.partial(inference, training=False), [images], inference
        )
    labels = K.convert_to_tensor(random.integers(0, model.output_shape[-1], case.batch))
    return training_step(model, images, labels)


def training_step(model: keras.Model, images: Tensor, labels: Tensor) -> Run:
    """Returns a function that makes a training step, with batch statistics, gradients and SGD."""
    model.compile(
        keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    if K.ENGINE == "tensorflow":
        return compile_runner(lambda *batch: model.train_step(batch), [images, labels])
    if K.ENGINE == "torch":
        import torch

        step = torch.enable_grad()(model.train_step)
        return compile_runner(step, [(images, labels)])
    model.optimizer.build(model.trainable_variables)
    state = map_state(model, "train", lambda variable: variable.value)
    return compile_runner(model.train_step, [state, (images, labels)])
