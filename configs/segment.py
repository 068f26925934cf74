# SPDX-License-Identifier: Apache-2.0
"""Your own pictures with masks: DeepLabV3+ on a LambdaResNet, or a U-Net.

    PICTURES/classes.txt
    PICTURES/train/images/*.jpg    PICTURES/train/masks/*.png
    PICTURES/validation/...

    lambdanet train --recipe=segment --data_dir=PICTURES --model_dir=DIR

The pixels of a mask are the numbers of the lines of classes.txt, from 0 on; 255 is ignored. Pictures keep
their size, and a step reads windows of them. A U-Net: --set=model=lambda_unet_2d. One GPU is enough.
"""

from lambdanet.configs import imagenet_90
from lambdanet.configs.recipe import Recipe

RECIPE = Recipe(
    task="segmentation",
    model="lambda_resnet_50",
    num_classes=0,
    input_size=256,
    dataset="folder",
    eval_split="validation",
    mean=imagenet_90.BASE.mean,
    std=imagenet_90.BASE.std,
    augmentation="crop_flip",
    color_jitter=0.3,
    epochs=100,
    global_batch_size=16,
    optimizer="adamw",
    learning_rate=5e-4,
    warmup_epochs=5,
    weight_decay=0.01,
    clip_norm=1,
)
