# SPDX-License-Identifier: Apache-2.0
"""Reader and writer of safetensors: named arrays and texts in one file without executable content.

A file consists of the length of its header (8 bytes, little-endian), the header in JSON with the dtype, shape
and offsets of each array, and the arrays' bytes.
"""

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from lambdanet.errors import InputError
from lambdanet.files import write_atomic

DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
FLOATS = {dtype for name, dtype in DTYPES.items() if "F" in name}
METADATA = "__metadata__"
SHA256 = "sha256"


def write(path: str | Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes arrays and texts, and under "sha256" the hash of the arrays' bytes.

    Args:
      path: the path of the file, which appears when it is complete.
      arrays: the arrays by name, with one of `DTYPES`.
      metadata: the texts by name.
    """
    header: dict[str, Any] = {}
    data = bytearray()
    for name, array in arrays.items():
        begin = len(data)
        data += np.ascontiguousarray(array).tobytes()
        offsets = [begin, len(data)]
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": offsets}
    header[METADATA] = {**metadata, SHA256: hashlib.sha256(data).hexdigest()}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    write_atomic(path, len(encoded).to_bytes(8, "little") + encoded + data)


def read(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Reads a file; checks every length and offset first, and the hash if it has one.

    Returns:
      the arrays and the texts, by name.

    Raises:
      InputError: the file is truncated, changed or of another kind, or arrays overlap or share a name.
    """
    content = Path(path).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    try:
        if len(content) < 8 or start > len(content):
            raise ValueError("it is truncated, or of another kind")
        header = json.loads(content[8:start], object_pairs_hook=_by_name)
        metadata = header.pop(METADATA, {})
        if not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError("its metadata must be texts")
        data = memoryview(content)[start:]
        if metadata.get(SHA256, found := hashlib.sha256(data).hexdigest()) != found:
            raise ValueError(f"its sha256 is {found}, not {metadata[SHA256]}")
        arrays = {name: _array(data, name, **entry) for name, entry in header.items()}
        _check_disjoint({name: entry["data_offsets"] for name, entry in header.items()})
        return arrays, metadata
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = "its header is nested too deep" if isinstance(error, RecursionError) else error
        raise InputError(f"{str(path)!r} is damaged or not a safetensors file: {reason}") from error


def _by_name(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names are unique and can be printed on one line."""
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1 or not name.isprintable():
            raise ValueError(f"the name {name!r}{f' occurs {count} times' if count > 1 else ''}")
    return dict(pairs)


def _check_disjoint(offsets: Mapping[str, Sequence[int]]) -> None:
    in_order = sorted(offsets, key=lambda name: list(offsets[name]))
    for name, following in itertools.pairwise(in_order):
        if offsets[following][0] < offsets[name][1]:
            raise ValueError(f"{name} and {following} overlap")


def _array(data: memoryview, name: str, dtype: str, shape: list[int], data_offsets: list[int]) -> np.ndarray:
    begin, end = data_offsets
    if dtype not in DTYPES:
        raise ValueError(f"the type of {name} must be one of {', '.join(DTYPES)}, got {dtype!r}")
    if not 0 <= begin <= end <= len(data) or end - begin != math.prod(shape) * DTYPES[dtype].itemsize:
        raise ValueError(f"{name} of shape {shape} cannot be at {data_offsets}")
    return np.frombuffer(data[begin:end], DTYPES[dtype]).reshape(shape)
