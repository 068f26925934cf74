# SPDX-License-Identifier: Apache-2.0
"""HaloNets on ImageNet: Vaswani et al. (2021), C.1 and C.2.

    lambdanet train --recipe=halonet:halonet_h0 --model_dir=DIR --data_dir=DIR

The paper trains on TPUv3. Its cosine ends at 1/128 of the peak, because the largest models overfit if it ends
at 0. Its appendix gives the weight decay, the base learning rate, the magnitudes of RandAugment, the
optimizer (C.3) and stochastic depth (C.4); the epochs are as in `imagenet_350`, and
batch, warm-up and averages as in `imagenet_90`.
"""

import dataclasses

from lambdanet.configs import imagenet_350

BASE = dataclasses.replace(
    imagenet_350.BASE,
    optimizer_options={"nesterov": True},
    cosine_floor=1 / 128,
    weight_decay=2e-5,
    stochastic_depth_rate=0.1,
)

# Table A2 and C.2. Model: image size, RandAugment magnitude.
SIZES_AND_MAGNITUDES = {
    "halonet_h0": (256, 6),
    "halonet_h1": (256, 8),
    "halonet_h2": (256, 10),
    "halonet_h3": (320, 14),
    "halonet_h4": (384, 17),
    "halonet_h5": (448, 19),
    "halonet_h6": (512, 24),
    "halonet_h7": (600, 31),
}

ROWS = {
    model: dataclasses.replace(
        BASE,
        model=model,
        input_size=size,
        crop_fraction=size / (size + 32),
        randaugment_magnitude=magnitude,
    )
    for model, (size, magnitude) in SIZES_AND_MAGNITUDES.items()
}
