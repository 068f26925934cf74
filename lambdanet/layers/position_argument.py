# SPDX-License-Identifier: Apache-2.0
"""The position arguments of a lambda layer: its embedding from them, and from a configuration."""

from collections.abc import Mapping
from typing import Any

from lambdanet import which_keras
from lambdanet.backend import keras
from lambdanet.errors import InputError, invalid, unknown
from lambdanet.layers.position_embedding import (
    SHARED,
    PositionEmbedding,
    RelativePositionEmbedding,
    UnstructuredPositionEmbedding,
)

KINDS = ("relative", "unstructured", None)
# The arguments of a lambda layer for its relative embedding -> their names there.
RELATIVE = {
    name: name for name in ("scope", "dilation", "map_size", "resize", "implementation")
}
RELATIVE["position_bias"] = "use_bias"


def embedding_of(
    position: str | PositionEmbedding | None,
    relative: RelativePositionEmbedding,
    embeddings_initializer: Any,
) -> PositionEmbedding | None:
    """Returns the embedding that the argument `position` of a lambda layer names or is.

    Args:
      position: one of `KINDS`, or an embedding.
      relative: the embedding of the layer's other arguments for "relative". Those that are not the defaults
        must equal a given embedding's.
      embeddings_initializer: the initializer of the embedding; None with a given one, which has its own.

    Raises:
      InputError: for another position, or arguments that contradict it.
    """
    embedding: PositionEmbedding
    if position is None:
        return None
    if position == "relative":
        embedding = relative
    elif position == "unstructured":
        embedding = UnstructuredPositionEmbedding(
            relative.key_dim,
            relative.intra_depth,
            relative.num_lambdas,
            embeddings_initializer=embeddings_initializer,
            dtype=relative.dtype_policy,
            name=relative.name,
        )
    elif isinstance(position, str):
        raise unknown("position", position, [name for name in KINDS if name])
    else:
        _check_given(position, relative, embeddings_initializer)
        embedding = position
    embedding.num_users += 1
    return embedding


def _check_given(
    position: Any, relative: RelativePositionEmbedding, embeddings_initializer: Any
) -> None:
    """Checks that the arguments of a lambda layer do not contradict an embedding that it is given."""
    which_keras.check_keras_3(position, "position")
    if not isinstance(position, PositionEmbedding):
        raise invalid("position", f"one of {KINDS} or a PositionEmbedding", position)
    for name in ("key_dim", "intra_depth", "num_lambdas"):
        value = getattr(relative, name)
        if (given := getattr(position, name)) != value:
            raise invalid(
                f"{name} of the position embedding", f"{value} as in the layer", given
            )
    defaults = RelativePositionEmbedding(name=relative.name)
    for argument, name in RELATIVE.items():
        given = getattr(relative, name)
        default = getattr(defaults, name)
        own = getattr(position, name, default)
        sides = (given,) * len(own) if isinstance(own, tuple) else given  # of a map
        if given != default and own not in (given, sides):
            raise invalid(
                f"{argument} beside a position embedding",
                f"{own!r}, as in the embedding",
                given,
            )
    if embeddings_initializer is not None:
        raise invalid(
            "embeddings_initializer beside a position embedding",
            "None, as the embedding has its own",
            embeddings_initializer,
        )


def without_relative(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration of a lambda layer without the arguments that a given embedding has itself."""
    own = {*RELATIVE, "embeddings_initializer"}
    return {name: value for name, value in config.items() if name not in own}


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
