# SPDX-License-Identifier: Apache-2.0
"""The tensors of PyTorch's networks from files, of which nothing is ever run.

Safetensors are read without PyTorch. Its own files are pickles, which PyTorch reads with `weights_only`: all
but tensors is refused.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lambdanet.errors import InputError
from lambdanet.models.weights import safetensors

SAFETENSORS = ".safetensors"
TORCH = (".pth", ".pt", ".bin", ".ckpt", ".tar")
# Where the tensors are in a file that holds more; averages come first, as in timm.
WITHIN = ("state_dict_ema", "model_ema", "state_dict", "model")
OF_SEVERAL_DEVICES = "module."  # what every name begins with then


def read(path: str | Path) -> dict[str, np.ndarray]:
    """Returns the tensors of a file by name.

    Args:
      path: of a .safetensors file, or of a file that `torch.save` wrote, with a state dict in it.

    Raises:
      InputError: for a file that is damaged, of another kind, or holds more than tensors; and for one of
        PyTorch where that is not installed.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise InputError(f"checkpoint must be an existing file, got {str(path)!r}")
    if path.name.endswith(SAFETENSORS):
        return safetensors.read(path)[0]
    if not path.name.endswith(TORCH):
        raise InputError(
            f"checkpoint must end in {SAFETENSORS} or, for a file of PyTorch, {', '.join(TORCH)}, "
            f"got {path.name!r}"
        )
    tensors = _state_dict(path, _loaded(path))
    try:
        return {name.removeprefix(OF_SEVERAL_DEVICES): _array(tensor) for name, tensor in tensors.items()}
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise InputError(f"{str(path)!r} has a tensor that is not dense ({type(error).__name__})") from None


def _loaded(path: Path) -> Any:
    try:
        import torch
    except ModuleNotFoundError:
        raise InputError(
            f"{str(path)!r} is a file of PyTorch, which is not installed; pip install 'lambdanet[timm]', or "
            "give the model.safetensors of the same weights"
        ) from None
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as file:
                if sum(part.file_size for part in file.infolist()) > path.stat().st_size:
                    raise ValueError("compressed, which PyTorch's own files are not")
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise any
        raise InputError(
            f"{str(path)!r} is damaged, or holds more than tensors, which may run code when it is unpickled "
            f"({type(error).__name__}); accepted: a {SAFETENSORS} file, or one that "
            "`torch.save(network.state_dict(), FILE)` wrote"
        ) from None


def _state_dict(path: Path, content: Any) -> Mapping[str, Any]:
    """What is a tensor for every name, itself or within."""
    if isinstance(content, Mapping):
        content = next((content[key] for key in WITHIN if isinstance(content.get(key), Mapping)), content)
        if content and all(_is_name(n) and hasattr(t, "detach") for n, t in content.items()):
            return content
    raise InputError(
        f"{str(path)!r} has no state dict; accepted: tensors by name, or one of {WITHIN} with them"
    )


def _is_name(key: Any) -> bool:
    return isinstance(key, str) and key.isprintable()


def _array(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError("it repeats what is stored")
    return (tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor).numpy()
