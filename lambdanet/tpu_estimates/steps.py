# SPDX-License-Identifier: Apache-2.0
"""The training or inference step of a recipe or of any model of Keras, as a function to compile."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lambdanet import backend as K
from lambdanet import configs
from lambdanet.backend import keras
from lambdanet.configs import imagenet_350
from lambdanet.configs.recipe import Recipe
from lambdanet.core import which_keras
from lambdanet.core.command_line import find_function
from lambdanet.core.errors import (
    InputError,
    check_counts,
    check_known,
    invalid,
    one_line,
)
from lambdanet.models import names
from lambdanet.models.inference import for_inference
from lambdanet.training.data.task import task_of
from lambdanet.training.run.build import build_model, build_optimizer, compile_model

MODES = ("train", "infer")
Layout = Mapping[str, Sequence[str | None]]
BATCH = 128  # images per core: the paper's 1024 on 8 cores
# The length of the learning rate's schedule, on which the cost of a step does not depend.
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
      model_parallel: the number of cores that compute on the same batch, as in `fit` with `ModelParallel`.
      layout: which axes of variables they divide, by patterns of their paths.
      partitions: the same for each array of the state.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    batch: int
    model_names: tuple[str, ...]
    is_parallel: bool = False
    model_parallel: int = 1
    layout: Layout = dataclasses.field(default_factory=dict)
    partitions: Any = None


def recipe_step(
    recipe: Recipe,
    mode: str = "train",
    batch_size: int = BATCH,
) -> TpuStep:
    """Returns the step of a recipe.

    Args:
      recipe: a recipe of `lambdanet train`; its batch size and dataset are not used.
      mode: "train", the step of `fit` from images to new weights, averages and metrics, at the size of
        training; or "infer", from images to logits, of the model for inference
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
        size = recipe.size_in_training
        model = build_model(dataclasses.replace(recipe, input_size=size))
        optimizer = build_optimizer(recipe, model.weights, _STEPS_PER_EPOCH)
        compile_model(recipe, model, optimizer)
    precision = recipe.compute_dtype
    is_jax = K.ENGINE == "jax"
    name = f"{recipe.model} at {size}, {mode}, {precision}, {'JAX' if is_jax else 'TensorFlow'}"
    shape = (batch_size, size, size, len(recipe.mean))
    # As the input pipeline yields them.
    dtype = precision if mode == "train" else "float32"
    label = task_of(recipe).first_label()
    function, inputs = (_jax_step if is_jax else _tensorflow_step)(
        model, mode, shape, dtype, label
    )
    return TpuStep(
        name,
        function,
        inputs,
        batch_size,
        (model.name,),
        is_jax and mode == "train",
    )


