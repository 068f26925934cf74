# SPDX-License-Identifier: Apache-2.0
"""The training or inference step of a recipe, as a function to compile."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lambdanet import backend as K
from lambdanet import configs, which_keras
from lambdanet.configs import imagenet_350
from lambdanet.configs.recipe import Recipe
from lambdanet.errors import check_counts, check_known, invalid
from lambdanet.models import names
from lambdanet.models.inference import for_inference
from lambdanet.training.run.build import build_model, build_optimizer, compile_model

MODES = ("train", "infer")
BATCH = 128  # images per core: the paper's 1024 on 8 cores
# For the learning rate schedule; the cost of a step does not depend on it.
_STEPS_PER_EPOCH = 1000


@dataclasses.dataclass(frozen=True)
class TpuStep:
    """A step of one core.

    Attributes:
      name: the description in reports.
      function: the step, a function of tensors. In TensorFlow its variables exist already; in JAX its first
        argument is the state of the model, which a training step returns.
      inputs: the shape and type of each tensor, in JAX nested.
      batch: the number of examples.
      model_names: the models in the step, to leave out of the names of their layers.
      is_parallel: whether all cores of the topology make the step together, as in `fit` with `DataParallel`.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    batch: int
    model_names: tuple[str, ...]
    is_parallel: bool = False


def recipe_step(
    recipe: Recipe, mode: str = "train", batch_size: int = BATCH
) -> TpuStep:
    """Returns the step of a recipe.

    Args:
      recipe: a recipe of `lambdanet train`; its batch size and dataset are not used.
      mode: "train", the step of `fit` from images to new weights, averages and metrics, with the largest of
        the recipe's `sizes`; or "infer", from images to logits, of the model for inference
        (`lambdanet.for_inference`), as exported.
      batch_size: the number of images on the core.

    Raises:
      InputError: the mode is unknown, the batch size is below 1, the recipe has no number of classes, or this
        process has tf_keras or Keras 3 on torch.

    Example:
      >>> step = recipe_step(configs.get_recipe("digits"), batch_size=32)
      >>> step.function(*(tf.zeros(spec.shape, spec.dtype) for spec in step.inputs))
    """
    which_keras.check_backend("the step of a recipe", ("tensorflow", "jax"))
    check_known("mode", mode, MODES)
    check_counts(batch_size=batch_size)
    if not recipe.num_classes:
        raise invalid("num_classes", "a number, such as --set=num_classes=1000", 0)
    size = recipe.input_size
    if mode == "infer":
        model = for_inference(build_model(recipe))
    else:
        size = int(max(recipe.sizes, default=size))
        model = build_model(dataclasses.replace(recipe, input_size=size))
        optimizer = build_optimizer(recipe, _STEPS_PER_EPOCH)
        compile_model(recipe, model, optimizer)
        optimizer.build(model.trainable_variables)
    precision = "bfloat16" if recipe.mixed_precision else "float32"
    is_jax = K.ENGINE == "jax"
    name = f"{recipe.model} at {size}, {mode}, {precision}, {'JAX' if is_jax else 'TensorFlow'}"
    shape = (batch_size, size, size, len(recipe.mean))
    # As the input pipeline yields them.
    dtype = precision if mode == "train" else "float32"
    function, inputs = (_jax_step if is_jax else _tensorflow_step)(
        model, mode, shape, dtype
    )
    return TpuStep(
        name, function, inputs, batch_size, (model.name,), is_jax and mode == "train"
    )


def _tensorflow_step(
    model: Any, mode: str, shape: tuple[int, ...], dtype: str
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    images = tf.TensorSpec(shape, dtype)
    labels = tf.TensorSpec(shape[:1], tf.int64)
    if mode == "infer":
        return lambda x: model(x, training=False), (images,)
    return lambda x, y: model.train_step((x, y)), (images, labels)


def _jax_step(
    model: Any, mode: str, shape: tuple[int, ...], dtype: str
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    import jax

    images = jax.ShapeDtypeStruct(shape, dtype)
    labels = jax.ShapeDtypeStruct(shape[:1], "int32")
    groups = [model.trainable_variables, model.non_trainable_variables]
    if mode == "train":
        groups += [model.optimizer.variables, model.metrics_variables]
    state: tuple[Any, ...] = ()
    for variables in groups:
        shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]
        state = (*state, shapes)
    if mode == "infer":
        # The compiler names the weights by the argument, "state".
        return lambda state, x: model.stateless_call(*state, x, training=False)[0], (
            state,
            images,
        )
    return model.train_step, (state, (images, labels))


def recipe_for(model: str, input_size: int | None = None) -> Recipe:
    """Returns the recipe of a model at an image size, or else one like `imagenet_350`.

    Args:
      model: the name of a model in the zoo.
      input_size: the side of the images, in pixels; default: the model's.

    Raises:
      InputError: the model is unknown.
    """
    info = names.info(model)
    size = input_size or info.input_size
    recipes = [configs.get_recipe(recipe) for recipe in info.recipes]
    matching = [
        recipe for recipe in recipes if recipe.num_classes and recipe.input_size == size
    ]
    return (
        matching[0]
        if matching
        else dataclasses.replace(imagenet_350.BASE, model=model, input_size=size)
    )
