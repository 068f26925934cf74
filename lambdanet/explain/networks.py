# SPDX-License-Identifier: Apache-2.0
"""Explanations of whole networks: the maps of all layers, Grad-CAM and integrated gradients."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lambdanet import backend as K
from lambdanet.backend import compat, keras
from lambdanet.backend.tensors import at_least_float32, ceil_div
from lambdanet.core.errors import (
    InputError,
    check_count,
    check_known,
    invalid,
    is_integer,
)
from lambdanet.explain.gradients import gradient
from lambdanet.explain.implied_attention import (
    ImpliedAttention,
    has_map,
    implied_attention,
)

ARGUMENTS = (
    "inputs",
    "context",
    "attention_mask",
    "padding_mask",
    "mask",
    "initial_state",
)


def implied_attentions(
    model: keras.Model,
    inputs: Any,
    layers: Sequence[str] | None = None,
    queries: Mapping[str, Sequence[Any]] | Sequence[Any] | None = None,
) -> dict[str, ImpliedAttention]:
    """Returns the maps of all lambda and attention layers of a model, in one pass.

    Args:
      model: a functional or Sequential model; layers within its layers are not seen.
      inputs: as in a call of the model.
      layers: the names of some layers; None: all that have a map.
      queries: the outputs to explain, as in `implied_attention`: the same in all layers, or by the name of a
        layer, where others have all outputs.

    Returns:
      The maps by the name of the layer, in the order of the network; those of a second call are `NAME_2`.

    Raises:
      InputError: the model is no graph of layers or has no layer with a map, or a layer is unknown.

    Example:
      >>> model = lambdanet.create_model("lambda_resnet_tiny", num_classes=10)
      >>> maps = implied_attentions(model, np.ones([1, 32, 32, 3]))
      >>> tuple(maps["c4_block1_spatial"].total.shape)
      (1, 4, 4, 16)
    """
    calls = calls_with_maps(model, layers)
    tensors = tensors_of(calls)
    reader = keras.Model(compat.graph_of(model).inputs, tensors)
    values = K.flatten(reader(K.flatten(inputs), training=False))
    found = {}
    for name, call in zip(calls, arguments_of(calls, values), strict=True):
        chosen = queries.get(name) if isinstance(queries, Mapping) else queries
        found[name] = implied_attention(calls[name].layer, queries=chosen, **call)
    return found


class Call(NamedTuple):
    """A call of a layer in a model: its arguments by name, with symbolic tensors."""

    layer: keras.layers.Layer
    arguments: dict[str, Any]


def calls_with_maps(
    model: keras.Model, layers: Sequence[str] | None = None
) -> dict[str, Call]:
    """Returns the calls of layers with maps, by the name of the layer; arguments and errors as above."""
    calls: dict[str, Call] = {}
    counts: dict[str, int] = {}
    for layer, args, kwargs, _ in compat.layer_calls(compat.graph_of(model)):
        if has_map(layer):
            counts[layer.name] = number = counts.get(layer.name, 0) + 1
            name = layer.name if number == 1 else f"{layer.name}_{number}"
            arguments = dict(zip(ARGUMENTS, args, strict=False)) | kwargs
            accepted = {key: arguments.get(key) for key in ARGUMENTS}
            calls[name] = Call(layer, accepted)
    if not calls:
        raise InputError(
            f"the model {model.name!r} has no layer with a map: no LambdaLayer, and no attention layer"
        )
    for name in layers or ():
        check_known(f"layer with a map in {model.name!r}", name, calls)
    return {name: calls[name] for name in calls if layers is None or name in layers}


def tensors_of(calls: Mapping[str, Call]) -> list[Any]:
    """Returns the symbolic tensors among the arguments of calls."""
    flat = K.flatten([call.arguments for call in calls.values()])
    return [x for x in flat if isinstance(x, keras.KerasTensor)]


def arguments_of(
    calls: Mapping[str, Call], values: Sequence[Any]
) -> list[dict[str, Any]]:
    """Returns the arguments of calls with the values of `tensors_of` in them."""
    by_tensor = dict(zip(map(id, tensors_of(calls)), values, strict=True))
    found = []
    for call in calls.values():
        found.append(K.map_structure(lambda x: by_tensor.get(id(x), x), call.arguments))
    return found


def grad_cam(
    model: keras.Model,
    images: Any,
    classes: int | Sequence[int] | None = None,
    level: int | None = None,
) -> Any:
    """Returns where a network finds evidence for a class: Grad-CAM (Selvaraju et al. 2017).

      relu(sum over channels c of a_c map_c), with a_c the mean over the map of d logit / d map_c.

    Args:
      model: a classifier of the zoo or any other graph of layers, from images to logits [b, num_classes].
      images: [b, h, w, c], as in a call of the model.
      classes: a class for all images, or one for each; None: the predicted ones.
      level: the map at the stride 2**level, the last one that all of the network reads; None: the last map.

    Returns:
      Evidence, at least 0 and not normalized, [b, height of the map, width of the map].

    Raises:
      InputError: the model is no classifier, or a class or level is not one of its own.

    Example:
      >>> model = lambdanet.create_model("lambda_resnet_tiny", num_classes=10)
      >>> tuple(grad_cam(model, np.ones([1, 32, 32, 3])).shape)
      (1, 1, 1)
    """
    graph = compat.graph_of(model)
    images = K.cast(images, graph.inputs[0].dtype)
    target = map_at(model, images.shape, level)
    reader = keras.Model(graph.inputs, [target, graph.outputs[0]])
    features, logits = reader([images], training=False)
    return evidence(head_of(model, target), features, one_hot(classes, logits))


def head_of(model: keras.Model, target: Any) -> keras.Model:
    """Returns the part of a network from a map of `map_at` to its logits."""
    return keras.Model(target, compat.graph_of(model).outputs[0])


def evidence(head: keras.Model, features: Any, selected: Any) -> Any:
    """Returns Grad-CAM of maps [b, h, w, c], for the logits that are `selected`, [b, num_classes]."""
    slopes = gradient(lambda x: head(x, training=False) * selected)
    weights = at_least_float32(slopes(features))
    weights = K.mean(weights, axis=[1, 2], keepdims=True)
    return K.relu(K.sum(weights * at_least_float32(features), axis=-1))


def integrated_gradients(
    model: keras.Model,
    images: Any,
    classes: int | Sequence[int] | None = None,
    baseline: Any = None,
    steps: int = 32,
) -> Any:
    """Returns the share of each number of an image in a logit (Sundararajan et al. 2017).

      (x - x') times the mean of d logit / d x along the straight line from a baseline x' to the image x.

    The shares add up to the logit of the image less that of the baseline, but for the error of the mean, by
    the Gauss-Legendre rule.

    Args:
      model, classes: as in `grad_cam`.
      images: [b, h, w, c], as in a call of the model.
      baseline: what is no evidence, of the shape of one image or of all; None: zeros, the mean pixel.
      steps: the number of gradients per image.

    Returns:
      Signed shares, of the shape of the images.

    Raises:
      InputError: as `grad_cam`; or the baseline has another shape.

    Example:
      >>> model = lambdanet.create_model("lambda_resnet_tiny", num_classes=10)
      >>> tuple(integrated_gradients(model, np.ones([1, 32, 32, 3]), steps=4).shape)
      (1, 32, 32, 3)
    """
    steps = check_count("steps", steps)
    compat.graph_of(model)
    dtype = K.dtype_name(model.inputs[0].dtype)
    if "float" not in dtype:
        raise invalid("the input of the model", "floating-point numbers", dtype)
    images = K.cast(images, dtype)
    selected = one_hot(classes, model(images, training=False))
    start = K.zeros_like(images)
    if baseline is not None:
        shapes = [tuple(images.shape), tuple(images.shape)[1:]]
        baseline = K.cast(baseline, dtype)
        if tuple(baseline.shape) not in shapes:
            accepted = f"of the shape {shapes[1]} or {shapes[0]}"
            raise invalid("baseline", accepted, tuple(baseline.shape))
        start = start + baseline
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    slopes = gradient(lambda x: model(x, training=False) * selected)
    terms = []
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        point = start + float(node) * (images - start)
        terms.append(float(weight) * slopes(point))
    return (images - start) * K.add_n(terms)


def map_at(model: keras.Model, shape: Sequence[int], level: int | None = None) -> Any:
    """Returns the symbolic tensor of a level for `grad_cam`, in a model of images of a shape.

    That is the last map at a stride through which all of the network passes: no branch, such as that of a
    residual, leads around it.
    """
    candidates = _bottlenecks(compat.graph_of(model))
    if not candidates:
        raise InputError(f"the model {model.name!r} has no map [b, h, w, c]")
    if level is None:
        return candidates[-1]
    reader = keras.Model(compat.graph_of(model).inputs, candidates)
    specs = reader.compute_output_spec(keras.KerasTensor(tuple(shape)))
    levels = {}
    for x, spec in zip(candidates, K.flatten(specs), strict=True):
        found = round(math.log2(shape[1] / spec.shape[1]))
        # Maps with padding around them have other sizes.
        if ceil_div(shape[1], 2**found) == spec.shape[1]:
            levels[found] = x
    if not is_integer(level) or level not in levels:
        raise invalid("level", f"one of {sorted(levels)}", level)
    return levels[level]


def _bottlenecks(graph: Any) -> list[Any]:
    """Returns the maps of a graph through which all of it passes, in order."""
    calls = list(compat.layer_calls(graph))
    last_reads = {id(x): len(calls) for x in graph.outputs}
    for number, (_, args, kwargs, _) in enumerate(calls):
        for x in K.flatten([args, kwargs]):
            last_reads[id(x)] = max(number, last_reads.get(id(x), 0))
    live = {id(x) for x in graph.inputs}
    found = []
    for number, (_, _, _, outputs) in enumerate(calls):
        live |= {id(x) for x in K.flatten(outputs)}
        live = {x for x in live if last_reads.get(x, 0) > number}
        for x in K.flatten(outputs):
            if live == {id(x)} and len(x.shape) == 4:
                found.append(x)
    return found


def one_hot(classes: Any, logits: Any) -> Any:
    """Returns 1 for the class of each image, else 0, [b, num_classes]; by default, the predicted one."""
    shape = tuple(logits.shape)
    if len(shape) != 2:
        raise InputError(f"the model must return logits [b, num_classes], got {shape}")
    b, count = shape
    if classes is None:
        classes = K.argmax(logits, axis=-1)
    elif is_integer(classes):
        classes = [classes] * b
    numbers = np.asarray(K.convert_to_numpy(classes))
    if numbers.shape != (b,) or not np.isin(numbers, np.arange(count)).all():
        accepted = f"a class from 0 to {count - 1}, or {b}, one for each image"
        raise invalid("classes", accepted, classes)
    return K.cast(np.eye(count, dtype=np.float32)[numbers], logits.dtype)
