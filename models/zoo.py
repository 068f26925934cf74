# SPDX-License-Identifier: Apache-2.0
"""Zoo of models: builds them by name, and reports their sizes."""

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lambdanet.backend import compat, keras
from lambdanet.backend.tensors import per_axis
from lambdanet.core import which_keras
from lambdanet.core.errors import (
    InputError,
    check_count,
    check_natural,
    invalid,
    is_integer,
    one_line,
)
from lambdanet.layers.argument_checks import check_rates
from lambdanet.layers.batch_norm import BatchNormalization
from lambdanet.models import (
    complexity,
    efficientnet,
    halonet,
    lambda_resnet,
    micro,
    mobilenet_v2,
    names,
    resnet_50,
    resnet_rs,
    timm_networks,
    unet,
)
from lambdanet.models.inference import InferenceModel  # noqa: F401, so that Keras loads one
from lambdanet.models.layer_builder import POOLINGS, Architecture, LayerBuilder
from lambdanet.models.names import ModelInfo
from lambdanet.models.output_stride import NATIVE, OUTPUT_STRIDES
from lambdanet.models.weights import pretrained, weight_files

EMBEDDING = "embedding"
MODELS: dict[str, Architecture] = {
    **resnet_50.MODELS,
    **resnet_rs.MODELS,
    **lambda_resnet.MODELS,
    **micro.MODELS,
    **mobilenet_v2.MODELS,
    **halonet.MODELS,
    **timm_networks.MODELS,
    **efficientnet.MODELS,
    **unet.MODELS,
}


def model_info(name: str, input_size: int | None = None, **overrides: Any) -> ModelInfo:
    """Returns the size, source, recipes and weights of a model.

    The size is in the table `models/sizes.csv`; for another input size or with options, the whole
    network is built and counted, which takes seconds.

    Args:
      name: one of `list_models()`, or of `list_models(task="segmentation")`.
      input_size: the side of the images for the FLOPs, in pixels; default: the model table's.
      **overrides: options of the model's layers, as for `create_model`.

    Raises:
      InputError: the model or an override is unknown.

    Example:
      >>> model_info("resnet_50_llll", key_dim=8).params
      14775816
      >>> [stage.channels for stage in model_info("resnet_50").stages]
      [64, 256, 512, 1024, 2048]
    """
    _check_model(name)
    info = names.info(name)
    if input_size in (None, info.input_size) and not overrides:
        return info
    input_size = (
        info.input_size if input_size is None else check_count("input_size", input_size)
    )
    _check_overrides(name, MODELS[name], overrides)
    with compat.without_values():
        model = create_model(name, input_size=input_size, **overrides)
    params = complexity.count_parameters(model)
    flops = complexity.count_flops(model)
    return dataclasses.replace(info, params=params, flops=flops, input_size=input_size)


def _check_model(name: str) -> None:
    """Checks that there is a model of this name, and that its sizes have been counted."""
    if name in list(MODELS) and name not in names.rows():
        raise InputError(
            f"{name!r} has no row in models/sizes.csv; run python tests/model_sizes.py, which counts it"
        )
    names.check_model(name)


