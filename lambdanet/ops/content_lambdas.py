# SPDX-License-Identifier: Apache-2.0
"""Content lambdas and their products with queries, global and masked (Bello 2021, equation 1)."""

from lambdanet import backend as K
from lambdanet.backend import Tensor
from lambdanet.backend.tensors import at_least_float32, product, sizes
from lambdanet.core.errors import invalid

KEY_NORMALIZATIONS = ("softmax", "l2", None)


def as_boolean(mask: Tensor, name: str = "mask") -> Tensor:
    """Returns a mask as booleans; integers other than 0 are true.

    Args:
      mask: a mask of any shape and type.
      name: the argument that it was given as.

    Raises:
      InputError: for a floating-point type, unless its values are known and are 0 and 1 alone. 0 hides a
        position here, while in an additive mask it shows one.
    """
    dtype = K.dtype_name(mask.dtype)
    if "float" in dtype and not _has_two_values(mask):
        accepted = "of booleans or integers, or of 0 and 1 alone"
        hint = f"`{name} >= 0` is that of an additive mask"
        raise invalid(name, accepted, dtype, hint)
    return K.cast(mask, "bool")


def _has_two_values(mask: Tensor) -> bool:
    """Returns whether a mask is known to have no values but 0 and 1."""
    try:
        values = K.convert_to_numpy(mask)
    except Exception:  # each backend has its own for symbolic tensors
        return False
    return bool(((values == 0) | (values == 1)).all())


def visible_pairs(mask: Tensor | None, padding_mask: Tensor | None) -> Tensor | None:
    """Returns what each query sees under both masks, as booleans.

    Args:
      mask: [n, m] or [b, n, m], booleans; None: every query sees everything.
      padding_mask: the context positions that are no padding, [b, m], booleans; None: all.

    Returns:
      [b or 1, n or 1, m]; None without masks.
    """
    if mask is not None and len(mask.shape) == 2:
        mask = mask[K.newaxis]
    if padding_mask is None:
        return mask
    padding_mask = padding_mask[:, K.newaxis]
    return padding_mask if mask is None else mask & padding_mask


def content_lambda(
    keys: Tensor,
    values: Tensor,
    normalization: str | None = "softmax",
    padding_mask: Tensor | None = None,
) -> Tensor:
    """Returns the content lambda, the same for every query.

    Args:
      keys: [b, *context_size, k, u], not yet normalized.
      values: [b, *context_size, v, u], zero in padding.
      normalization: the normalization of each key channel over the context, one of `KEY_NORMALIZATIONS`.
      padding_mask: the context positions that are no padding, [b, m], booleans; None: all.

    Returns:
      [b, k, v].
    """
    keys = at_least_float32(flatten_map(keys))
    values = flatten_map(values)
    if padding_mask is not None:
        keys = without_padding(keys, normalization, padding_mask)
    keys = K.cast(normalized(keys, normalization, axis=1), values.dtype)
    return K.matmul(join_intra_depth(keys), join_intra_depth(values), transpose_a=True)


def apply_content_lambda(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    normalization: str | None = "softmax",
    mask: Tensor | None = None,
    padding_mask: Tensor | None = None,
) -> Tensor:
    """Applies the content lambda: one for all query positions or, with a mask, one for each.

    With a mask each query normalizes the keys over its own context. A softmax of any keys is exact, and takes
    n m k numbers for each example.

    Args:
      queries: [b, *query_size, h, k].
      keys: [b, *context_size, k, u], not yet normalized.
      values: [b, *context_size, v, u], zero in padding.
      normalization: the normalization of each key channel over the context, one of `KEY_NORMALIZATIONS`.
      mask: what each query sees of the context, [n, m] or [b, n, m], booleans; None: everything. For the
        positions up to a query's own, `lambdanet.ops.causal_content` is linear in n.
      padding_mask: the context positions that are no padding, [b, m], booleans; None: all.

    Returns:
      [b, *query_size, h, v].
    """
    if mask is None:
        content = content_lambda(keys, values, normalization, padding_mask)
        return apply(queries, content)
    dtype = values.dtype
    shape = [*sizes(queries)[:-1], values.shape[-2]]
    queries, keys, values = (
        at_least_float32(flatten_map(x)) for x in (queries, keys, values)
    )
    if padding_mask is not None:
        keys = without_padding(keys, normalization, padding_mask)
    visible = visible_pairs(K.cast(mask, "bool"), padding_mask)
    outputs = []
    for i in range(keys.shape[-1]):
        kv = keys[..., i], values[..., i]
        outputs.append(_apply_masked(queries, *kv, normalization, visible))
    return K.reshape(K.cast(K.add_n(outputs), dtype), shape)


