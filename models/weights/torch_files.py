# SPDX-License-Identifier: Apache-2.0
"""Reader of tensors in PyTorch's files that never runs code from them.

Safetensors are read without PyTorch. PyTorch's own files are pickles, which it reads with `weights_only`:
anything but tensors is refused.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lambdanet.errors import InputError, invalid
from lambdanet.models.weights import safetensors

SAFETENSORS = ".safetensors"
TORCH = (".pth", ".pt", ".bin", ".ckpt", ".tar")
# The keys of the tensors in a file that has more; averages come first, as in timm.
STATE_DICT_KEYS = ("state_dict_ema", "model_ema", "state_dict", "model")
DATA_PARALLEL_PREFIX = "module."  # the prefix of all names after training on several devices


def read(path: str | Path) -> dict[str, np.ndarray]:
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
        return safetensors.read(path)[0]
    if not path.name.endswith(TORCH):
        accepted = f"a {SAFETENSORS} file or, for PyTorch, a {', '.join(TORCH)} file"
        raise invalid("checkpoint", accepted, path.name)
    tensors = _state_dict(path, _loaded(path))
    try:
        return {name.removeprefix(DATA_PARALLEL_PREFIX): _array(tensor) for name, tensor in tensors.items()}
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise InputError(f"{str(path)!r} has a tensor that is not dense ({type(error).__name__})") from None


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
                if sum(part.file_size for part in file.infolist()) > path.stat().st_size:
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
        found = (content[key] for key in STATE_DICT_KEYS if isinstance(content.get(key), Mapping))
        content = next(found, content)
        if content and all(_is_name(n) and hasattr(t, "detach") for n, t in content.items()):
            return content
    raise InputError(f"{str(path)!r} has no state dict: no tensors by name, also under {STATE_DICT_KEYS}")


def _is_name(key: Any) -> bool:
    return isinstance(key, str) and key.isprintable()


def _array(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError("it repeats stored numbers")
    return (tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor).numpy()
