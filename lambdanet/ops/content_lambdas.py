# SPDX-License-Identifier: Apache-2.0
"""Content lambdas and their products with queries: global, masked and causal (Bello 2021, equation 1)."""

from collections.abc import Callable
from typing import TypeAlias

from lambdanet import backend as K
from lambdanet.backend.tensors import at_least_float32, product, sizes
from lambdanet.errors import invalid

KEY_NORMALIZATIONS = ("softmax", "l2", None)
Mask: TypeAlias = "K.Tensor | str | None"  # [n, m], or "causal"

# exp(40) / exp(-40) is still far from the largest float32.
_LARGEST_KEY = 40.0


def as_boolean(mask: K.Tensor) -> K.Tensor:
    """Returns a mask as booleans; integers other than 0 are true.

    Raises:
      InputError: for a floating-point type, unless its values are known and are 0 and 1 alone. 0 hides a
        position here, while in an additive mask it shows one.
    """
    dtype = K.dtype_name(mask.dtype)
    if "float" in dtype and not _has_two_values(mask):
        accepted = "of booleans or integers, or of 0 and 1 alone"
        raise invalid(
            "mask", accepted, dtype, "`mask >= 0` is that of an additive mask"
        )
    return K.cast(mask, "bool")


def _has_two_values(mask: K.Tensor) -> bool:
    """Returns whether a mask is known to have no values but 0 and 1."""
    try:
        values = K.convert_to_numpy(mask)
    except Exception:  # each backend has its own for symbolic tensors
        return False
    return bool(((values == 0) | (values == 1)).all())


def content_lambda(
    keys: K.Tensor, values: K.Tensor, normalization: str | None = "softmax"
) -> K.Tensor:
    """Returns the content lambda, the same for every query.

    Args:
      keys: [b, *context_size, k, u], not yet normalized.
      values: [b, *context_size, v, u].
      normalization: the normalization of each key channel over the context, one of `KEY_NORMALIZATIONS`.

    Returns:
      [b, k, v].
    """
    keys = flatten_map(keys)
    values = flatten_map(values)
    keys = K.cast(_normalized(at_least_float32(keys), normalization), values.dtype)
    return K.einsum("bmku,bmvu->bkv", keys, values)


def apply_content_lambda(
    queries: K.Tensor,
    keys: K.Tensor,
    values: K.Tensor,
    normalization: str | None = "softmax",
    mask: Mask = None,
) -> K.Tensor:
    """Applies the content lambda: one for all query positions or, with a mask, one for each.

    Args:
      queries: [b, *query_size, h, k].
      keys: [b, *context_size, k, u], not yet normalized.
      values: [b, *context_size, v, u].
      normalization: the normalization of each key channel over the context, one of `KEY_NORMALIZATIONS`.
      mask: None, or of two values for each query and context position, [n, m], or "causal" for the context
        m <= n of a sequence, by sums that are linear in n. Each query then normalizes over its own context,
        and a softmax clips keys to +-40: its sums need no maximum over the whole context, on which a causal
        output must not depend.

    Returns:
      [b, *query_size, h, v].
    """
    if mask is None:
        return apply(queries, content_lambda(keys, values, normalization))
    dtype = values.dtype
    shape = [*sizes(queries)[:-1], values.shape[-2]]
    queries, keys, values = (
        at_least_float32(flatten_map(x)) for x in (queries, keys, values)
    )
    weights = keys
    if normalization == "softmax":
        weights = K.exp(K.clip(keys, -_LARGEST_KEY, _LARGEST_KEY))
    apply_one = _apply_causal if isinstance(mask, str) else _apply_masked
    outputs = [
        apply_one(queries, weights[..., i], values[..., i], normalization, mask)
        for i in range(keys.shape[-1])
    ]
    return K.reshape(K.cast(K.add_n(outputs), dtype), shape)


def apply(queries: K.Tensor, content: K.Tensor) -> K.Tensor:
    """Applies a content lambda [b, k, v] to all queries: [b, *query_size, h, k] -> [b, *query_size, h, v]."""
    # Flat: an einsum with an ellipsis has a slow gradient.
    b, *size, h, k = sizes(queries)
    outputs = K.einsum(
        "bnk,bkv->bnv", K.reshape(queries, [b, product([*size, h]), k]), content
    )
    return K.reshape(outputs, [b, *size, h, content.shape[2]])


def flatten_map(x: K.Tensor) -> K.Tensor:
    """[b, *size, x, y] -> [b, n, x, y]."""
    b, *size, x_depth, y_depth = sizes(x)
    return K.reshape(x, [b, product(size), x_depth, y_depth])


def _normalized(keys: K.Tensor, normalization: str | None) -> K.Tensor:
    """Normalizes keys [b, m, k, u] over m."""
    if normalization == "softmax":
        return K.softmax(keys, axis=1)
    return K.l2_normalize(keys, axis=1) if normalization == "l2" else keys


def _apply_masked(
    queries: K.Tensor,
    weights: K.Tensor,
    values: K.Tensor,
    normalization: str | None,
    mask: K.Tensor,
) -> K.Tensor:
    mask = K.cast(K.cast(mask, "bool"), queries.dtype)
    norms = _norms(weights, normalization, lambda x: K.einsum("nm,bmk->bnk", mask, x))
    similarity = K.einsum("bnhk,bmk->bnhm", K.divide_no_nan(queries, norms), weights)
    return K.einsum("bnhm,bmv->bnhv", similarity * mask[:, K.newaxis], values)


def _apply_causal(
    queries: K.Tensor,
    weights: K.Tensor,
    values: K.Tensor,
    normalization: str | None,
    mask: str,
) -> K.Tensor:
    norms = _norms(weights, normalization, lambda x: K.cumsum(x, axis=1))
    # [b, n, k, v]
    lambdas = K.cumsum(weights[..., K.newaxis] * values[:, :, K.newaxis], axis=1)
    return K.matmul(K.divide_no_nan(queries, norms), lambdas)


def _norms(
    weights: K.Tensor, normalization: str | None, total: Callable[[K.Tensor], K.Tensor]
) -> K.Tensor | float:
    """The norm of the keys in each query's context, [b, n, 1, k], from `total`, the sum over that context."""
    if normalization == "softmax":
        return total(weights)[:, :, K.newaxis]
    if normalization == "l2":
        return K.sqrt(total(K.square(weights)) + 1e-12)[:, :, K.newaxis]
    return 1.0
