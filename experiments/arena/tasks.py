# SPDX-License-Identifier: Apache-2.0
"""The tasks of the arena, one row each: functions from settings to a `Task`.

Examples depend on a seed alone. Those of the training, validation and test sets differ: they have other seeds
and, for real digits, other pictures.
"""

import functools
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.signal import correlate2d

from experiments.arena import pathfinder
from experiments.arena.constructions import (
    ARROWS,
    COLORS,
    RECALL_SYMBOLS,
    TOKENS,
    Examples,
    in_context_recall,
    pointer_grid,
    recall,
)

SPLITS = ("train", "validation", "test")
SIDE = 16  # of most maps
PICTURES = {"train": 12000, "validation": 500, "test": 2000}  # of Pathfinder

Draw = Callable[[int, str, int], Examples]
Labeled = tuple[np.ndarray, np.ndarray]  # inputs and answers


class Task(NamedTuple):
    """A task.

    Attributes:
      title: its name in tables.
      draw: returns a number of examples of a split, by a seed. Answers are -1 where there is no question.
      shape: the shape of an input, [h, w, c] or, for a causal task, [n, c].
      classes: the number of possible answers.
      mixers: the number of operators in the network.
      parameters: the number of parameters of the network.
      epochs: the number of times 100 batches of 32 examples are drawn and trained on.
      pooled: whether an example has one answer.
      causal: whether a position sees those up to it.
    """

    title: str
    draw: Draw
    shape: tuple[int, ...]
    classes: int
    mixers: int
    parameters: int
    epochs: int
    pooled: bool = False
    causal: bool = False


def _generated(generate: Callable[..., Examples], **options: int) -> Draw:
    """Returns the function `draw` of a generator, whose seeds differ between the splits."""
    return lambda number, split, seed: generate(
        number, seed=SPLITS.index(split) + 3 * seed, **options
    )


def permuted(task: Task, seed: int = 0) -> Task:
    """Returns a task with the positions in an order drawn once, the same for all examples."""
    height, width, _ = task.shape
    order = np.random.default_rng(seed).permutation(height * width)

    def draw(number: int, split: str, seed: int) -> Examples:
        inputs, answers = task.draw(number, split, seed)
        return Examples(
            *(x if x.ndim < 3 else _permute(x, order) for x in (inputs, answers))
        )

    return task._replace(title=f"{task.title}, permuted", draw=draw)


def _permute(x: np.ndarray, order: np.ndarray) -> np.ndarray:
    flat = x.reshape([len(x), len(order), *x.shape[3:]])
    return flat[:, order].reshape(x.shape)


def pointer() -> Task:
    """The color of the cell that an arrow points to."""
    shape = (SIDE, SIDE, COLORS + len(ARROWS))
    return Task("pointer grid", _generated(pointer_grid), shape, COLORS, 1, 20_000, 10)