def apply(queries: Tensor, content: Tensor, outputs: Tensor | None = None) -> Tensor:
    """Applies a content lambda [b, k, v] to all queries: [b, *query_size, h, k] -> [b, *query_size, h, v].

    `outputs` are those of other lambdas, to which these are added.
    """
    # Flat: an einsum with an ellipsis has a slow gradient, and runtimes add tensors of at most four axes.
    b, *size, h, k = sizes(queries)
    v = content.shape[2]
    rows = product([*size, h])
    y = K.einsum("bnk,bkv->bnv", K.reshape(queries, [b, rows, k]), content)
    if outputs is not None:
        y += K.reshape(outputs, [b, rows, v])
    return K.reshape(y, [b, *size, h, v])


def join_intra_depth(x: Tensor) -> Tensor:
    """Puts the intra-depth outside, where it joins m: [b, m, x, u] -> [b, m * u, x]."""
    b, m, depth, u = sizes(x)
    if u > 1:
        x = K.transpose(x, [0, 1, 3, 2])
    return K.reshape(x, [b, m * u, depth])


def flatten_map(x: Tensor) -> Tensor:
    """[b, *size, x, y] -> [b, n, x, y]."""
    b, *size, x_depth, y_depth = sizes(x)
    return K.reshape(x, [b, product(size), x_depth, y_depth])


def without_padding(
    keys: Tensor, normalization: str | None, padding_mask: Tensor
) -> Tensor:
    """Replaces keys in padding by those that no normalization over the context sees.

    Args:
      keys: [b, *context_size, k, u], not yet normalized.
      normalization: one of `KEY_NORMALIZATIONS`.
      padding_mask: the context positions that are no padding, [b, m], booleans.

    Returns:
      Keys of the same shape.
    """
    unseen = K.dtype_min(keys.dtype) if normalization == "softmax" else 0.0
    padding_mask = K.reshape(padding_mask, [*sizes(keys)[:-2], 1, 1])
    return K.where(padding_mask, keys, unseen)


def normalized(keys: Tensor, normalization: str | None, axis: int) -> Tensor:
    """Normalizes keys over the axis of their context by one of `KEY_NORMALIZATIONS`."""
    if normalization == "softmax":
        return K.softmax(keys, axis=axis)
    return K.l2_normalize(keys, axis=axis) if normalization == "l2" else keys


def _apply_masked(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    normalization: str | None,
    visible: Tensor,
) -> Tensor:
    """Applies one content lambda per query.

    Args:
      queries: [b, n, h, k].
      keys: [b, m, k].
      values: [b, m, v].
      normalization: one of `KEY_NORMALIZATIONS`.
      visible: what each query sees, [b or 1, n, m].

    Returns:
      [b, n, h, v].
    """
    if normalization == "softmax":
        pairs = visible[..., K.newaxis]  # [b, n, m, 1]
        keys = K.where(pairs, keys[:, K.newaxis], K.dtype_min(keys.dtype))
        weights = K.where(pairs, K.softmax(keys, axis=2), 0.0)  # [b, n, m, k]
        similarity = K.einsum("bnhk,bnmk->bnhm", queries, weights)
    else:
        pairs = K.cast(visible, keys.dtype)
        if normalization == "l2":
            # Of what each query sees, [b, n, k].
            squares = K.matmul(pairs, K.square(keys))
            scales = K.rsqrt(K.maximum(squares, 1e-12))  # as of `l2_normalize`
            queries = queries * scales[:, :, K.newaxis]
        similarity = K.einsum("bnhk,bmk->bnhm", queries, keys)
        similarity = similarity * pairs[:, :, K.newaxis]
    return K.einsum("bnhm,bmv->bnhv", similarity, values)
