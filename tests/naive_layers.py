# SPDX-License-Identifier: Apache-2.0
"""Oracles in float64: attention one query at a time, lambda layers by all pairs of positions."""

import numpy as np
from scipy import special

import lambdanet
from lambdanet import backend as K
from lambdanet.backend import compat
from lambdanet.backend.tensors import per_axis
from lambdanet.layers.argument_checks import axis_of_causal
from lambdanet.ops import reference


def images(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


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
    size = [*x.shape[:3], layer.num_heads, -1]
    return [
        (x @ weights[f"{prefix}{name}/kernel"]).reshape(size)
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
    outputs = np.zeros([b, height, width, h, values.shape[-1]])
    for n in np.ndindex(height, width):
        logits, seen = [], []
        row, column = place(n)
        for i, j in np.ndindex(keys.shape[1:3]):
            y, x = i - padding, j - padding
            if sees(n, (y, x)):
                key = keys[:, i, j] + embedding(y - row, x - column)
                logits.append((queries[:, *n] * key).sum(-1) / np.sqrt(k))
                seen.append(values[:, i, j])
        weights = special.softmax(logits, axis=0)
        outputs[:, *n] = np.einsum("mbh,mbhv->bhv", weights, seen)
    return outputs.reshape([b, height, width, -1])


def offsets_of(layer, join):
    """The embedding of an offset: the `sum` or `np.concatenate` of those of its height and width."""
    weights = weights_of(layer)
    rows, columns = weights["height_table"], weights["width_table"]
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
        if not layer.compact_offsets:
            return n
        return [i // block * block + i % block // strides for i in n]

    padding = 0 if layer.mask_padding else block + halo
    embedding = offsets_of(layer, sum if layer.positions == "added" else np.concatenate)
    outputs = naive_attention(*projected(layer, x), embedding, sees, padding, place)
    return outputs[:, ::strides, ::strides]


def lambda_by_equations(layer, x, context=None, attention_mask=None, padding_mask=None):
    """Equations 1 and 2 at inference in float64, for all pairs of positions, then averages over windows.

    Of `lambdanet.ops` it uses how `reference` finds the pairs, which tests compare with a loop.
    """
    weights = weights_of(layer)
    rank, h, k, u = x.ndim - 2, layer.num_heads, layer.key_dim, layer.intra_depth
    num_lambdas = h if layer.multi_head else 1
    pools = per_axis(layer.pool_size, rank)
    steps = [
        1 if pool > 1 else stride
        for stride, pool in zip(per_axis(layer.strides, rank), pools, strict=True)
    ]
    axis = axis_of_causal(layer.causal, rank)
    places = np.ones([len(x), *x.shape[1:-1]], bool)  # that averages read
    if padding_mask is not None and context is None:
        places = np.asarray(padding_mask, bool).reshape(places.shape)
    context = x if context is None else context
    kept = [slice(None, None, step) for step in steps]
    x, places = x[:, *kept], places[:, *kept]
    size, context_size = x.shape[1:-1], context.shape[1:-1]

    def project(y, name, *depth):
        """[b, *size, c] -> [b, n, *depth]."""
        y = y @ weights[f"{name}/kernel"] + weights.get(f"{name}/bias", 0)
        if f"{name}_norm/gamma" in weights:
            variance = weights[f"{name}_norm/moving_variance"] + 1e-5
            y = (y - weights[f"{name}_norm/moving_mean"]) / np.sqrt(variance)
            y = y * weights[f"{name}_norm/gamma"] + weights[f"{name}_norm/beta"]
        return y.reshape([len(y), -1, *depth])

    queries = project(x, "queries", h, k)
    if layer.query_normalization == "softmax":
        queries = special.softmax(queries, axis=-1)
    values = project(context, "values", num_lambdas, layer.filters // h, u)
    if layer.content:
        keys = project(context, "keys", num_lambdas, k, u)
    outputs = np.zeros([*queries.shape[:3], layer.filters // h])
    num_queries, num_places = np.prod(size), np.prod(context_size)
    visible = np.ones([len(x), num_queries, num_places], bool)
    if attention_mask is not None:
        visible &= np.asarray(attention_mask, bool)
    if padding_mask is not None:
        visible &= np.asarray(padding_mask, bool)[:, np.newaxis]
    if axis is not None:
        pairs = reference.causal_mask(size, context_size, axis, steps)
        visible &= K.convert_to_numpy(pairs)
    for number in range(num_lambdas):
        pairs = np.zeros([*visible.shape, k, u])
        if layer.content:
            pairs += normalized(keys[:, np.newaxis, :, number], visible, layer)
        if layer.position is not None:
            pairs += embeddings_of(layer, number, size, context_size, steps, axis)
        pairs *= visible[..., np.newaxis, np.newaxis]
        lambdas = np.einsum("bnmku,bmvu->bnkv", pairs, values[:, :, number])
        heads = slice(number, number + 1) if layer.multi_head else slice(None)
        outputs[:, :, heads] = np.einsum(
            "bnhk,bnkv->bnhv", queries[:, :, heads], lambdas
        )
    if getattr(layer.position, "use_bias", False):
        bias = np.asarray(K.convert_to_numpy(layer.position.bias), np.float64)
        outputs += (queries @ bias)[..., np.newaxis]
    outputs = outputs.reshape([len(x), *size, layer.filters])
    if max(pools) == 1:
        return outputs
    return averages(outputs, places, pools, per_axis(layer.strides, rank))


def embeddings_of(layer, number, size, context_size, steps, causal_axis):
    """The embeddings of all queries, `steps` apart, and context positions, [n, m, k, u]."""
    table = K.convert_to_tensor(layer.position.table)
    table = table[number] if layer.multi_head and layer.num_heads > 1 else table
    table = table if layer.intra_depth > 1 else table[..., np.newaxis]
    if isinstance(layer.position, lambdanet.RelativePositionEmbedding):
        geometry = steps, layer.position.dilation, causal_axis
        table = reference.gather_embeddings(table, size, context_size, *geometry)
    return np.asarray(K.convert_to_numpy(table), np.float64)


def averages(y, places, pools, strides):
    """Averages of [b, *size, d] over the places of "same" windows, [b, *size], where a pool is above 1."""
    size = y.shape[1:-1]
    windows = []
    for length, pool, stride in zip(size, pools, strides, strict=True):
        stride = stride if pool > 1 else 1
        count = -(-length // stride)
        before = max((count - 1) * stride + pool - length, 0) // 2
        firsts = stride * np.arange(count) - before
        windows.append([slice(max(first, 0), first + pool) for first in firsts])
    outputs = np.zeros([len(y), *map(len, windows), y.shape[-1]])
    for place in np.ndindex(outputs.shape[1:-1]):
        window = [along[i] for along, i in zip(windows, place, strict=True)]
        seen = places[:, *window].reshape([len(y), -1, 1])
        here = y[:, *window].reshape([*seen.shape[:2], -1])
        total = (here * seen).sum(1)
        outputs[:, *place] = total / np.maximum(seen.sum(1), 1)
    return outputs


def normalized(keys, visible, layer):
    """Keys [..., m, k, u], normalized over those that a query sees, [..., m]."""
    visible = visible[..., np.newaxis, np.newaxis]
    if layer.key_normalization == "softmax":
        keys = np.exp(keys)
    keys = np.where(visible, keys, 0)
    if layer.key_normalization is None:
        return keys
    power = 1 if layer.key_normalization == "softmax" else 2
    sums = (keys**power).sum(axis=-3, keepdims=True) ** (1 / power)
    return keys / np.maximum(sums, 1e-300)  # of a query that sees nothing


def randomize(layer, seed=0):
    """Sets random weights, so that no batch normalization is the identity."""
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.uniform(0.5, 1.5, x.shape) for x in layer.weights])


def by_reference(layer):
    """A layer with the same weights, which `lambdanet.ops.reference` computes."""
    config = {**layer.get_config(), "implementation": "reference"}
    same = lambdanet.LambdaLayer.from_config(config)
    same.build_from_config(layer.get_build_config())
    same.set_weights(layer.get_weights())
    return same
