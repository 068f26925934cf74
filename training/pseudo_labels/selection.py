# SPDX-License-Identifier: Apache-2.0
"""Selects the same number of pictures per class, as in section 3.1 of Xie et al. (2020)."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Selection:
    """The selected candidates.

    Attributes:
      copies: the number of records of each candidate, 0 if not selected; int64 [candidates].
      candidates: the number of candidates per class; int64 [num_classes].
      taken: the number of selected candidates per class; int64 [num_classes].
      per_class: the number of records of each class that has candidates.
    """

    copies: np.ndarray
    candidates: np.ndarray
    taken: np.ndarray
    per_class: int


def balance(
    labels: np.ndarray, confidences: np.ndarray, num_classes: int, per_class: int | None, seed: int
) -> Selection:
    """Selects the most confident pictures of each class, with copies if a class has too few.

    Args:
      labels: the classes of the candidates, [n].
      confidences: the probabilities of these classes, [n]; the first of equal candidates is preferred.
      num_classes: the number of classes.
      per_class: the number of records per class; default: the mean over classes that have candidates, which
        keeps the total.
      seed: the random seed of the copies; the numbers of copies within a class differ by one at most.

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
    return Selection(copies, candidates, taken, per_class)
