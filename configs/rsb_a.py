# SPDX-License-Identifier: Apache-2.0
"""ImageNet with LAMB, binary cross entropy, mixup and CutMix: Wightman et al. (2021), Table 2, A1 to A3.

    lambdanet train --recipe=rsb_a:lambda_resnet50ts@a1 --model_dir=DIR --data_dir=DIR

"ResNet strikes back" (arXiv 2110.00476) gives the three procedures for ResNet-50, which reaches 80.4, 79.8
and 78.1 % with them. Rows are named `model@procedure`, for timm's networks. The cards of the weights
`a1h_in1k` say that they are based on A1, with LAMB and with stronger dropout, stochastic depth and
RandAugment, but not how much; A1 here is the paper's. The cards of `sehalonet33ts` and `haloregnetz_b` name
other recipes, `ra2` and `ra3`.

What differs from the paper: no image is repeated within a batch (three times in A1 and A2); RandAugment is
Model Garden's, with two operations of a fixed magnitude, where timm draws it with a deviation of 0.5; A1 and
A2 train at the size of the published weights, mostly 256 instead of 224 pixels; A3 is evaluated at 160, where
it trains, instead of 224. timm's LAMB limits the norm of all gradients to 1, here `clip_norm`,
and with its `--bce-target-thresh 0.2`, classes with more than 0.2 of a mixed image count in full.
"""

import dataclasses
from typing import Any

from lambdanet.configs import imagenet_90
from lambdanet.configs.recipe import Recipe
from lambdanet.configs.registry import pretrained_weights
from lambdanet.configs.registry.pretrained_weights import PublishedWeights

BASE = dataclasses.replace(
    imagenet_90.BASE,
    crop_fraction=0.95,
    interpolation="bicubic",
    randaugment_layers=2,
    mixup_alpha=0.1,
    cutmix_alpha=1.0,
    global_batch_size=2048,
    optimizer="lamb",
    optimizer_options={"epsilon": 1e-6},
    clip_norm=1.0,
    warmup_epochs=5,
    loss="binary_cross_entropy",
    target_threshold=0.2,
    label_smoothing=0.0,
    bn_momentum=0.9,
    ema_decay=0.0,
)

# Table 2.
PROCEDURES: dict[str, dict[str, Any]] = {
    "a1": {
        "epochs": 600,
        "learning_rate": 5e-3,
        "weight_decay": 0.01,
        "label_smoothing": 0.1,
        "mixup_alpha": 0.2,
        "randaugment_magnitude": 7,
        "stochastic_depth_rate": 0.05,
    },
    "a2": {
        "epochs": 300,
        "learning_rate": 5e-3,
        "weight_decay": 0.02,
        "randaugment_magnitude": 7,
        "stochastic_depth_rate": 0.05,
    },
    "a3": {
        "epochs": 100,
        "learning_rate": 8e-3,
        "weight_decay": 0.02,
        "randaugment_magnitude": 6,
        "input_size": 160,
    },
}


def with_pixels_of(base: Recipe, weights: PublishedWeights) -> Recipe:
    """Returns a recipe for the network of published weights, at their size and normalization."""
    return dataclasses.replace(
        base, model=weights.model, input_size=weights.input_size, mean=weights.mean, std=weights.std
    )


ROWS = {
    f"{weights.model}@{name}": dataclasses.replace(with_pixels_of(BASE, weights), **procedure)
    for weights in pretrained_weights.WEIGHTS
    for name, procedure in PROCEDURES.items()
}
