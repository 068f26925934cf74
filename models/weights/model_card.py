# SPDX-License-Identifier: Apache-2.0
"""Model card of converted weights: their origin, accuracy and use."""

from collections.abc import Mapping

from lambdanet.configs.registry.pretrained_weights import PublishedWeights
from lambdanet.models.weights.pretrained import PROVENANCE, accuracies
from lambdanet.models.weights.weight_files import is_published

PREPROCESSING = ("input_size", "mean", "std", "crop_fraction", "interpolation")


def render(published: PublishedWeights, metadata: Mapping[str, str]) -> str:
    """Returns the card as markdown, with the header that the Hugging Face hub reads.

    Args:
      published: the published set that the weights are, or that has the same network.
      metadata: the metadata of the converted file; what it says nothing of is left for its author to add.
    """
    size, mean, std, crop, interpolation = (metadata[key] for key in PREPROCESSING)
    theirs = is_published(metadata)
    header = {
        "license": metadata.get("license", "").lower(),
        "library_name": "lambdanet",
        "tags": "[image-classification, tf-keras]",
        "datasets": "[imagenet-1k]" if theirs else "",
    }
    cells = {
        "model": f"`{published.model}`, architecture {'and weights ' * theirs}by timm (Ross Wightman)",
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
    model, num_classes = published.model, metadata["num_classes"]
    lines = "\n".join(f"{name}: {value}" for name, value in header.items() if value)
    rows = "\n".join(f"| {name} | {value} |" for name, value in cells.items() if value)
    return f"""---
{lines}
---

# {model}{f".{published.tag}" if theirs else ""} for Keras

| | |
|---|---|
{rows}

{PROVENANCE[metadata["as_published"]]}

## Pictures

The shorter side is resized to {size} / {crop} pixels by {interpolation} interpolation, and the central
{size}x{size} pixels are cropped and normalized: `(pixels / 255 - mean) / std` with mean = ({mean}) and
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
"""


def _accuracy(metadata: Mapping[str, str]) -> str:
    if "top1" not in metadata:
        return "unknown"
    others = [f"{name} {top1} %" for name, top1 in accuracies(metadata).items() if name != "ImageNet"]
    return (
        f"top-1 {metadata['top1']} %, top-5 {metadata['top5']} % on ImageNet's validation pictures"
        f"{''.join(f', {other}' for other in others)}, as published by timm; not measured again here"
    )