@compat.channels_last()
def create_model(
    name: str,
    num_classes: int | None = None,
    input_size: int | tuple[int, int] | None = None,
    in_channels: int | None = None,
    weights: str | Path | None = None,
    features_only: bool = False,
    dropout_rate: float = 0.0,
    stochastic_depth_rate: float = 0.0,
    kernel_regularizer: Any = None,
    batch_norm: Mapping[str, Any] | None = None,
    activation: str | None = None,
    pooling: str | None = "avg",
    out_levels: Sequence[int | str] | None = None,
    output_stride: int = NATIVE,
    layer_name: str | None = None,
    **overrides: Any,
) -> keras.Model:
    """Builds a model of the zoo.

    Args:
      name: one of `list_models()`, or of `list_models(task="segmentation")`: U-Nets, which take no
        `stochastic_depth_rate`, `output_stride` and `pooling`.
      num_classes: the number of logits; 0 for the embedding that the classifier would read. None: that of the
        weights; without weights, 1,000, or 1 of a U-Net.
      input_size: the side of the images, or one for each axis such as (height, width), in pixels; None leaves
        all open.
      in_channels: the number of channels of the images. Weights for RGB are adapted: the kernel of the first
        convolution is summed over its channels for 1, else repeated and multiplied by 3 / in_channels. None:
        that of the weights; without weights, 3.
      weights: "imagenet" or another published set of the model, or "hf:USER/REPO" ("hf:USER/REPO@COMMIT") for
        a repository on the Hugging Face hub, which are fetched and converted once; a `.safetensors` file of
        the same model; a folder that `lambdanet convert` wrote; or the name of a set in the folder
        $LAMBDANET_HOME (default: ~/.cache/lambdanet) or in this package: "digits" of `lambda_resnet_tiny` and
        "fashion_mnist" of `lambda_resnet_micro`. None: random weights; the model's `load_weights` reads a
        `.weights.h5` file of the same architecture. With another number of classes than a published set, the
        classifier is random.
      features_only: return the endpoints {"2": ..., "5": ...} at strides 4, 8, 16 and 32 instead of logits;
        see `out_levels`.
      dropout_rate: the rate of dropout before the classifier, in [0, 1).
      stochastic_depth_rate: the rate of stochastic depth in the last stage, in [0, 1).
      kernel_regularizer: the regularizer of every kernel, such as `keras.regularizers.L2(weight_decay / 2)`.
      batch_norm: arguments of every batch normalization, over momentum 0.9 and epsilon 1e-5.
      activation: the name of the activation of every block, such as "swish"; None: the network's.
      pooling: the pooling of the last map, "avg" or "max"; with `num_classes=0` also None: the map itself.
      out_levels: with `features_only`, the levels to return, any of 1 to 5, or of a U-Net from 0; level i is
        at stride 2**i. Beside them, "embedding" is what the classifier reads. None: levels 2 to 5.
      output_stride: the largest stride of a map, 8, 16 or 32, with the same weights: below 32, the last maps
        are finer, as segmentation needs, and layers see them as with a dilation (Chen et al. 2017); see
        `lambdanet.models.output_stride`.
      layer_name: the name of the model as a layer of another one, in which names differ; None: `name`.
      **overrides: options of the model's layers, such as `key_dim=8` for lambda layers.

    Returns:
      A functional model: normalized float32 images [b, h, w, in_channels] -> float32 logits
      [b, num_classes], or with `num_classes=0` the embedding [b, d], or with `features_only` maps
      {level: [b, h / s, w / s, d]} with s the smaller of 2**level and `output_stride`. On a CPU, b = 0 needs
      XLA or TF_ENABLE_ONEDNN_OPTS=0. The logits and the embedding of a U-Net are of each position,
      [b, *size, num_classes].

    Raises:
      InputError: the model or an override is unknown, a value is out of range, or the weights do not fit.
      ConnectionError: published weights are not in the cache and cannot be fetched.

    Example:
      >>> model = create_model("lambda_resnet_50", num_classes=10, input_size=160)
      >>> tuple(model(keras.ops.zeros([1, 160, 160, 3])).shape)
      (1, 10)
    """
    _check_model(name)
    architecture = MODELS[name]
    _check_overrides(
        name, architecture, overrides, inspect.signature(create_model).parameters
    )
    for argument, value in {
        "kernel_regularizer": kernel_regularizer,
        **overrides,
    }.items():
        which_keras.check_keras_3(value, argument)
    path = (
        None
        if weights is None
        else pretrained.locate(name, weights, functools.partial(create_model, name))
    )
    classes, channels = architecture.num_classes, weight_files.RGB
    if path is not None:
        classes, channels = weight_files.read_sizes(path)
    num_classes = check_natural(
        "num_classes", classes if num_classes is None else num_classes
    )
    in_channels = check_count(
        "in_channels", channels if in_channels is None else in_channels
    )
    pooling = _checked_pooling(pooling, num_classes)
    if not isinstance(features_only, bool):
        raise invalid("features_only", "True or False", features_only)
    if out_levels is not None and not features_only:
        raise invalid("out_levels", "None without features_only=True", out_levels)
    check_rates(dropout_rate=dropout_rate, stochastic_depth_rate=stochastic_depth_rate)
    if not is_integer(output_stride) or output_stride not in OUTPUT_STRIDES:
        accepted = ", ".join(map(str, OUTPUT_STRIDES))
        raise invalid("output_stride", f"one of {accepted}", output_stride)
    builder = LayerBuilder(
        _checked_regularizer(kernel_regularizer),
        _checked_batch_norm(batch_norm),
        _checked_activation(activation),
        output_stride=int(output_stride),
    )
    size = per_axis(input_size, architecture.rank, "input_size")
    if input_size is not None:
        size = tuple(check_count("input_size", side) for side in size)
    images = keras.Input([*size, in_channels], name="images")
    features = architecture.endpoints(
        images, builder, stochastic_depth_rate, **overrides
    )
    embedding = architecture.embedding(features, builder, pooling)
    name = layer_name or name
    maps = _select_levels({**features, EMBEDDING: embedding}, out_levels)
    if features_only and path is None:
        return keras.Model(images, maps, name=name)
    whole = keras.Model(
        images, builder.classifier(embedding, num_classes or 1, dropout_rate), name=name
    )
    model = whole
    if features_only or not num_classes:
        model = keras.Model(images, maps if features_only else embedding, name=name)
    if path is not None:
        weight_files.load_weights(model, path, whole)
    return model


