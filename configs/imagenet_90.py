# SPDX-License-Identifier: Apache-2.0
"""ImageNet in 90 epochs with plain augmentation: the setup of the ResNet-50 studies, Bello (2021), F.3.

    lambdanet train --recipe=imagenet_90:resnet_50_llll --model_dir=DIR --data_dir=DIR

The paper trains on 32 TPUv3 cores. Its top-1: resnet_50 76.9, resnet_50_se 77.6, resnet_50_llll
78.4 (Table 3), resnet_50_cccl 77.3, resnet_50_ccll 78.3, resnet_50_clll 78.3 (Table 12). The studies of the
layer itself are options of a row, such as --set="model_options={'key_dim': 8}" for 77.9 (Table 4).

The averages' decay rises to 0.9999, which it has from step 90,000: (1 + step) / (10 + step).
Scale the learning rate with the batch size B: 0.1 B / 256.
"""

import dataclasses

from lambdanet.configs.recipe import Recipe

BATCH = 4096

BASE = Recipe(
    model="resnet_50",
    num_classes=1000,
    input_size=224,
    dataset="imagenet2012",
    eval_split="validation",
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    crop_fraction=224 / (224 + 32),
    augmentation="crop_flip",
    epochs=90,
    global_batch_size=BATCH,
    learning_rate=0.1 * BATCH / 256,
    momentum=0.9,
    warmup_epochs=5,
    schedule="cosine",
    weight_decay=1e-4,
    label_smoothing=0.1,
    bn_momentum=0.9999,
    ema_decay=0.9999,
    mixed_precision="bfloat16",
)

MODELS = (
    "resnet_50",
    "resnet_50_se",
    "resnet_50_linear_attention",
    "resnet_50_augmented",
    "resnet_50_local_attention",
    "resnet_50_axial_attention",
    "resnet_50_global_attention",
    "resnet_50_lccc",
    "resnet_50_llcc",
    "resnet_50_lllc",
    "resnet_50_llll",
    "resnet_50_clll",
    "resnet_50_ccll",
    "resnet_50_cccl",
)

ROWS = {model: dataclasses.replace(BASE, model=model) for model in MODELS}
