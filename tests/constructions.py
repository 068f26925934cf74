# SPDX-License-Identifier: Apache-2.0
"""Weights set by hand that solve tasks exactly.

    python tests/constructions.py

prints how many answers are right. The page "What each half can do" of the documentation explains them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.random import default_rng

from lambdanet import backend as K
from lambdanet.backend import compat, keras
from lambdanet.core import text_table
from lambdanet.layers.lambda_layer import LambdaLayer

COLORS = 8
ARROWS = [
    (s * dy, s * dx)
    for s in (1, 2)
    for dy in (-1, 0, 1)
    for dx in (-1, 0, 1)
    if (dy, dx) != (0, 0)
]
REACH = 2  # of an arrow, in cells
RECALL_SYMBOLS = 64  # keys, and the same number of values
TOKENS = 8  # keys of the in-context task, and the same number of values
SHARPNESS = 30.0  # the size of a key, for a softmax that is 0 or 1 up to exp(-30)


class Examples(NamedTuple):
    """Examples of a task.

    Attributes:
      inputs: [b, ..., c].
      answers: the class to be predicted at each position, -1 where there is none, [b, ...].
    """

    inputs: np.ndarray
    answers: np.ndarray


def one_hot(classes: Any, depth: int) -> np.ndarray:
    """Returns vectors of zeros and a one, [..., depth]; of zeros for the class -1."""
    return np.eye(depth + 1, depth, dtype=np.float32)[classes]


def pointer_grid(number: int = 64, side: int = 16) -> Examples:
    """Draws boards of colors, a tenth of them with arrows; the answer is the color at an arrow's end."""
    random = default_rng(0)
    colors = random.integers(COLORS, size=[number, side, side])
    arrows = np.where(
        random.random(colors.shape) < 0.1,
        random.integers(len(ARROWS), size=colors.shape),
        -1,
    )
    board, row, column = np.indices(colors.shape)
    row, column = np.moveaxis(np.array(ARROWS)[arrows], -1, 0) + np.stack([row, column])
    arrows[(row < 0) | (row >= side) | (column < 0) | (column >= side)] = -1
    answers = np.where(arrows < 0, -1, colors[board, row % side, column % side])
    inputs = [one_hot(colors, COLORS), one_hot(arrows, len(ARROWS))]
    return Examples(np.concatenate(inputs, axis=-1), answers)


def recall(number: int = 64, pairs: int = 32) -> Examples:
    """Draws sequences of pairs of a key and a value, then the keys alone; the answer is the key's value."""
    random = default_rng(0)
    keys = np.argsort(random.random([number, RECALL_SYMBOLS]))[:, :pairs]
    values = random.integers(RECALL_SYMBOLS, size=[number, pairs])
    order = np.argsort(random.random([number, pairs]))
    asked, answers = (
        np.take_along_axis(symbols, order, axis=1) for symbols in (keys, values)
    )
    unknown = np.full_like(values, -1)
    inputs = [
        one_hot(np.append(*symbols, axis=1), RECALL_SYMBOLS)
        for symbols in ([keys, asked], [values, unknown])
    ]
    answers = np.append(unknown, answers, axis=1)
    return Examples(np.concatenate(inputs, axis=-1), answers)


