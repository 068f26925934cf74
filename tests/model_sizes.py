# SPDX-License-Identifier: Apache-2.0
"""Counts the networks of the zoo; as a program, writes the table of all in models/sizes.csv."""

import csv

import keras

from lambdanet.backend import compat
from lambdanet.models import complexity, names, zoo
from lambdanet.models.layer_builder import LayerBuilder


def row(name: str, input_size: int | None = None) -> dict[str, str]:
    """Returns the row of a model in the table, counted on all layers of the whole network."""
    architecture = zoo.MODELS[name]
    input_size = input_size or architecture.input_size
    images = keras.Input([*[input_size] * architecture.rank, 3])

    builder = LayerBuilder()
    with compat.without_values():
        endpoints = architecture.endpoints(images, builder)
        embedding = architecture.embedding(endpoints, builder)
        logits = builder.classifier(embedding, architecture.num_classes)
        model = keras.Model(images, logits)
    first = 0 if architecture.task == "segmentation" else 6 - len(endpoints)
    assert list(endpoints) == [str(first + i) for i in range(len(endpoints))]
    return {
        "model": name,
        "parameters": str(complexity.count_parameters(model)),
        "flops": str(complexity.count_flops(model)),
        "input_size": str(input_size),
        "channels": " ".join(
            str(endpoint.shape[-1]) for endpoint in endpoints.values()
        ),
        "embedding_size": str(embedding.shape[-1]),
        "source": architecture.source,
        "task": architecture.task,
    }


def main() -> None:
    rows = [row(name) for name in zoo.MODELS]
    with names.FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
