# SPDX-License-Identifier: Apache-2.0
"""ImageNet with LAMB, binary cross entropy, mixup and CutMix: Wightman et al. (2021), Table 2, A1 to A3.

    lambdanet train --recipe=rsb_a:lambda_resnet50ts@a1 --model_dir=DIR --data_dir=DIR

"ResNet strikes back" (arXiv 2110.00476) gives the three procedures for ResNet-50, which reaches 80.4, 79.8
and 78.1 % with them. Rows are named `model@procedure`, for timm's networks. The cards of the weights
`a1h_in1k` say that they are based on A1, with LAMB and with stronger dropout, stochastic depth and
RandAugment, but not how much; `@a1` is the paper's A1. The cards of `sehalonet33ts` and `haloregnetz_b` name
other recipes, `ra2` and `ra3`.

Table 2 has the sizes, epochs, batch, optimizer, learning rates and their cosine, decay, warm-up, smoothing,
stochastic depth, repeated augmentation, RandAugment (`7/0.5` is a magnitude of 7 with a deviation of 0.5),
mixup, CutMix, the central crop of 0.95 and the binary cross entropy. From timm come three copies of each
image, the default of its sampler; RandAugment's operations, two per image (`rand-m7-mstd0.5-inc1`); the limit
of 1 on the norm of all gradients, which is in its LAMB (`clip_norm`); and `--bce-target-thresh 0.2`: classes
with more than 0.2 of a mixed image count in full.

What differs: A1 and A2 train and are evaluated at the size of the published weights, mostly 256 instead of
224 pixels. A3 trains at 160 and is evaluated at 224, except in networks whose tables are for one size, named
`_256`, which are also evaluated at 160. Crops are resized bilinearly, where timm takes bicubic in half of the
cases. The precision is bfloat16 instead of float16. The learning rate changes at each step, from 0 and to 0,
in timm once per epoch. Each epoch has another third of the images, and copies are on the same device; in timm
it is a random third, on several. A1's smoothing follows the threshold; in timm the threshold removes it.
"""

import dataclasses
from typing import Any

from lambdanet.configs import imagenet_90
from lambdanet.configs.registry import pretrained_weights
from lambdanet.configs.registry.pretrained_weights import PublishedWeights

BASE = dataclasses.replace(
    imagenet_90.BASE,
    randaugment_layers=2,
    randaugment_policy="timm",
    randaugment_std=0.5,
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
        "repeated_augmentation": 3,
        "randaugment_magnitude": 7,
        "stochastic_depth_rate": 0.05,
    },
    "a2": {
        "epochs": 300,
        "learning_rate": 5e-3,
        "weight_decay": 0.02,
        "repeated_augmentation": 3,
        "randaugment_magnitude": 7,
        "stochastic_depth_rate": 0.05,
    },
    "a3": {
        "epochs": 100,
        "learning_rate": 8e-3,
        "weight_decay": 0.02,
        "randaugment_magnitude": 6,
        "input_size": 224,
        "training_size": 160,
    },
}
ONE_SIZE: dict[str, dict[str, Any]] = {"a3": {"input_size": 160, "training_size": 0}}


def fields(weights: PublishedWeights, procedure: str) -> dict[str, Any]:
    """Returns the fields of a procedure, at the size and normalization of published weights."""
    one_size = ONE_SIZE.get(procedure, {}) if weights.model.endswith("_256") else {}
    return {
        **weights.preprocessing,
        "crop_fraction": 0.95,
        **PROCEDURES[procedure],
        **one_size,
    }


ROWS = {
    f"{weights.model}@{name}": dataclasses.replace(
        BASE, model=weights.model, **fields(weights, name)
    )
    for weights in pretrained_weights.WEIGHTS
    for name in PROCEDURES
}