def _tensorflow_step(
    model: Any, mode: str, shape: tuple[int, ...], dtype: str, label: np.ndarray
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    import tensorflow as tf

    images = tf.TensorSpec(shape, dtype)
    labels = tf.TensorSpec([shape[0], *label.shape[1:]], label.dtype)
    if mode == "infer":
        return lambda x: model(x, training=False), (images,)
    return lambda x, y: model.train_step((x, y)), (images, labels)


def _jax_step(
    model: Any, mode: str, shape: tuple[int, ...], dtype: str, label: np.ndarray
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    import jax

    images = jax.ShapeDtypeStruct(shape, dtype)
    kind = jax.dtypes.canonicalize_dtype(label.dtype)
    labels = jax.ShapeDtypeStruct((shape[0], *label.shape[1:]), kind)
    data = images if mode == "infer" else (images, labels)
    return _function_of(model, mode), (
        map_state(model, mode, _struct),
        data,
    )


def _function_of(model: Any, mode: str) -> Callable[..., Any]:
    if mode == "train":
        return model.train_step
    options = {"training": False} if model._call_has_training_arg else {}
    # The compiler names the weights by the argument, "state".
    return lambda state, x: model.stateless_call(*state, x, **options)[0]


def map_state(model: Any, mode: str, function: Callable[[Any], Any]) -> Any:
    """Returns the result of a function for each variable of a step's state, in Keras's order."""
    groups = [model.trainable_variables, model.non_trainable_variables]
    if mode == "train":
        groups += [model.optimizer.variables, model.metrics_variables]

    def results(variables: Any) -> list[Any]:
        return [function(variable) for variable in variables]

    return tuple(map(results, groups))


def model_step(
    model: keras.Model,
    batch: Any,
    mode: str = "train",
    batch_size: int | None = None,
    layout: Layout | None = None,
    model_parallel: int = 1,
) -> TpuStep:
    """Returns the step of any model of Keras on JAX; the arguments and errors are those of `tpu_check`."""
    which_keras.check_backend("the step of a model", ("jax",))
    import jax

    check_known("mode", mode, MODES)
    check_counts(model_parallel=model_parallel)
    if not isinstance(model, keras.Model):
        raise invalid("model", "a keras.Model", model)
    if mode == "train" and not model.compiled:
        raise invalid("model", "compiled, as for `fit`", model.name)
    if (model_parallel > 1) != bool(layout) or (layout and mode == "infer"):
        accepted = "above 1 with a layout and in mode train, and 1 otherwise"
        raise invalid("model_parallel", accepted, model_parallel)
    data = _example(batch, batch_size)
    if mode == "train":
        model._symbolic_build(data_batch=data)  # as `fit` does
    else:
        data, *_ = keras.utils.unpack_x_y_sample_weight(data)
        if not model.built:
            model(jax.tree.map(lambda x: keras.KerasTensor(x.shape, x.dtype), data))
    partitions = _partitions(model, layout) if layout else None
    name = f"{model.name}, {mode}, {model.dtype_policy.name}, JAX"
    return TpuStep(
        name,
        _function_of(model, mode),
        (map_state(model, mode, _struct), data),
        jax.tree.leaves(data)[0].shape[0],
        tuple(_names(model)),
        mode == "train",
        model_parallel,
        layout or {},
        partitions,
    )


def step_of_function(name: str, mode: str = "train", **options: Any) -> TpuStep:
    """Returns the step of a model that a function of the user returns.

    Args:
      name: "module:function"; the function takes nothing and returns a model and an example batch, as
        `model_step` takes them, and, if it likes, a layout.
      mode: "train" or "infer".
      **options: `batch_size` and `model_parallel` of `model_step`.

    Raises:
      InputError: there is no such function, it fails, or it returns something else.
    """
    function = find_function(name, "model")
    try:
        made = function()
        if not isinstance(made, tuple) or len(made) not in (2, 3):
            accepted = "a model and an example batch, and at most a layout"
            raise invalid(f"result of {name}", accepted, type(made).__name__)
        model, batch, *rest = made
        layout = rest[0] if rest else None
        return model_step(model, batch, mode, layout=layout, **options)
    except InputError:
        raise
    except Exception as error:  # of any kind: function and model are the user's
        raise InputError(f"model {name!r} fails: {one_line(error)}") from error


def layout_map(mesh: Any, layout: Layout) -> Any:
    """Returns a layout as Keras's `LayoutMap` on a mesh."""
    layouts = keras.distribution.LayoutMap(mesh)
    for pattern, axes in layout.items():
        layouts[pattern] = tuple(axes)
    return layouts


def _partitions(model: Any, layout: Layout) -> Any:
    """Returns the axes between which the cores divide each array of a training step's state."""
    from jax.sharding import PartitionSpec

    mesh = keras.distribution.DeviceMesh((1, 1), ["batch", "model"], ["cpu:0"])
    layouts = layout_map(mesh, layout)
    found = {}
    for weight in model.weights:
        if (axes := layouts[weight.path]) is not None:
            found[weight.path] = PartitionSpec(*axes.axes)
    paths = [weight.path for weight in model.weights]
    for pattern in layout:
        if not any(re.fullmatch(pattern, path) for path in paths):
            accepted = f"patterns of paths of variables, such as {paths[0]}"
            raise invalid("layout", accepted, pattern)
    # The optimizer's averages are divided as their weights, whose paths are in their names.
    for weight in model.trainable_variables:
        begin = weight.path.replace("/", "_") + "_"
        for variable in model.optimizer.variables:
            is_average = variable.path.rpartition("/")[2].startswith(begin)
            if weight.path in found and is_average and variable.shape == weight.shape:
                found[variable.path] = found[weight.path]
    return map_state(model, "train", lambda v: found.get(v.path, PartitionSpec()))


def _example(batch: Any, batch_size: int | None) -> Any:
    """Returns the shapes and types of a batch, as `fit` gives them to JAX."""
    import jax

    if batch_size is not None:
        check_counts(batch_size=batch_size)

    def struct(x: Any) -> Any:
        if not tuple(getattr(x, "shape", ())):
            raise invalid("batch", "arrays with a batch axis", x)
        example = _struct(x)
        shape = (batch_size or example.shape[0], *example.shape[1:])
        return jax.ShapeDtypeStruct(shape, example.dtype)

    data = jax.tree.map(struct, batch)
    sizes = {x.shape[0] for x in jax.tree.leaves(data)}
    if len(sizes) != 1:
        raise invalid("batch", "arrays with the same first axis", sorted(sizes))
    return data


def _struct(array: Any) -> Any:
    """Returns the shape and type with which JAX traces an array or a variable of any library."""
    import jax

    dtype = jax.dtypes.canonicalize_dtype(keras.backend.standardize_dtype(array.dtype))
    return jax.ShapeDtypeStruct(tuple(array.shape), dtype)


def _names(model: Any) -> list[str]:
    """Returns the names of a model and of the models in it."""
    names = [model.name]
    for layer in getattr(model, "layers", ()):
        if isinstance(layer, keras.Model):
            names += _names(layer)
    return names


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
