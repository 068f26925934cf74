# SPDX-License-Identifier: Apache-2.0
"""Which pictures get a pseudo-label, and how often: as many of every class (Xie et al. 2020, 3.1)."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Choice:
    """What is chosen of the candidates.

    Attributes:
      copies: how often each candidate comes, 0 for one that is left out; int64 [candidates].
      candidates: of each class; int64 [num_classes].
      taken: different ones of each class that come; int64 [num_classes].
      per_class: how often those of a class come together, where it has any.
    """

    copies: np.ndarray
    candidates: np.ndarray
    taken: np.ndarray
    per_class: int


def balance(
    labels: np.ndarray, confidences: np.ndarray, num_classes: int, per_class: int | None, seed: int
) -> Choice:
    """Chooses as many pictures of each class: the surest ones, and where there are fewer, some twice or more.

    Args:
      labels: of the candidates, [n].
      confidences: the probability of the label, [n]; of equal ones the first counts.
      num_classes: how many there are.
      per_class: of each class; None: the mean of the classes that have any, which keeps the total.
      seed: of the copies, which are drawn at random: each picture comes as often as the others, or once more.

    Example:
      >>> balance(np.array([0, 0, 0, 1]), np.array([0.9, 0.5, 0.7, 0.8]), 2, 2, seed=0).copies
      array([1, 0, 1, 2])
    """
    candidates = np.bincount(labels, minlength=num_classes)
    if per_class is None:
        per_class = max(1, round(len(labels) / max(1, int(np.count_nonzero(candidates)))))
    copies = np.zeros(len(labels), np.int64)
    order = np.lexsort((np.arange(len(labels)), -confidences, labels))
    ends = np.cumsum(candidates)
    for label, end in enumerate(ends):
        members = order[end - candidates[label] : end]
        if len(members) >= per_class:
            copies[members[:per_class]] = 1
        elif len(members):
            copies[members] = per_class // len(members)
            more = np.random.default_rng([seed, label]).permutation(members)[: per_class % len(members)]
            copies[more] += 1
    taken = np.bincount(labels[copies > 0], minlength=num_classes)
    return Choice(copies, candidates, taken, per_class)
