# SPDX-License-Identifier: Apache-2.0
"""The environment of this process, for reports of faults: `lambdanet info --environment`."""

import importlib
import os
import platform
from importlib import metadata

import lambdanet
from lambdanet.core import which_keras
from lambdanet.core.errors import InputError

PACKAGES = (
    "keras",
    "tensorflow",
    "tf-keras",
    "jax",
    "jaxlib",
    "torch",
    "numpy",
    "safetensors",
    "libtpu",
    "tensorflow-datasets",
    "tf-models-official",
    "ai-edge-litert",
    "onnxruntime",
    "timm",
)


def environment_rows() -> list[tuple[str, str]]:
    """Returns names and values: versions, Keras, its backend and devices, variables that choose them."""
    rows = [
        (
            "lambdanet",
            f"{lambdanet.__version__} in {os.path.dirname(os.path.dirname(__file__))}",
        ),
        (
            "Python",
            f"{platform.python_version()} on {platform.platform()}, {os.cpu_count()} cores",
        ),
    ]
    try:
        backend = which_keras.keras_3_backend()
        rows += [("backend", backend), ("devices", ", ".join(_devices(backend)))]
    except InputError as error:  # there is no backend
        rows.append(("backend", str(error)))
    for package in PACKAGES:
        try:
            rows.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            continue
    variables = (
        "KERAS_BACKEND",
        "CUDA_VISIBLE_DEVICES",
        "JAX_PLATFORMS",
        "XLA_FLAGS",
        "TF_CONFIG",
    )
    return rows + [(name, os.environ[name]) for name in variables if name in os.environ]


def _devices(backend: str) -> list[str]:
    library = importlib.import_module(backend)
    if backend == "jax":
        return [
            f"{device.platform} {device.id} ({device.device_kind})"
            for device in library.devices()
        ]
    if backend == "torch":
        count = library.cuda.device_count()
        return [library.cuda.get_device_name(number) for number in range(count)] or [
            "cpu"
        ]
    devices = library.config.list_physical_devices()
    details = library.config.experimental.get_device_details
    return [
        f"{device.device_type} {details(device).get('device_name', '')}".strip()
        for device in devices
    ]