def _check_overrides(
    name: str,
    architecture: Architecture,
    overrides: Mapping[str, Any],
    others: Iterable[str] = (),
) -> None:
    """Raises `InputError` for an override that is no option; names the nearest of `others`."""
    for override in overrides:
        if override == "include_top":
            raise InputError(
                "include_top is num_classes=0 here, for the embedding, or features_only=True, for maps"
            )
        if override not in architecture.option_names():
            near = "".join(
                f" (did you mean {other}?)"
                for other in difflib.get_close_matches(override, others, n=1)
            )
            accepted = ", ".join(sorted(architecture.option_names())) or "none"
            raise InputError(
                f"model {name!r} has no option {override!r}{near}; its options: {accepted}"
            )


def _checked_regularizer(regularizer: Any) -> Any:
    try:
        found = keras.regularizers.get(regularizer)
    except (ValueError, TypeError):
        found = regularizer
    if found is not None and not callable(found):
        raise invalid(
            "kernel_regularizer", "a Keras regularizer or the name of one", regularizer
        )
    return found


def _checked_batch_norm(arguments: Mapping[str, Any] | None) -> Mapping[str, Any]:
    arguments = {} if arguments is None else arguments
    try:
        norm = BatchNormalization(
            **arguments, axis=-1, gamma_initializer="ones", name="norm"
        )
        if not (0 <= norm.momentum <= 1 and norm.epsilon > 0):
            raise ValueError("momentum is from 0 to 1 and epsilon above 0")
    except InputError:  # of the dtype
        raise
    except (ValueError, TypeError) as error:
        raise invalid(
            "batch_norm",
            "arguments of a Keras BatchNormalization but axis, gamma_initializer and name",
            arguments,
            one_line(error),
        ) from None
    return arguments


def _checked_activation(name: str | None) -> str | None:
    try:
        keras.activations.get(name)
    except (ValueError, TypeError):
        raise invalid(
            "activation", "the name of a Keras activation such as 'swish'", name
        ) from None
    return name


def _checked_pooling(pooling: str | None, num_classes: int) -> str | None:
    accepted = (*POOLINGS, *(() if num_classes else (None,)))
    if pooling not in accepted:
        hint = "None needs num_classes=0" if pooling is None else ""
        raise invalid(
            "pooling", f"one of {', '.join(map(repr, accepted))}", pooling, hint
        )
    return pooling


def _select_levels(
    features: Mapping[str, Any], levels: Sequence[int | str] | None
) -> dict[str, Any]:
    """The endpoints of the given levels; None means all from level 2 on."""
    if levels is None:
        return {level: x for level, x in features.items() if level in "2345"}
    known = [int(level) for level in features if level != EMBEDDING]
    if (
        not isinstance(levels, Sequence)
        or not levels
        or not all(i == EMBEDDING or (is_integer(i) and i in known) for i in levels)
    ):
        raise invalid(
            "out_levels", f"some of the levels {', '.join(map(str, known))}", levels
        )
    names = [level if level == EMBEDDING else str(int(level)) for level in levels]
    return {name: features[name] for name in names}
