# SPDX-License-Identifier: Apache-2.0
"""A source whose classes are numbered in another order, such as that of the run that it is evaluated with."""

from collections.abc import Sequence

import tensorflow as tf

from lambdanet.training.data.class_names import Classes, find_columns, normalized
from lambdanet.training.data.image_bytes import Decoded, Encoded
from lambdanet.training.data.sources import SINGLE_MACHINE, Example, Shard, Source


class Reordered(Source):
    """The images of a source, with the numbers that its classes have among other names.

    Args:
      source: the images, each of whose classes is one of the names.
      names: the classes in the order wanted.
    """

    def __init__(self, source: Source, names: Sequence[str]):
        self._source = source
        self.channels = source.channels
        self.soft = source.soft
        self.class_names = list(names)
        self._numbers = find_columns(source.class_names, names)

    def num_examples(self, split: str, shard: Shard = SINGLE_MACHINE) -> int:
        return self._source.num_examples(split, shard)

    def examples(
        self,
        split: str,
        seed: tf.Tensor | None,
        shard: Shard = SINGLE_MACHINE,
        first: tf.Tensor | int = 0,
    ) -> tf.data.Dataset:
        return self._source.examples(split, seed, shard, first)

    def image(self, example: Example) -> Encoded | Decoded:
        return self._source.image(example)

    def label(self, example: Example) -> tf.Tensor:
        label = self._source.label(example)
        known = (label >= 0) & (label < len(self._numbers))
        number = tf.gather(
            tf.constant(self._numbers, tf.int64), tf.where(known, label, 0)
        )
        return tf.where(known, number, -1)

    def left_out(self, split: str) -> list[tuple[str, list[str], int]]:
        return self._source.left_out(split)

    def check_readable(self, split: str) -> None:
        self._source.check_readable(split)

    def repeated(self, split: str, other: str) -> list[str]:
        return self._source.repeated(split, other)

    def probabilities(self, example: Example) -> tf.Tensor:
        columns = [[number] for number in self._numbers]
        return tf.scatter_nd(
            columns, self._source.probabilities(example), [len(self.class_names)]
        )


def in_order(source: Source, classes: Classes, some: bool = False) -> Source:
    """Returns a source with its classes in an order, and prints a line; the source itself if it has others.

    Args:
      source: the images.
      classes: the classes in the order wanted.
      some: whether the source may have only some of them, as for evaluation.
    """
    own = normalized(source.class_names)
    wanted = normalized(classes.names)
    missing = len(set(wanted) - set(own))
    if own == wanted or set(own) - set(wanted) or (missing and not some):
        return source
    which = f"{len(own)} of the {len(wanted)} classes" if missing else "the classes"
    print(
        f"the data has {which} of {classes.owner} in another order: matched by name",
        flush=True,
    )
    return Reordered(source, classes.names)
