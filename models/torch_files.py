# SPDX-License-Identifier: Apache-2.0
"""The tensors of PyTorch's networks from files, of which nothing is ever run.

Safetensors are read without PyTorch. Its own files are pickles, which PyTorch reads with `weights_only`: all
but tensors is refused.
"""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lambdanet.errors import InputError
from lambdanet.models import safetensors

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
    return {name.removeprefix(OF_SEVERAL_DEVICES): _array(tensor) for name, tensor in tensors.items()}


def _loaded(path: Path) -> Any:
    try:
        import torch
    except ModuleNotFoundError:
        raise InputError(
            f"{str(path)!r} is a file of PyTorch, which is not installed; pip install 'lambdanet[timm]', or "
            "give the model.safetensors of the same weights"
        ) from None
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{str(path)!r} is damaged, or holds more than tensors: {reason}") from None


def _state_dict(path: Path, content: Any) -> Mapping[str, Any]:
    """What is a tensor for every name, itself or within."""
    if isinstance(content, Mapping):
        content = next((content[key] for key in WITHIN if isinstance(content.get(key), Mapping)), content)
        if content and all(hasattr(tensor, "detach") for tensor in content.values()):
            return content
    raise InputError(
        f"{str(path)!r} has no state dict; accepted: tensors by name, or one of {WITHIN} with them"
    )


def _array(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor).numpy()
