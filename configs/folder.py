# SPDX-License-Identifier: Apache-2.0
"""Your own pictures, in one folder per class.

    PICTURES/train/CLASS/*.jpg    PICTURES/validation/CLASS/*.jpg

    lambdanet train --recipe=folder --data_dir=PICTURES --model_dir=DIR

The number of classes is that of the folders, and the regularization that of
`imagenet_350:lambda_resnet_50@160`. One GPU is enough. To start from trained weights:
--set=start_from=MODEL_DIR --set=epochs=20.

The rows fine-tune timm's networks from their ImageNet weights in 20 epochs, with their preprocessing:
`folder:lambda_resnet50ts`.
"""

import dataclasses

from lambdanet.configs import imagenet_350
from lambdanet.configs.recipe import Recipe
from lambdanet.configs.registry import pretrained_weights

BATCH = 64

RECIPE = dataclasses.replace(
    imagenet_350.ROWS["lambda_resnet_50@160"],
    dataset="folder",
    num_classes=0,
    epochs=100,
    global_batch_size=BATCH,
    learning_rate=0.1 * BATCH / 256,
    bn_momentum=0.9,
    ema_decay=0.0,
    mixed_precision=False,
)


def fine_tuned(weights: pretrained_weights.PublishedWeights) -> Recipe:
    """Returns a recipe that fine-tunes published weights, with their preprocessing."""
    return dataclasses.replace(
        RECIPE,
        model=weights.model,
        start_from=weights.tag,
        input_size=weights.input_size,
        mean=weights.mean,
        std=weights.std,
        crop_fraction=weights.crop_fraction,
        interpolation=weights.interpolation,
        epochs=20,
        learning_rate=0.1 * RECIPE.learning_rate,
        warmup_epochs=1,
        dropout_rate=0.0,
        stochastic_depth_rate=0.0,
        weight_decay=0.1 * RECIPE.weight_decay,
    )


ROWS = {weights.model: fine_tuned(weights) for weights in pretrained_weights.WEIGHTS}
