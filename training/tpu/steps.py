# SPDX-License-Identifier: Apache-2.0
"""The step that a recipe trains or infers with, as a function to compile."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lambdanet import configs
from lambdanet.configs import imagenet_350
from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError, check_counts, unknown
from lambdanet.models import zoo
from lambdanet.models.names import check_model
from lambdanet.training.run.build import build_model, build_optimizer, compile_model

MODES = ("train", "infer")
BATCH = 128  # on a core: the paper's 1024 on 8
_STEPS_PER_EPOCH = 1000  # tells the schedule how long the run is, and changes nothing in what a step costs


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of one core.

    Attributes:
      name: what it is, for people.
      function: of tensors; the variables that it reads and writes exist already.
      inputs: the shape and type of each tensor.
      batch: examples in these.
      roots: the names of the models inside, which the names of their layers begin with.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[tf.TensorSpec, ...]
    batch: int
    roots: tuple[str, ...]


def of_recipe(recipe: Recipe, mode: str = "train", batch: int = BATCH) -> Step:
    """Returns the step of a recipe.

    Args:
      recipe: as `lambdanet train` takes it; its batch size and its data do not matter.
      mode: "train": what `fit` runs, from the images to the new weights, averages and metrics. "infer": from
        the images to the logits.
      batch: images on the core.

    Raises:
      InputError: an unknown mode, a batch below 1, or a recipe whose number of classes is open.

    Example:
      >>> step = of_recipe(configs.get_recipe("digits"), batch=32)
      >>> step.function(*(tf.zeros(spec.shape, spec.dtype) for spec in step.inputs))
    """
    if mode not in MODES:
        raise unknown("mode", mode, MODES)
    check_counts(batch=batch)
    if not recipe.num_classes:
        raise InputError(
            "num_classes is 0, as many as the data has; accepted: a number, --set=num_classes=1000"
        )
    model = build_model(recipe)
    precision = "bfloat16" if recipe.mixed_precision else "float32"
    name = f"{recipe.model} at {recipe.input_size}, {mode}, {precision}"
    images = tf.TensorSpec([batch, recipe.input_size, recipe.input_size, len(recipe.mean)], tf.float32)
    if mode == "infer":
        return Step(name, lambda x: model(x, training=False), (images,), batch, (model.name,))
    optimizer = build_optimizer(recipe, _STEPS_PER_EPOCH)
    optimizer.jit_compile = False  # it is compiled with the whole step
    compile_model(recipe, model, optimizer)
    optimizer.build(model.trainable_variables)
    labels = tf.TensorSpec([batch], tf.int64)
    return Step(name, lambda x, y: model.train_step((x, y)), (images, labels), batch, (model.name,))


def recipe_of(model: str, input_size: int | None = None) -> Recipe:
    """Returns the recipe that trains a model at an image size, or else one like `imagenet_350`.

    Args:
      model: a name of the zoo.
      input_size: the images' side, in pixels; default: that of the model's table.

    Raises:
      InputError: an unknown model.
    """
    check_model(model)
    size = input_size or zoo.MODELS[model].input_size
    recipes = [configs.get_recipe(recipe) for recipe in zoo.recipes_of(model)]
    own = [recipe for recipe in recipes if recipe.input_size == size and recipe.num_classes]
    return own[0] if own else dataclasses.replace(imagenet_350.BASE, model=model, input_size=size)
