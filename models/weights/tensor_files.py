# SPDX-License-Identifier: Apache-2.0
"""Reads and writes named arrays in safetensors, and reads PyTorch's files without running code from them.

PyTorch's own files are pickles, which it reads with `weights_only`: anything but tensors is rejected.
"""

import contextlib
import hashlib
import json
import sys
import types
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from lambdanet.core.errors import InputError, invalid, one_line
from lambdanet.core.files import write_output
from lambdanet.models.weights import hub

SAFETENSORS = ".safetensors"
TORCH = (".pth", ".pt", ".bin", ".ckpt", ".tar")
FLOATS = {
    np.dtype(kind) for kind in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)
}
SHA256 = "sha256"  # the key in the metadata of the hash of the arrays' bytes
# The keys of the tensors in a file that has more; averages come first, as in timm.
STATE_DICT_KEYS = ("state_dict_ema", "model_ema", "state_dict", "model")
# The prefix of all names after training on several devices.
DATA_PARALLEL_PREFIX = "module."


def write_safetensors(
    path: str | Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> None:
    """Writes arrays and texts as safetensors, and under "sha256" the hash of the arrays' bytes.

    Raises:
      InputError: the file cannot be written.
    """
    in_order = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    content = save(in_order)
    sha256 = hashlib.sha256(memoryview(content)[_data_start(content) :]).hexdigest()
    write_output(Path(path), save(in_order, {**metadata, SHA256: sha256}))


def read_safetensors(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns the arrays and the texts of a file, by name; checks the hash if it has one.

    Raises:
      InputError: the file is truncated, changed or of another kind, or has a name twice.
    """
    with _opened(path) as (file, data):
        metadata = file.metadata() or {}
        found = hashlib.file_digest(data, "sha256").hexdigest()
        if metadata.get(SHA256, found) != found:
            raise ValueError(f"its sha256 is {found}, not {metadata[SHA256]}")
        return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118


def metadata_of(path: str | Path) -> dict[str, str]:
    """Returns the texts of a safetensors file, including its sha256; the arrays are not read.

    Raises:
      InputError: the file is truncated or of another kind.
    """
    with _opened(path) as (file, _):
        return file.metadata() or {}


def shape_of(path: str | Path, name: str) -> list[int]:
    """Returns the shape of an array of a safetensors file; empty where there is none of this name.

    Raises:
      InputError: the file is truncated or of another kind.
    """
    with _opened(path) as (file, _):
        if name not in file.keys():  # noqa: SIM118
            return []
        return file.get_slice(name).get_shape()


@contextlib.contextmanager
def _opened(path: str | Path) -> Iterator[tuple[Any, BufferedReader]]:
    """Yields a safetensors file whose lengths and names have been checked, and the bytes of its arrays."""
    try:
        with safe_open(path, "numpy") as file, open(path, "rb") as content:
            header = content.read(_data_start(content.read(8)) - 8)
            # Safetensors takes the last of equal names.
            json.loads(header, object_pairs_hook=_by_name)
            yield file, content
    except (SafetensorError, OSError, ValueError, AttributeError) as error:
        reason = (
            "it has numbers of an unknown type"
            if isinstance(error, AttributeError)
            else one_line(error)
        )
        raise InputError(
            f"{str(path)!r} is damaged or not a safetensors file: {reason}{hub.remedy(path)}"
        ) from error


def _data_start(content: bytes) -> int:
    """Where the arrays of a safetensors file begin: after the length of the header, and the header."""
    return 8 + int.from_bytes(content[:8], "little")


def _by_name(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names are unique and can be printed on one line."""
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1 or not name.isprintable():
            raise ValueError(
                f"the name {name!r}{f' occurs {count} times' if count > 1 else ''}"
            )
    return dict(pairs)


def read_tensors(path: str | Path) -> dict[str, np.ndarray]:
    """Returns the tensors of a file by name.

    Args:
      path: a .safetensors file, or a file with a state dict that `torch.save` wrote.

    Raises:
      InputError: the file is damaged, of another kind, or has more than tensors; or it is PyTorch's, which
        is not installed.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise invalid("checkpoint", "an existing file", str(path))
    if path.name.endswith(SAFETENSORS):
        return read_safetensors(path)[0]
    if not path.name.endswith(TORCH):
        accepted = f"a {SAFETENSORS} file or, for PyTorch, a {', '.join(TORCH)} file"
        raise invalid("checkpoint", accepted, path.name)
    tensors = _state_dict(path, _loaded(path))
    if twice := [name for name in tensors if DATA_PARALLEL_PREFIX + name in tensors]:
        raise InputError(
            f"{str(path)!r} has {twice[0]} twice, with and without {DATA_PARALLEL_PREFIX!r}"
        )
    try:
        return {
            name.removeprefix(DATA_PARALLEL_PREFIX): as_array(tensor)
            for name, tensor in tensors.items()
        }
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise InputError(
            f"{str(path)!r} has a tensor that is not dense ({type(error).__name__})"
        ) from None


def _loaded(path: Path) -> Any:
    try:
        import torch
    except ModuleNotFoundError:
        raise InputError(
            f"{str(path)!r} needs PyTorch, which is not installed; pip install 'lambdanet[timm]', or use the "
            "model.safetensors of the same weights"
        ) from None
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as file:
                if (
                    sum(part.file_size for part in file.infolist())
                    > path.stat().st_size
                ):
                    raise ValueError("compressed, unlike PyTorch's own files")
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise any
        raise InputError(
            f"{str(path)!r} is damaged, or has more than tensors, which may run code when it is unpickled "
            f"({type(error).__name__}); use a {SAFETENSORS} file, or one that "
            "`torch.save(network.state_dict(), FILE)` wrote"
        ) from None


def _state_dict(path: Path, content: Any) -> Mapping[str, Any]:
    """The mapping from names to tensors: the content itself, or one of its `STATE_DICT_KEYS`."""
    if isinstance(content, Mapping):
        found = (
            content[key]
            for key in STATE_DICT_KEYS
            if isinstance(content.get(key), Mapping)
        )
        content = next(found, content)
        if content and all(
            isinstance(n, str) and n.isprintable() and hasattr(t, "detach")
            for n, t in content.items()
        ):
            return content
    raise InputError(
        f"{str(path)!r} has no state dict: no tensors by name, also under {STATE_DICT_KEYS}"
    )


def as_array(tensor: Any) -> np.ndarray:
    """Returns a tensor of PyTorch as an array: float32 where it has fewer bits.

    Raises:
      TypeError, ValueError, RuntimeError or NotImplementedError: it is sparse, or repeats stored numbers.
    """
    tensor = tensor.detach().cpu()
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError("it repeats stored numbers")
    return (
        tensor.float()
        if tensor.is_floating_point() and tensor.element_size() < 4
        else tensor
    ).numpy()


def import_timm() -> types.ModuleType:
    """Returns the module timm.

    timm imports torchvision, which fails on a PyTorch that it was not built for: there it describes operators
    that it has no code for, none of which timm's networks and transforms use. PyTorch for CUDA imports
    Triton, which crashes a process that has imported TensorFlow: there it is reported as not installed.

    Raises:
      ModuleNotFoundError: timm or torch is not installed.
    """
    import torch

    register = torch.library.register_fake

    def register_others(op: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(op, str) and op.startswith("torchvision::"):
            return lambda function: function
        return register(op, *args, **kwargs)

    if "tensorflow" in sys.modules:
        sys.modules.setdefault("triton", None)  # type: ignore[arg-type]
    torch.library.register_fake = register_others
    try:
        import timm
    finally:
        torch.library.register_fake = register
    return timm
