# SPDX-License-Identifier: Apache-2.0
"""Counts the networks of the zoo; as a program, writes the table of all in models/sizes.csv."""

import contextlib
import csv
import functools
from collections.abc import Iterator
from unittest import mock

import keras

from lambdanet import backend
from lambdanet.backend import compat
from lambdanet.models import complexity, names, zoo
from lambdanet.models.layer_builder import LayerBuilder


@contextlib.contextmanager
def layers_built_once() -> Iterator[list[tuple[int, int]]]:
    """Yields parameters and multiply-adds of every layer that is called inside.

    Of layers with the same configuration on the same maps, only the first of the process is built.
    """
    sizes, call = [], keras.layers.Layer.__call__

    def count(layer, inputs, **options):
        shapes = backend.map_structure(lambda x: x.shape, inputs)
        key = repr((type(layer), {**layer.get_config(), "name": None}, shapes))
        if key not in _COUNTED:
            outputs = call(layer, inputs, **options)
            placeholders = backend.map_structure(
                lambda x: _placeholder(tuple(x.shape[1:])), outputs
            )
            parameters = sum(
                weight.shape.num_elements() for weight in layer.trainable_weights
            )
            _COUNTED[key] = (parameters, complexity.multiply_adds(layer)), placeholders
        size, placeholders = _COUNTED[key]
        sizes.append(size)
        return placeholders

    with mock.patch.object(keras.layers.Layer, "__call__", count):
        yield sizes


_COUNTED = {}  # the sizes of layers, with placeholders of their outputs


@functools.cache
def _placeholder(shape):
    """A symbolic tensor that does not keep the layer before it in memory."""
    return keras.Input(shape)


def row(name: str, input_size: int | None = None) -> dict[str, str]:
    """Returns the row of a model in the table, counted on all layers of the whole network."""
    architecture = zoo.MODELS[name]
    input_size = input_size or architecture.input_size
    images = keras.Input([input_size, input_size, 3])

    def build():
        endpoints = architecture.endpoints(images, LayerBuilder())
        embedding = architecture.embedding(endpoints, LayerBuilder())
        return endpoints, embedding, LayerBuilder().classifier(embedding, 1000)

    with compat.without_values():
        # Whose library looks for layers in the graph.
        if name.startswith("efficientnet"):
            endpoints, embedding, logits = build()
            model = keras.Model(images, logits)
            parameters, flops = (
                complexity.count_parameters(model),
                complexity.count_flops(model),
            )
        else:
            with layers_built_once() as sizes:
                endpoints, embedding, _ = build()
            parameters, flops = (
                sum(size[0] for size in sizes),
                2 * sum(size[1] for size in sizes),
            )
    assert list(endpoints) == ["1", "2", "3", "4", "5"][5 - len(endpoints) :]
    return {
        "model": name,
        "parameters": str(parameters),
        "flops": str(flops),
        "input_size": str(input_size),
        "channels": " ".join(
            str(endpoint.shape[-1]) for endpoint in endpoints.values()
        ),
        "embedding_size": str(embedding.shape[-1]),
        "source": architecture.source,
    }


def main() -> None:
    rows = [row(name) for name in zoo.MODELS]
    with names.FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
