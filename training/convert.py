# SPDX-License-Identifier: Apache-2.0
"""Converts trained networks of timm to Keras: weights, metadata and a model card."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tf_keras as keras
from tqdm import tqdm

from lambdanet.configs.registry import pretrained_weights
from lambdanet.configs.registry.pretrained_weights import PublishedWeights
from lambdanet.errors import InputError, invalid, one_line
from lambdanet.files import absolute, atomic_dir, check_output_dir
from lambdanet.models import zoo
from lambdanet.models.weights import model_card, pretrained, timm_rules, torch_files, weight_files
from lambdanet.models.weights.hub import Source
from lambdanet.models.weights.timm_import import import_timm

TOLERANCE = 1e-3  # of the largest logit


def convert(
    model_name: str,
    checkpoint: str | Path | None = None,
    out: str | Path | None = None,
    revision: str | None = None,
) -> Path:
    """Converts a trained network of timm, and compares it with timm if that is installed.

    Args:
      model_name: one of `list_models(pretrained=True)`.
      checkpoint: a file of weights, `.safetensors` or from PyTorch; None: the published one, downloaded from
        the Hugging Face hub.
      out: a new or empty folder; None: the cache, from which `create_model(model_name, weights="imagenet")`
        loads the weights.
      revision: the revision of the repository on the hub; None: the known one.

    Returns:
      The folder, or the file in the cache.

    Raises:
      InputError: the model is unknown, the file is damaged or of another network, or `out` is not empty.
      ConnectionError: the download failed; the message has a remedy.

    Example:
      >>> convert("lambda_resnet50ts", "model.safetensors", "converted")
      >>> model = create_model("lambda_resnet50ts", weights="converted")
    """
    weights = pretrained_weights.get(model_name)
    if out is not None:
        check_output_dir(out)
    with tempfile.TemporaryDirectory() as folder:
        if checkpoint is None:
            path, source = pretrained.download(weights, Path(folder), revision or "")
        elif revision:
            raise invalid("revision", "empty with a checkpoint", revision)
        else:
            path, source = Path(checkpoint).expanduser(), None
        tensors = torch_files.read(path)
        source = source or pretrained.local_source(path)
    classes = timm_rules.count_classes(tensors, weights.num_classes)
    metadata = _metadata(weights, source, classes)
    if out is None and metadata["as_published"] == "no":
        name, hint = f"sha256 of {str(path)!r}", "--out=DIR converts other weights"
        raise invalid(name, f"that of the published file of {model_name}", source.sha256, hint)
    with tqdm(desc=f"building {model_name}", total=3, disable=None, leave=False) as bar:
        model = zoo.create_model(model_name, num_classes=classes)
        bar.update()
        bar.set_description("converting")
        timm_rules.load(model, tensors)
        bar.update()
        bar.set_description("comparing with timm")
        compared = _compare(weights, tensors, model)
    print(compared, flush=True)
    metadata["compared"] = compared
    if out is None:
        return pretrained.save_to_cache(weights, model, metadata)
    return _write(weights, model, metadata, out)


def _metadata(weights: PublishedWeights, source: Source, classes: int) -> dict[str, str]:
    """Returns the metadata of converted weights; the published accuracy is only that of published weights."""
    metadata = pretrained.metadata(weights, source)
    if metadata["as_published"] == "no" or classes != weights.num_classes:
        metadata = pretrained.without_accuracies(metadata)
        metadata |= {"as_published": "no", "num_classes": str(classes)}
    return metadata


def _compare(weights: PublishedWeights, tensors: Mapping[str, np.ndarray], model: keras.Model) -> str:
    """Returns a line on the difference of the logits from timm's; `InputError` for more than rounding."""
    try:
        timm = import_timm()
        import torch
    except (ImportError, RuntimeError) as error:
        return f"not compared with timm, which cannot be imported ({one_line(error)[:100]})"
    network = timm.create_model(weights.model, pretrained=False, num_classes=model.output_shape[-1]).eval()
    state = {name: torch.from_numpy(np.array(tensor)) for name, tensor in tensors.items()}
    network.load_state_dict(state, strict=False)  # checked above; batch counters may be missing
    shape = (2, weights.input_size, weights.input_size, 3)
    images = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with torch.no_grad():
        theirs = network(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).numpy()
    difference, largest = np.abs(model(images).numpy() - theirs).max(), np.abs(theirs).max()
    scale = f"of {largest:.3g}"
    if not difference <= TOLERANCE * max(largest, 1e-6):
        raise InputError(f"the logits of {weights.model} differ from timm's by {difference:.3g} {scale}")
    return (
        f"logits of 2 random images differ from timm {timm.__version__}'s by at most {difference:.2g} {scale}"
    )


def _write(weights: PublishedWeights, model: keras.Model, metadata: dict[str, str], out: str | Path) -> Path:
    path = absolute(out)
    with atomic_dir(path) as staging:
        folder = Path(staging)
        weight_files.save(model, folder / weight_files.FOLDER_FILE, metadata)
        everything = {"model": weights.model, **weight_files.metadata_of(folder / weight_files.FOLDER_FILE)}
        (folder / "metadata.json").write_text(json.dumps(everything, indent=2) + "\n", encoding="utf-8")
        (folder / "README.md").write_text(model_card.render(weights, everything), encoding="utf-8")
    return Path(path)