def in_context_recall(number: int = 64, length: int = 128) -> Examples:
    """Draws sequences key, value, key, value ...; the answer at a key that was there before is its value."""
    random = default_rng(0)
    keys = random.integers(TOKENS, size=[number, length // 2])
    values = np.take_along_axis(
        random.integers(TOKENS, size=[number, TOKENS]), keys, axis=1
    )
    same = np.tril(keys[:, :, np.newaxis] == keys[:, np.newaxis], -1)
    answers = np.stack(
        [np.where(same.any(axis=-1), values, -1), np.full_like(values, -1)], axis=-1
    )
    tokens = np.stack([keys, TOKENS + values], axis=-1).reshape([number, -1])
    # The token one-hot, a constant, and place for the token before it.
    inputs = np.zeros([*tokens.shape, 3 * TOKENS + 1], np.float32)
    inputs[..., : 2 * TOKENS] = one_hot(tokens, 2 * TOKENS)
    inputs[..., 2 * TOKENS] = 1
    return Examples(inputs, answers.reshape([number, -1]))


def pointer_network(**options: Any) -> keras.Model:
    """Returns the lambda layer that solves the pointer grid by positions: q is the arrow, V the color.

    Args:
      **options: other arguments of the layer, such as `implementation` or `content`.
    """
    arguments = {
        "num_heads": 1,
        "key_dim": len(ARROWS),
        "scope": 2 * REACH + 1,
        **options,
    }
    inputs = keras.Input([None, None, COLORS + len(ARROWS)])
    layer = LambdaLayer(COLORS, **arguments)
    outputs = layer(inputs)
    table = np.zeros([2 * REACH + 1, 2 * REACH + 1, len(ARROWS)])
    for arrow, (dy, dx) in enumerate(ARROWS):
        table[REACH + dy, REACH + dx, arrow] = 1
    colors, arrows = np.split(np.eye(COLORS + len(ARROWS)), [COLORS], axis=1)
    set_weights(layer, queries=arrows, values=colors, position=table)
    return keras.Model(inputs, outputs)


def recall_network(**options: Any) -> keras.Model:
    """Returns the lambda layer that solves recall by content: q is the key, V the value, K the key of a pair.

    Args:
      **options: other arguments of the layer, such as `implementation` or `position=None`.
    """
    arguments = {"num_heads": 1, "key_dim": RECALL_SYMBOLS, "scope": 3, **options}
    inputs = keras.Input([None, 2 * RECALL_SYMBOLS])
    layer = LambdaLayer(RECALL_SYMBOLS, **arguments)
    outputs = layer(inputs)
    keys, values = np.split(np.eye(2 * RECALL_SYMBOLS), 2, axis=1)
    has_value = values.sum(axis=1, keepdims=True)
    set_weights(layer, queries=keys, keys=SHARPNESS * (keys + has_value), values=values)
    return keras.Model(inputs, outputs)


def in_context_network(**options: Any) -> keras.Model:
    """Returns two causal lambda layers that solve in-context recall: one moves keys, the other recalls.

    The position lambda of the first, whose query is the constant, adds the key before each token to its
    embedding. For the second, as in `recall_network`, q is the token, K the key before it, and V the value.

    Args:
      **options: other arguments of both layers, such as `implementation`.
    """
    keys, values, constant, slot = np.split(
        np.eye(3 * TOKENS + 1), np.cumsum([TOKENS, TOKENS, 1]), axis=1
    )
    inputs = keras.Input([None, 3 * TOKENS + 1])
    options = {"num_heads": 1, "scope": 3, "causal": True, **options}
    mover = LambdaLayer(3 * TOKENS + 1, key_dim=1, **options)
    x = keras.layers.Add()([inputs, mover(inputs)])
    finder = LambdaLayer(TOKENS, key_dim=TOKENS, **options)
    outputs = finder(x)
    before = np.array([[1], [0]])  # the embedding of the offset -1 is 1
    set_weights(mover, queries=constant, values=keys @ slot.T, position=before)
    set_weights(finder, queries=keys, keys=SHARPNESS * slot, values=values)
    return keras.Model(inputs, outputs)


def set_weights(layer: LambdaLayer, **given: np.ndarray) -> None:
    """Sets the kernels and the table of a lambda layer by their parts; others become zero."""
    for variable in layer.weights:
        *_, part, name = compat.variable_name(variable).split("/")
        if name in ("kernel", "table"):
            variable.assign(given.get(part, np.zeros(variable.shape)))


# Each task, with the network that solves it.
SOLUTIONS: dict[str, tuple[Callable[..., Examples], Callable[..., keras.Model]]] = {
    "pointer grid": (pointer_grid, pointer_network),
    "recall": (recall, recall_network),
    "in-context recall": (in_context_recall, in_context_network),
}


def count_right(outputs: Any, answers: np.ndarray) -> tuple[int, int]:
    """Returns the number of right answers, the classes of the largest outputs, and that of all answers."""
    asked = answers >= 0
    right = K.convert_to_numpy(outputs).argmax(axis=-1) == answers
    return int(right[asked].sum()), int(asked.sum())


def main() -> None:
    rows = []
    for task, (draw, build) in SOLUTIONS.items():
        examples = draw()
        right, asked = count_right(
            build()(examples.inputs, training=False), examples.answers
        )
        rows.append([task, f"{right:,}", f"{asked:,}"])
    print(text_table.render(["task", "right", "of"], rows))


if __name__ == "__main__":
    main()
