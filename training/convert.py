# SPDX-License-Identifier: Apache-2.0
"""Converts trained networks of timm to Keras: weights, metadata and a model card."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tqdm import tqdm

from lambdanet import backend as K
from lambdanet.backend import keras
from lambdanet.configs.registry import pretrained_weights
from lambdanet.configs.registry.pretrained_weights import PublishedWeights
from lambdanet.core.errors import InputError, invalid, one_line
from lambdanet.core.files import (
    absolute,
    atomic_dir,
    cache_dir,
    check_output_dir,
    writable_dir,
)
from lambdanet.models import zoo
from lambdanet.models.weights import (
    pretrained,
    tensor_files,
    timm_rules,
    trained_classes,
    weight_files,
)
from lambdanet.models.weights.hub import Source
from lambdanet.models.weights.pretrained import PROVENANCE, accuracies
from lambdanet.models.weights.tensor_files import import_timm
from lambdanet.models.weights.weight_files import is_published
from lambdanet.training.data.class_names import read_class_map

TOLERANCE = 1e-3  # of the largest logit

# The README of converted weights: their metadata, and the fields that `_model_card` adds.
MODEL_CARD = """---
{header}
---

# {title} for Keras

| | |
|---|---|
{rows}

{provenance}

## Pictures

The shorter side is resized to {input_size} / {crop_fraction} pixels by {interpolation} interpolation, and the central
{input_size}x{input_size} pixels are cropped and normalized: `(pixels / 255 - mean) / std` with mean = ({mean}) and
std = ({std}).

## Use

```python
import lambdanet

weights = "THIS_FOLDER"  # or "hf:USER/REPO", once the folder is a repository on the hub
model = lambdanet.create_model("{model}", num_classes={num_classes}, weights=weights)
preprocess = lambdanet.preprocess_for("{model}", weights)
logits = model(preprocess(pictures))  # pictures: uint8 [b, h, w, 3]
backbone = lambdanet.create_model("{model}", features_only=True, weights=weights)
```

`lambdanet export --model={model} --weights=THIS_FOLDER --out=DIR` writes a SavedModel that
takes pictures as they are.
"""  # noqa: E501  the values are shorter than their names


def convert(
    model_name: str,
    checkpoint: str | Path | None = None,
    out: str | Path | None = None,
    revision: str | None = None,
    as_published: bool = False,
    class_map: str | Path | None = None,
) -> Path:
    """Converts a trained network of timm, and compares it with timm if that is installed.

    Args:
      model_name: one of `list_models(pretrained=True)`.
      checkpoint: a file of weights, `.safetensors` or from PyTorch; None: the published one, downloaded from
        the Hugging Face hub.
      out: a new or empty folder; None: the cache, from which `create_model(model_name, weights="imagenet")`
        loads the weights. Other weights than the published ones are rejected there.
      revision: the revision of the repository on the hub; None: the known one.
      as_published: whether a checkpoint is taken for the published one where the sha256 of that is not
        known. Without it, such a checkpoint needs `out`.
      class_map: a file with the names of the classes in the order of the logits, one per line, which are kept
        with the weights; None: those in a `config.json` of timm beside the checkpoint, if there are any.

    Returns:
      The folder, or the file in the cache.

    Raises:
      InputError: the model is unknown, the file is damaged, of another network, or for the cache not the
        published one, or not known to be it, or `out` is not empty.
      ConnectionError: the download failed; the message has a remedy.

    Example:
      >>> convert("lambda_resnet50ts", "model.safetensors", "converted")
      >>> model = create_model("lambda_resnet50ts", weights="converted")
    """
    weights = pretrained_weights.get(model_name)
    if as_published and (out is not None or not (checkpoint or revision)):
        accepted = "left out, except for a checkpoint or a revision in the cache"
        raise invalid("as_published", accepted, as_published)
    if out is not None:
        check_output_dir(out)
    else:
        writable_dir(cache_dir(), name="LAMBDANET_HOME")
    if checkpoint is None:
        path, source = pretrained.download(weights, revision or "")
        tensors = tensor_files.read_tensors(path)
    elif revision:
        raise invalid("revision", "empty with a checkpoint", revision)
    else:
        path = Path(checkpoint).expanduser()
        tensors = tensor_files.read_tensors(path)
        source = pretrained.local_source(path)
    classes = timm_rules.count_classes(tensors, weights.num_classes)
    names = _class_names(path, classes, class_map)
    if out is None and (checkpoint or revision):
        _check_published(weights, path, source, classes, as_published)
    with tqdm(desc=f"building {model_name}", total=3, disable=None, leave=False) as bar:
        model = zoo.create_model(model_name, num_classes=classes)
        bar.update()
        bar.set_description("converting")
        timm_rules.load(model, tensors)
        bar.update()
        bar.set_description("comparing with timm")
        compared = _compare(weights, tensors, model)
    print(compared, flush=True)
    if checkpoint is None and not revision:
        pretrained.record_first_download(weights, source)
    metadata = {**pretrained.metadata(weights, source, classes), "compared": compared}
    metadata |= trained_classes.as_metadata(names)
    if out is None:
        path = pretrained.cache_path(weights)
        weight_files.save(model, path, metadata)
        return path
    return _write(weights, model, metadata, out)


def _class_names(
    checkpoint: Path, count: int, class_map: str | Path | None
) -> list[str]:
    """Returns the names of the classes of a checkpoint, from a file; an empty list where there is none."""
    config = checkpoint.with_name(trained_classes.TIMM_CONFIG)
    if class_map is not None:
        owner = class_map
        names = read_class_map(class_map)
    elif config.is_file():
        owner = config
        names = trained_classes.names_in_config(config)
    else:
        return []
    if names and len(names) != count:
        raise invalid(
            f"the number of names in {str(owner)!r}",
            f"{count}, as in {str(checkpoint)!r}",
            len(names),
        )
    return names


def _check_published(
    weights: PublishedWeights,
    path: Path,
    source: Source,
    classes: int,
    as_published: bool,
) -> None:
    """Rejects weights for the cache that are not the published ones; unknown ones need `as_published`."""
    origin = pretrained.provenance(weights, source, classes)
    elsewhere = "--out=DIR converts other weights"
    if origin == "no":
        hint = "; ".join(filter(None, (elsewhere, pretrained.remedy(weights))))
        accepted = f"that of the published file of {weights.model}, with {weights.num_classes} classes"
        raise invalid(f"sha256 of {str(path)!r}", accepted, source.sha256, hint)
    if origin == "not known" and not as_published:
        raise InputError(
            f'{str(path)!r} may be other weights than {weights.tag}, which weights="imagenet" loads for '
            f"{weights.model}: the sha256 of the published file is not known here; {elsewhere}, and "
            f"--as_published takes a file that you have from {weights.page}"
        )


def _compare(
    weights: PublishedWeights, tensors: Mapping[str, np.ndarray], model: keras.Model
) -> str:
    """Returns a line on the difference between the logits and timm's; `InputError` for more than rounding."""
    try:
        timm = import_timm()
        import torch
    except (ImportError, RuntimeError) as error:
        return f"not compared with timm, which cannot be imported ({one_line(error)[:100]})"
    network = timm.create_model(
        weights.model, pretrained=False, num_classes=model.output_shape[-1]
    ).eval()
    state = {
        name: torch.from_numpy(np.array(tensor)) for name, tensor in tensors.items()
    }
    # Checked above; batch counters may be missing.
    network.load_state_dict(state, strict=False)
    shape = (2, weights.input_size, weights.input_size, 3)
    images = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with torch.no_grad():
        theirs = network(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).numpy()
    difference = np.abs(K.convert_to_numpy(model(images)) - theirs).max()
    largest = np.abs(theirs).max()
    scale = f"of {largest:.3g}"
    if not difference <= TOLERANCE * max(largest, 1e-6):
        raise InputError(
            f"the logits of {weights.model} differ from timm's by {difference:.3g} {scale}"
        )
    return (
        f"logits of 2 random images differ from timm {timm.__version__}'s "
        f"by at most {difference:.2g} {scale}"
    )


