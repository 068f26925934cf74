# SPDX-License-Identifier: Apache-2.0
"""Attention and lambda layers one query at a time in float64, the oracles of their tests."""

import itertools

import numpy as np

import lambdanet
from lambdanet.backend import compat
from lambdanet.backend.tensors import per_axis
from lambdanet.layers.argument_checks import axis_of_causal


def images(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def weights_by_name(layer):
    """The layer's variables, by the part of their names below the layer's."""
    return {
        compat.variable_name(weight).removeprefix(f"{layer.name}/"): weight
        for weight in layer.weights
    }


def weights_of(layer):
    return {
        name: weight.numpy().astype(np.float64)
        for name, weight in weights_by_name(layer).items()
    }


def projected(layer, x, prefix=""):
    """Queries, keys and values [b, height, width, heads, depth] in float64."""
    weights = weights_of(layer)
    return [
        (x @ weights[f"{prefix}{name}/kernel"]).reshape(
            [*x.shape[:3], layer.num_heads, -1]
        )
        for name in ("queries", "keys", "values")
    ]


def naive_attention(
    queries, keys, values, embedding, sees, padding=0, place=lambda n: n
):
    """Softmax attention one query at a time.

    `embedding` takes the offset m - n along both axes, `sees` the two positions; `padding` rows and columns
    of zero keys and values surround the map; `place` maps a query to the position from which offsets count.
    """
    b, height, width, h, k = queries.shape
    surround = [(0, 0), (padding, padding), (padding, padding), (0, 0), (0, 0)]
    keys, values = np.pad(keys, surround), np.pad(values, surround)
    places = list(
        itertools.product(
            range(-padding, height + padding), range(-padding, width + padding)
        )
    )
    outputs = np.zeros([b, height, width, h, values.shape[-1]])
    for n in itertools.product(range(height), range(width)):
        context = [m for m in places if sees(n, m)]
        logits, seen = [], []
        row, column = place(n)
        for y, x in context:
            key = keys[:, y + padding, x + padding] + embedding(y - row, x - column)
            logits.append(
                np.einsum("bhk,bhk->bh", queries[:, n[0], n[1]], key) / np.sqrt(k)
            )
            seen.append(values[:, y + padding, x + padding])
        weights = np.exp(np.array(logits) - np.max(logits, axis=0))
        outputs[:, n[0], n[1]] = np.einsum(
            "mbh,mbhv->bhv", weights / weights.sum(axis=0), seen
        )
    return outputs.reshape([b, height, width, -1])


def offsets_of(layer, join):
    """The embedding of an offset: the `sum` or `np.concatenate` of those of its height and width."""
    rows, columns = weights_of(layer)["height_table"], weights_of(layer)["width_table"]
    return lambda dy, dx: join(
        [rows[dy + len(rows) // 2], columns[dx + len(columns) // 2]]
    )


def naive_halo_attention(layer, x):
    block, halo, strides = layer.block_size, layer.halo_size, layer.strides

    def sees(n, m):
        first = [i // block * block for i in n]
        return all(
            -halo <= j - start < block + halo for j, start in zip(m, first, strict=True)
        )

    # Compact offsets count a block's second query to be next to its first.
    def place(n):
        return (
            [i // block * block + i % block // strides for i in n]
            if layer.compact_offsets
            else n
        )

    padding = 0 if layer.mask_padding else block + halo
    embedding = offsets_of(layer, sum if layer.positions == "added" else np.concatenate)
    outputs = naive_attention(*projected(layer, x), embedding, sees, padding, place)
    return outputs[:, ::strides, ::strides]


def naive_lambda_layer(layer, x, context=None, mask=None, padding_mask=None):
    """Equations 1 and 2 in float64 at inference, one query and one context position at a time."""
    weights = weights_of(layer)
    context = x if context is None else context
    if padding_mask is not None or np.ndim(mask) == 3:
        return np.concatenate(
            [
                naive_lambda_layer(
                    layer,
                    x[i : i + 1],
                    context[i : i + 1],
                    mask_of_example(layer, x, context, mask, padding_mask, i),
                )
                for i in range(len(x))
            ]
        )
    rank, h, k, u = x.ndim - 2, layer.num_heads, layer.key_dim, layer.intra_depth
    strides = per_axis(layer.strides, rank)
    axis = axis_of_causal(layer.causal, rank)
    lambdas = h if layer.multi_head else 1

    def project(y, name, shape, norm=True):
        y = y @ weights[f"{name}/kernel"]
        if norm and layer.use_batch_norm:
            mean, variance = (
                weights[f"{name}_norm/moving_mean"],
                weights[f"{name}_norm/moving_variance"],
            )
            y = (y - mean) / np.sqrt(variance + 1e-5) * weights[
                f"{name}_norm/gamma"
            ] + weights[f"{name}_norm/beta"]
        return y.reshape([*y.shape[:-1], *shape])

    def embedding(i, number, n, number_m, m):
        """E_nm of lambda i, [k, u]."""
        table = weights["position/table"]
        table = table.reshape(
            [lambdas, *table.shape[lambdas > 1 : table.ndim - 1 - (u > 1)], k, u]
        )
        if isinstance(layer.position, lambdanet.UnstructuredPositionEmbedding):
            return table[i, number, number_m]
        distance = [mi - step * ni for mi, ni, step in zip(m, n, strides, strict=True)]
        dilation = per_axis(layer.position.dilation, rank)
        # A causal table ends with the offset 0.
        zeros = [r // 2 for r in table.shape[1 : rank + 1]]
        if axis is not None:
            zeros[axis] = table.shape[1 + axis] - 1
        offset = tuple(
            d // step + zero
            for d, step, zero in zip(distance, dilation, zeros, strict=True)
        )
        in_scope = all(
            0 <= o < r for o, r in zip(offset, table.shape[1:], strict=False)
        )
        return (
            table[(i, *offset)]
            if in_scope
            and not any(d % step for d, step in zip(distance, dilation, strict=True))
            else np.zeros([k, u])
        )

    every = [slice(None, None, step) for step in strides]
    queries = project(x[(slice(None), *every)], "queries", [h, k])
    if layer.query_normalization == "softmax":
        queries = np.exp(queries) / np.exp(queries).sum(-1, keepdims=True)
    values = project(context, "values", [lambdas, layer.filters // h, u]).reshape(
        [len(x), -1, lambdas, layer.filters // h, u]
    )
    if layer.content:
        keys = project(context, "keys", [lambdas, k, u], norm=False).reshape(
            [len(x), -1, lambdas, k, u]
        )
    contexts = list(itertools.product(*map(range, context.shape[1:-1])))
    outputs = np.zeros([*queries.shape[:-1], layer.filters // h])
    for number, n in enumerate(
        itertools.product(*map(range, queries.shape[1 : rank + 1]))
    ):
        allowed = [
            j
            for j in range(len(contexts))
            if (mask is None or mask[number, j])
            and (axis is None or contexts[j][axis] <= strides[axis] * n[axis])
        ]
        for head in range(h):
            i = head if layer.multi_head else 0
            weight = np.zeros([len(x), len(allowed), k, u])
            if layer.content:
                weight = keys[:, allowed, i]
                if layer.key_normalization == "softmax":
                    weight = np.exp(weight) / np.exp(weight).sum(1, keepdims=True)
                elif layer.key_normalization == "l2":
                    weight = weight / np.sqrt((weight**2).sum(1, keepdims=True))
            if layer.position is not None and allowed:
                weight = weight + np.stack(
                    [embedding(i, number, n, j, contexts[j]) for j in allowed]
                )
            lambda_n = np.einsum("bmku,bmvu->bkv", weight, values[:, allowed, i])
            if "position/bias" in weights:
                lambda_n = lambda_n + weights["position/bias"][:, None]
            outputs[(slice(None), *n, head)] = np.einsum(
                "bk,bkv->bv", queries[(slice(None), *n, head)], lambda_n
            )
    return outputs.reshape([*outputs.shape[:-2], -1])


def mask_of_example(layer, x, context, mask, padding_mask, i):
    """What each query of example i sees, [n, m]."""
    strides = per_axis(layer.strides, x.ndim - 2)
    n = np.prod([-(-n // step) for n, step in zip(x.shape[1:-1], strides, strict=True)])
    m = np.prod(context.shape[1:-1])
    visible = np.ones([n, m], bool)
    if mask is not None:
        visible = np.asarray(mask if mask.ndim == 2 else mask[i], bool)
    return visible if padding_mask is None else visible & padding_mask[i]


def randomize(layer, seed=0):
    """Sets random weights, so that no batch normalization is the identity."""
    rng = np.random.default_rng(seed)
    layer.set_weights(
        [rng.uniform(0.5, 1.5, weight.shape) for weight in layer.get_weights()]
    )
