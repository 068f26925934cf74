# SPDX-License-Identifier: Apache-2.0
"""The model card of converted weights: what they are, where they are from, how to use them."""

from collections.abc import Mapping

from lambdanet.configs.registry.pretrained_weights import PublishedWeights
from lambdanet.models.weights.pretrained import ORIGINS

PREPROCESSING = ("input_size", "mean", "std", "crop_fraction", "interpolation")


def render(one: PublishedWeights, metadata: Mapping[str, str]) -> str:
    """Returns the card as markdown, with the header that the Hugging Face hub reads.

    Args:
      one: the published set that the weights are, or began as.
      metadata: of the converted file.
    """
    size, mean, std, crop, way = (metadata[key] for key in PREPROCESSING)
    facts = {
        "model": f"`{one.model}`, architecture and weights by timm (Ross Wightman)",
        "trained on": "ImageNet-1k",
        "classes": metadata["num_classes"],
        "accuracy": _accuracy(metadata),
        "licence": metadata["licence"],
        "converted from": f"`{metadata['source']}`",
        "its commit": metadata.get("source_revision", "-"),
        "its sha256": f"`{metadata['source_sha256']}`",
        "published at": one.page,
        "compared with timm": metadata["compared"],
    }
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    return f"""---
license: {metadata["licence"].lower()}
library_name: lambdanet
tags:
- image-classification
- tf-keras
datasets:
- imagenet-1k
---

# {one.model}.{one.tag} for Keras

| | |
|---|---|
{rows}

{ORIGINS[metadata["as_published"]]}

## Pictures

The shorter side resized to {size} / {crop} pixels by {way} interpolation, the central
{size}x{size} pixels cropped, divided by 255, less the mean ({mean}), by the standard deviation ({std}).

## Use

```python
import lambdanet

model = lambdanet.create_model("{one.model}", num_classes={metadata["num_classes"]}, weights="THIS_FOLDER")
preprocess = lambdanet.preprocess_for("{one.model}")
logits = model(preprocess(pictures))  # pictures: uint8 [b, h, w, 3]
backbone = lambdanet.create_model("{one.model}", features_only=True, weights="THIS_FOLDER")
```

`lambdanet export --model={one.model} --weights=THIS_FOLDER --out=DIR` writes a SavedModel that takes pictures
as they are.
"""


def _accuracy(metadata: Mapping[str, str]) -> str:
    if "top1" not in metadata:
        return "not known"
    return (
        f"top-1 {metadata['top1']} %, top-5 {metadata['top5']} % on the validation pictures of ImageNet, as "
        "published by timm; not measured again here"
    )