def _write(
    weights: PublishedWeights,
    model: keras.Model,
    metadata: dict[str, str],
    out: str | Path,
) -> Path:
    """Writes the folder of converted weights, completely or not at all, and returns its path."""
    path = absolute(out)
    with atomic_dir(path) as staging:
        file = Path(staging, weight_files.FOLDER_FILE)
        weight_files.save(model, file, metadata)
        everything = {"model": weights.model, **tensor_files.metadata_of(file)}
        for name, text in (
            ("metadata.json", json.dumps(everything, indent=2) + "\n"),
            ("README.md", _model_card(weights, everything)),
        ):
            Path(staging, name).write_text(text, encoding="utf-8")
    return Path(path)


def _model_card(published: PublishedWeights, metadata: Mapping[str, str]) -> str:
    """Fills in the README of converted weights, whose header the Hugging Face hub reads.

    Rows without a value in the metadata are left out, for the author of the weights to add.

    Args:
      published: the published set that the weights are, or that has the same network.
      metadata: the metadata of the converted file, and the name of its "model".
    """
    theirs = is_published(metadata)
    weights_too = "and weights " if theirs else ""
    header = {
        "license": metadata.get("license", "").lower(),
        "library_name": "lambdanet",
        "tags": "[image-classification, keras]",
        "datasets": "[imagenet-1k]" if theirs else "",
    }
    cells = {
        "model": f"`{published.model}`, architecture {weights_too}by timm (Ross Wightman)",
        "trained on": "ImageNet-1k" if theirs else "",
        "classes": metadata["num_classes"],
        "accuracy": _accuracy(metadata),
        "license": metadata.get("license", ""),
        "converted from": f"`{metadata['source']}`",
        "its commit": metadata.get("source_revision", ""),
        "its sha256": f"`{metadata['source_sha256']}`",
        "published at": published.page if theirs else "",
        "compared with timm": metadata["compared"],
    }
    title = f"{published.model}.{published.tag}" if theirs else published.model
    return MODEL_CARD.format(
        **metadata,
        header="\n".join(f"{name}: {value}" for name, value in header.items() if value),
        title=title,
        rows="\n".join(
            f"| {name} | {value} |" for name, value in cells.items() if value
        ),
        provenance=PROVENANCE[metadata["as_published"]],
    )


def _accuracy(metadata: Mapping[str, str]) -> str:
    if "top1" not in metadata:
        return "unknown"
    others = [
        f"{name} {top1} %"
        for name, top1 in accuracies(metadata).items()
        if name != "ImageNet"
    ]
    return (
        f"top-1 {metadata['top1']} %, top-5 {metadata['top5']} % on ImageNet's validation pictures"
        f"{''.join(f', {other}' for other in others)}, as published by timm; not measured again here"
    )
