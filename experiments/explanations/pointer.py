# SPDX-License-Identifier: Apache-2.0
"""The pointer grid: how often the position map of an arrow has its peak on the cell that it points to."""

from typing import NamedTuple

import numpy as np

from experiments.arena.constructions import ARROWS, COLORS
from experiments.arena.plan import Cell
from experiments.arena.settings import Setup
from experiments.arena.training import compiled_network, train
from lambdanet.backend import keras
from lambdanet.explain import implied_attentions

SETUP = Setup("pointer", "lambda_both")
LEARNING_RATE = 3e-3
BOARDS = 50  # of validation, and of the test


class Score(NamedTuple):
    """The share of arrows whose peak is on the cell, before and after training, and the accuracy after."""

    before: float
    after: float
    accuracy: float


def score_pointer(seed: int, epochs: int | None = None) -> Score:
    """Trains the network of the arena from a seed, and returns its scores."""
    model, reset = compiled_network(SETUP)
    reset(seed)
    before = share_on_cells(model)
    row = train(Cell(SETUP, seed, LEARNING_RATE), epochs=epochs)
    return Score(before, share_on_cells(model), float(row["test_accuracy"]))


def share_on_cells(model: keras.Model) -> float:
    """Returns the share on boards of the test, for the head and the sign that are best on validation."""
    validation, test = (_hits(model, split) for split in ("validation", "test"))
    best = np.unravel_index(validation.mean(-1).argmax(), validation.shape[:-1])
    return float(test[best].mean())


def _hits(model: keras.Model, split: str) -> np.ndarray:
    """Returns whether the peak is on the cell, [heads, signs, arrows]."""
    inputs, answers = SETUP.task.draw(BOARDS, split, 0)
    size = answers.shape[1:]
    hits = []
    for board, answer in zip(inputs, answers, strict=True):
        rows, columns = np.nonzero(answer >= 0)
        kinds = board[rows, columns, COLORS:].argmax(-1)
        steps = np.array(ARROWS)[kinds]
        cells = (rows + steps[:, 0]) * size[1] + columns + steps[:, 1]
        queries = rows * size[1] + columns
        (maps,) = implied_attentions(model, board[None], queries=queries).values()
        position = np.asarray(maps.position)[0]  # [heads, arrows, cells of the board]
        signed = np.stack([position, -position], axis=1)
        hits.append(signed.argmax(-1) == cells)
    return np.concatenate(hits, axis=-1)
