# SPDX-License-Identifier: Apache-2.0
"""Products of queries, values and embeddings of pairs of positions, in either order."""

import math

from lambdanet import backend as K
from lambdanet.backend.tensors import at_least_float32, pad, sizes
from lambdanet.ops.contractions import Operands

_GROUPS = 4


def query_first(queries: K.Tensor, values: K.Tensor, embeddings: K.Tensor) -> K.Tensor:
    """Contracts k first, as `ops.contractions.query_first`; the compiler chooses what to transpose."""
    similarity = K.einsum("bnhk,nkm->bhnm", queries, embeddings)
    return K.einsum("bhnm,bmv->bnhv", similarity, values)


def lambda_first(operands: Operands, chunk: int | None = None) -> K.Tensor:
    """Contracts m first by matrix products, a few keys at a time, and k by elementwise products.

    With h and v as outer axes and positions inside, the sum over the groups of keys and then within a group
    is one pass over memory, so no `chunk` is needed. The compiler lays examples or positions along the
    lanes, whichever fill them. The result is [b * blocks, n, h, v].
    """
    _, n, h, k = sizes(operands.queries)
    _, m, v = sizes(operands.values)
    rest = -n % 8 if isinstance(n, int) else 0  # else the compiler pads, and copies every product
    groups = math.gcd(k, _GROUPS)
    split = [groups, k // groups]
    queries = K.reshape(pad(operands.queries, 1, 0, rest), [-1, operands.blocks, n + rest, h, *split])
    embeddings = K.reshape(pad(operands.embeddings, 0, 0, rest), [n + rest, *split, m])
    values = K.reshape(operands.values, [-1, operands.blocks, m, v])
    if operands.content is not None:
        content = K.transpose(K.reshape(operands.content, [-1, *split, v]), [0, 1, 3, 2])
    terms = []
    for group in range(groups):
        lambdas = K.einsum("nkm,bcmv->bcvkn", embeddings[:, group], values)  # c blocks
        if operands.content is not None:
            lambdas += content[:, group, K.newaxis, ..., K.newaxis]
        by_head = K.transpose(queries[..., group, :], [0, 1, 3, 4, 2])  # [b, c, h, k, n]
        products = by_head[:, :, :, K.newaxis] * lambdas[:, :, K.newaxis]  # [b, c, h, v, k, n]
        terms.append(at_least_float32(products))
    outputs = K.cast(K.sum(K.add_n(terms), axis=4), queries.dtype)  # [b, c, h, v, n]
    return K.reshape(K.transpose(outputs[..., :n], [0, 1, 4, 2, 3]), [-1, n, h, v])
