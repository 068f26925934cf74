# SPDX-License-Identifier: Apache-2.0
"""Weights of any repository on the Hugging Face hub: `weights="hf:USER/REPO"`.

A repository has a folder of `lambdanet convert`, or a checkpoint of one of timm's networks. From its first
use on, it is in the cache of huggingface_hub; a checkpoint is also converted, once, and kept as
$LAMBDANET_HOME/hub/USER--REPO@REVISION/MODEL.safetensors.
"hf:USER/REPO@COMMIT" names a commit instead of the newest.
"""

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lambdanet.backend import keras
from lambdanet.configs.registry import pretrained_weights
from lambdanet.core.errors import InputError, invalid
from lambdanet.core.files import cache_dir, writable_dir
from lambdanet.models.weights import (
    hub,
    tensor_files,
    timm_rules,
    trained_classes,
    weight_files,
)

PREFIX = "hf:"
NAME = re.compile(r"hf:(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w.-]*))?")
TIMM_FILE = "model.safetensors"


def locate(model_name: str, name: str, build: Callable[..., keras.Model]) -> Path:
    """Returns the file of weights in the cache; fetches and converts it at its first use.

    Args:
      model_name: the name of the model.
      name: "hf:USER/REPO" or "hf:USER/REPO@REVISION".
      build: makes the model at its own image size: `build(num_classes=10)`.

    Raises:
      InputError: there is no such repository, or its weights are damaged or of another model.
      ConnectionError: the weights are not in the cache and cannot be fetched.
    """
    match = NAME.fullmatch(name)
    if not match:
        raise invalid("weights", "hf:USER/REPO or hf:USER/REPO@REVISION", name)
    repository = match["repository"]
    revision = match["revision"] or hub.NEWEST
    if found := hub.find_cached(repository, weight_files.FOLDER_FILE, revision):
        return found
    folder = cache_dir() / "hub" / f"{repository.replace('/', '--')}@{revision}"
    path = folder / f"{model_name}{tensor_files.SAFETENSORS}"
    if not path.is_file():
        try:
            return hub.fetch(repository, weight_files.FOLDER_FILE, revision)[0]
        except hub.MissingFile:
            _convert(model_name, repository, revision, path, build)
    return path


def _convert(
    model_name: str,
    repository: str,
    revision: str,
    path: Path,
    build: Callable[..., keras.Model],
) -> None:
    """Fetches a checkpoint of timm and writes its weights, with the preprocessing of its configuration."""
    writable_dir(cache_dir(), name="LAMBDANET_HOME")
    try:
        checkpoint, source = hub.fetch(repository, TIMM_FILE, revision)
    except hub.MissingFile:
        raise InputError(
            f"{PREFIX}{repository}@{revision} has neither {weight_files.FOLDER_FILE} of `lambdanet "
            f"convert` nor {TIMM_FILE} of timm; where it is private or gated, `hf auth login` first"
        ) from None
    # timm's networks are those that it has weights for
    published = pretrained_weights.get(model_name)
    metadata = {
        "repository": repository,
        "source": source.location,
        "source_sha256": source.sha256,
        "source_revision": source.revision,
    }
    with contextlib.suppress(hub.MissingFile):  # the weights are complete without it
        config = hub.fetch(repository, trained_classes.TIMM_CONFIG, source.revision)[0]
        metadata |= _preprocessing(model_name, config)
        metadata |= trained_classes.as_metadata(trained_classes.names_in_config(config))
    tensors = tensor_files.read_tensors(checkpoint)
    classes = timm_rules.count_classes(tensors, published.num_classes)
    model = build(num_classes=classes)
    timm_rules.load(model, tensors)
    weight_files.save(model, path, {**metadata, "num_classes": str(classes)})


def _preprocessing(model_name: str, config: Path) -> dict[str, str]:
    """The preprocessing in a configuration of timm, as metadata; empty for a kind that lambdanet lacks.

    Raises:
      InputError: the configuration cannot be read, or is of another network.
    """
    try:
        content: Mapping[str, Any] = json.loads(config.read_bytes())
        architecture = content.get("architecture", model_name)
        given = content.get("pretrained_cfg", {})
        if architecture != model_name:
            raise invalid(
                "model",
                f"{architecture!r}, as the configuration of the weights has it",
                model_name,
            )
        if (given.get("interpolation"), given.get("crop_mode", "center")) != (
            "bicubic",
            "center",
        ):
            return {}
        return {
            "input_size": str(int(given["input_size"][-1])),
            "mean": ", ".join(str(float(value)) for value in given["mean"]),
            "std": ", ".join(str(float(value)) for value in given["std"]),
            "crop_fraction": str(float(given["crop_pct"])),
            "interpolation": "bicubic",
        }
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(
            f"config.json of the weights cannot be read ({type(error).__name__})"
        ) from None
