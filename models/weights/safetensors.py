# SPDX-License-Identifier: Apache-2.0
"""The safetensors format: named arrays and texts in one file, which is data and nothing that could be run.

A file is the length of a header (8 bytes, little-endian), the header in JSON, with dtype, shape and place of
each array, and their bytes.
"""

import hashlib
import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from lambdanet.errors import InputError

DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(tf.bfloat16.as_numpy_dtype),
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
      path: of the file; it appears when it is whole.
      arrays: by name, of one of `DTYPES`.
      metadata: texts by name.
    """
    header: dict[str, Any] = {}
    data = bytearray()
    for name, array in arrays.items():
        begin = len(data)
        data += np.ascontiguousarray(array).tobytes()
        place = [begin, len(data)]
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": place}
    header[METADATA] = {**metadata, SHA256: hashlib.sha256(data).hexdigest()}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    temporary = Path(f"{path}.{os.getpid()}.partial")
    try:
        temporary.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Reads what a file holds, with every length and place checked first, and the hash if it has one.

    Returns:
      the arrays and the texts, by name.

    Raises:
      InputError: for a file that is cut short, changed, or of another kind, or in which arrays overlap or two
        have one name.
    """
    content = Path(path).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    try:
        if len(content) < 8 or start > len(content):
            raise ValueError("it is cut short, or of another kind")
        header = json.loads(content[8:start], object_pairs_hook=_by_name)
        metadata = header.pop(METADATA, {})
        if not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError("its metadata are not texts")
        data = memoryview(content)[start:]
        if metadata.get(SHA256, found := hashlib.sha256(data).hexdigest()) != found:
            raise ValueError(f"its sha256 is {found}, not {metadata[SHA256]}")
        arrays = {name: _array(data, name, **entry) for name, entry in header.items()}
        _check_disjoint({name: entry["data_offsets"] for name, entry in header.items()})
        return arrays, metadata
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = "its header is nested too deep" if isinstance(error, RecursionError) else error
        raise InputError(f"{str(path)!r} is damaged or no safetensors file: {reason}") from error


def _by_name(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, in which every name stands once and can be printed on one line."""
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1 or not name.isprintable():
            raise ValueError(
                f"the name {name!r} is there {count} times" if count > 1 else f"the name {name!r}"
            )
    return dict(pairs)


def _check_disjoint(places: Mapping[str, Sequence[int]]) -> None:
    in_order = sorted(places, key=lambda name: list(places[name]))
    for name, following in itertools.pairwise(in_order):
        if places[following][0] < places[name][1]:
            raise ValueError(f"{name} and {following} overlap")


def _array(data: memoryview, name: str, dtype: str, shape: list[int], data_offsets: list[int]) -> np.ndarray:
    begin, end = data_offsets
    if dtype not in DTYPES:
        raise ValueError(f"{name} has the type {dtype!r}; accepted: {', '.join(DTYPES)}")
    if not 0 <= begin <= end <= len(data) or end - begin != math.prod(shape) * DTYPES[dtype].itemsize:
        raise ValueError(f"{name} of shape {shape} does not lie at {data_offsets}")
    return np.frombuffer(data[begin:end], DTYPES[dtype]).reshape(shape)