def recall_pairs(pairs: int = 32) -> Task:
    """The value that stands beside a key in another position; rows of a map have pairs, then keys."""
    height = 2 ** ((2 * pairs).bit_length() // 2)
    shape = (height, 2 * pairs // height, 2 * RECALL_SYMBOLS)

    def draw(number: int, split: str, seed: int) -> Examples:
        inputs, answers = _generated(recall, pairs=pairs)(number, split, seed)
        return Examples(
            inputs.reshape([number, *shape]), answers.reshape([number, *shape[:2]])
        )

    return Task(f"recall, {pairs} pairs", draw, shape, RECALL_SYMBOLS, 1, 30_000, 15)


def in_context() -> Task:
    """The token that came after the same token before: keys and values are neighbors in a sequence."""
    length = 64
    draw = _generated(in_context_recall, length=length)
    shape = (length, 3 * TOKENS + 1)
    return Task("in-context recall", draw, shape, TOKENS, 2, 20_000, 40, causal=True)


def relations() -> Task:
    """Whether two objects are the same: 3x3 cells, drawn for each example, on an empty map."""
    return Task(
        "same or different",
        _generated(same_objects),
        (12, 12, 1),
        2,
        2,
        20_000,
        20,
        pooled=True,
    )


def same_objects(number: int, seed: int = 0, side: int = 12) -> Examples:
    """Draws maps with two objects, each of 5 cells within 3x3, in different halves of a map."""
    random = np.random.default_rng(seed)
    same = random.integers(2, size=number)
    maps = np.zeros([number, side, side, 1], np.float32)
    for x, is_same in zip(maps, same, strict=True):
        first, second = (
            random.permutation(5 * [1] + 4 * [0]).reshape([3, 3]) for _ in range(2)
        )
        while correlate2d(first, second).max() == 5:  # equal, or shifted
            second = random.permutation(second.ravel()).reshape([3, 3])
        for index, shape in enumerate((first, first if is_same else second)):
            row = random.integers(side - 2)
            column = random.integers(side // 2 - 2) + index * (side // 2)
            x[row : row + 3, column : column + 3, 0] = shape
        if random.random() < 0.5:
            x[:] = x.transpose([1, 0, 2])
    return Examples(maps, same)


def segment() -> Task:
    """Whether a patch of a curve belongs to the one that has the mark."""
    draw = _draw_from(partial(_pictures, "segment"))
    return Task("Pathfinder, segments", draw, (SIDE, SIDE, 8), 2, 3, 30_000, 10)


def connected() -> Task:
    """Whether two marks are at the ends of the same curve."""
    draw = _draw_from(partial(_pictures, "connected"))
    return Task(
        "Pathfinder, connected", draw, (SIDE, SIDE, 8), 2, 3, 30_000, 12, pooled=True
    )


@functools.cache
def _pictures(kind: str) -> dict[str, Labeled]:
    """Returns pictures of Pathfinder by split."""
    return {
        name: pathfinder.pictures(PICTURES[name], kind, seed)
        for seed, name in enumerate(SPLITS)
    }


@functools.cache
def _signals() -> dict[str, Labeled]:
    """Returns the signals of MNIST-1D, [n, 40, 1, 1], by split; the test set is the published one."""
    from mnist1d.data import make_dataset

    data = make_dataset()
    signals, tested = (
        data[name].reshape([-1, 40, 1, 1]).astype(np.float32)
        for name in ("x", "x_test")
    )
    parts = zip(np.split(signals, [3500]), np.split(data["y"], [3500]), strict=True)
    return dict(zip(SPLITS, [*parts, (tested, data["y_test"])], strict=True))


@functools.cache
def _digits() -> dict[str, Labeled]:
    """Returns scikit-learn's pictures of digits, [n, 8, 8, 1] in 0 to 1, by split."""
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    pictures = pictures[order].reshape([-1, 8, 8, 1]).astype(np.float32) / 16
    labels = labels[order]
    cuts = (1097, 1397)
    return dict(
        zip(
            SPLITS,
            zip(np.split(pictures, cuts), np.split(labels, cuts), strict=True),
            strict=True,
        )
    )


def _draw_from(pools: Callable[[], dict[str, Labeled]]) -> Draw:
    """Returns the function `draw` of given examples: random ones to train on, else all of the split."""

    def draw(number: int, split: str, seed: int) -> Examples:
        examples = Examples(*pools()[split])
        if split != "train":
            return examples
        chosen = np.random.default_rng(seed).integers(
            len(examples.answers), size=number
        )
        return Examples(*(x[chosen] for x in examples))

    return draw


def digits() -> Task:
    """The digit of a picture of 8x8 pixels."""
    return Task(
        "digits", _draw_from(_digits), (8, 8, 1), 10, 2, 20_000, 10, pooled=True
    )


def mnist1d() -> Task:
    """The digit of a signal of MNIST-1D (Greydanus and Kobak 2020): 40 values, as a map of width 1."""
    return Task(
        "MNIST-1D", _draw_from(_signals), (40, 1, 1), 10, 2, 20_000, 20, pooled=True
    )


def pointing_digits() -> Task:
    """Visual PVR: of 2x2 digits, the top left one says where the answer is.

    For 0 to 3 it is the digit on the top right, for 4 to 6 on the bottom left, else on the bottom right.
    """

    def draw(number: int, split: str, seed: int) -> Examples:
        pictures, labels = _digits()[split]
        chosen = np.random.default_rng(seed).integers(len(labels), size=[number, 4])
        quarters = (
            pictures[chosen].reshape([number, 2, 2, 8, 8]).transpose([0, 1, 3, 2, 4])
        )
        pointer = labels[chosen[:, 0]]
        places = 1 + (pointer > 3) + (pointer > 6)
        return Examples(
            quarters.reshape([number, 16, 16, 1]), labels[chosen[range(number), places]]
        )

    return Task(
        "pointing digits", draw, (SIDE, SIDE, 1), 10, 3, 30_000, 15, pooled=True
    )


TASKS: dict[str, Callable[..., Task]] = {
    "pointer": pointer,
    "recall": recall_pairs,
    "in_context": in_context,
    "segment": segment,
    "connected": connected,
    "digits": digits,
    "mnist1d": mnist1d,
    "pointer_permuted": lambda: permuted(pointer()),
    "segment_permuted": lambda: permuted(segment()),
    "pointing_digits": pointing_digits,
    "relations": relations,
}
