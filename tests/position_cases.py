# SPDX-License-Identifier: Apache-2.0
"""Cases of the position lambdas, and a naive loop over their pairs of positions."""

import itertools

import numpy as np


def naive_position_lambdas(queries, values, table, strides=1, dilation=1):
    """Equation 1 and 2 of the paper for the position term, one pair (n, m) at a time, in float64."""
    rank = queries.ndim - 3
    if values.ndim == rank + 2:
        values, table = values[..., None], table[..., None]
    outputs = np.zeros([*queries.shape[:-1], values.shape[-2]])
    for n in itertools.product(*map(range, queries.shape[1 : 1 + rank])):
        for m in itertools.product(*map(range, values.shape[1 : 1 + rank])):
            distance = [mi - strides * ni for mi, ni in zip(m, n, strict=True)]
            offset = tuple(d // dilation + r // 2 for d, r in zip(distance, table.shape, strict=False))
            in_scope = all(0 <= o < r for o, r in zip(offset, table.shape, strict=False))
            if in_scope and all(d % dilation == 0 for d in distance):
                position_lambda = np.einsum("ku,bvu->bkv", table[offset], values[(slice(None), *m)])
                outputs[(slice(None), *n)] += np.einsum(
                    "bhk,bkv->bhv", queries[(slice(None), *n)], position_lambda
                )
    return outputs


def random_case(seed, spatial, scope, b=2, h=2, k=3, v=4, u=None, context=None):
    rng = np.random.default_rng(seed)
    depth = [] if u is None else [u]
    return (
        rng.normal(size=[b, *spatial, h, k]),
        rng.normal(size=[b, *(context or spatial), v, *depth]),
        rng.normal(size=[*scope, k, *depth]),
    )


CASES = {
    "image": {"spatial": [5, 4], "scope": [3, 3]},
    "scope larger than the map": {"spatial": [3, 4], "scope": [9, 11]},
    "scope of one": {"spatial": [3, 4], "scope": [1, 1]},
    "one row": {"spatial": [1, 5], "scope": [3, 3]},
    "intra-depth": {"spatial": [4, 3], "scope": [3, 5], "u": 2},
    "sequence": {"spatial": [7], "scope": [5]},
    "video": {"spatial": [2, 3, 2], "scope": [3, 3, 3], "u": 2},
    "another context": {"spatial": [3, 4], "scope": [5, 5], "context": [5, 2]},
    "strides": {"spatial": [2, 3], "scope": [3, 5], "context": [4, 5], "strides": 2},
    "dilation": {"spatial": [5, 6], "scope": [3, 3], "dilation": 2},
    "strides and dilation": {
        "spatial": [4],
        "scope": [3],
        "context": [8],
        "strides": 2,
        "dilation": 3,
        "u": 2,
    },
}
