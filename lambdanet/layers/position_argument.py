# SPDX-License-Identifier: Apache-2.0
"""The position argument of a lambda layer: its embedding, also from a configuration."""

from collections.abc import Mapping
from typing import Any

from lambdanet.backend import keras
from lambdanet.core import which_keras
from lambdanet.core.errors import InputError, invalid, unknown
from lambdanet.layers.argument_checks import own_initializer
from lambdanet.layers.position_embedding import (
    SHARED,
    PositionEmbedding,
    RelativePositionEmbedding,
    UnstructuredPositionEmbedding,
)

KINDS = ("relative", "unstructured", None)
SCOPE = 23  # by default


def embedding_of(
    layer: Any, position: Any, embeddings_initializer: Any
) -> PositionEmbedding | None:
    """Returns the embedding that the argument `position` of a lambda layer names or is.

    Args:
      layer: the layer, with its other arguments. A scope and an implementation that are not the defaults must
        equal a given embedding's.
      position: one of `KINDS`, or an embedding.
      embeddings_initializer: the initializer of the embedding; None with a given one, which has its own.

    Raises:
      InputError: for another position, or arguments that contradict it.
    """
    options = {
        "embeddings_initializer": embeddings_initializer,
        "dtype": layer.dtype_policy,
        "name": "position",
    }
    embedding: PositionEmbedding
    if position is None:
        if not layer.content:
            raise InputError(
                "a lambda layer needs content, positions or both, got content=False and position=None"
            )
        own_initializer(embeddings_initializer)
        return None
    if position == "relative":
        embedding = RelativePositionEmbedding(
            scope=layer.scope, implementation=layer.implementation, **options
        )
    elif position == "unstructured":
        embedding = UnstructuredPositionEmbedding(**options)
    elif isinstance(position, str):
        raise unknown("position", position, [name for name in KINDS if name])
    else:
        which_keras.check_keras_3(position, "position")
        if not isinstance(position, PositionEmbedding):
            accepted = f"one of {KINDS} or a PositionEmbedding"
            raise invalid("position", accepted, position)
        if layer.scope != SCOPE:
            check_beside(position, "scope", layer.scope)
        if layer.implementation not in ("auto", "reference"):
            check_beside(position, "implementation", layer.implementation)
        if embeddings_initializer is not None:
            raise invalid(
                "embeddings_initializer beside a position embedding",
                "None, as the embedding has its own",
                embeddings_initializer,
            )
        embedding = position
    embedding.add_user(layer)
    return embedding


def is_named(layer: Any) -> bool:
    """Returns whether the configuration of a lambda layer has the name of its positions, or None.

    Else the embedding was given, another layer has taken it from this one, or its table is for a whole map,
    that of the first input by now.
    """
    position = layer.position
    if position is None:
        return True
    is_own = layer.position_kind is not None and position.num_users == 1
    return is_own and getattr(position, "map_size", None) is None


def check_beside(position: PositionEmbedding, name: str, value: Any) -> None:
    """Checks that an argument beside an embedding, by its name there, does not contradict the embedding."""
    own = getattr(position, name, value)
    sides = (value,) * len(own) if isinstance(own, tuple) else value  # of a map
    if own not in (value, sides):
        accepted = f"{own!r}, as in the embedding"
        raise invalid(f"{name} beside a position embedding", accepted, value)


def with_position(config: Mapping[str, Any], position: Any) -> dict[str, Any]:
    """Returns the configuration of a lambda layer with an embedding, which has its own scope."""
    own = ("scope", "embeddings_initializer")
    others = {name: value for name, value in config.items() if name not in own}
    return {**others, "position": position}


def deserialize_position(config: Mapping[str, Any]) -> PositionEmbedding:
    """Returns the embedding of a `PositionEmbedding.serialize`, one for all layers of a model that share it.

    While Keras loads a model it keeps shared objects, and returns the same one for the same configuration.

    Raises:
      InputError: layers share it, and Keras keeps nothing, so that each would have its own.
    """
    # By the registered name, the only one that Keras finds in a .h5 file.
    config = {
        **config,
        "class_name": config.get("registered_name") or config["class_name"],
    }
    deserialize = keras.saving.deserialize_keras_object
    embedding = deserialize(config)
    if SHARED not in config or embedding is deserialize(config):
        return embedding
    raise InputError(
        "layers that share a position embedding cannot be copied one by one, as by `clone_model`, because "
        "each would have its own; save the model as a .keras file and load that"
    )
