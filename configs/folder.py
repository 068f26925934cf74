# SPDX-License-Identifier: Apache-2.0
"""One's own pictures, in folders named like their classes; how many there are is found from the folders.

    PICTURES/train/CLASS/*.jpg    PICTURES/validation/CLASS/*.jpg

    lambdanet train --recipe=folder --data_dir=PICTURES --model_dir=DIR

The regularisation is that of `imagenet_350:lambda_resnet_50@160`. One GPU does. To begin with weights that
were trained before: --set=start_from=MODEL_DIR --set=epochs=20.

The rows begin with the ImageNet weights of timm's networks, at their image size and with their pictures' mean
and standard deviation: `folder:lambda_resnet50ts` is fine-tuned in 20 epochs.
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


def fine_tuned(one: pretrained_weights.PublishedWeights) -> Recipe:
    """Returns the recipe that begins with published weights, with pictures made as theirs were."""
    return dataclasses.replace(
        RECIPE,
        model=one.model,
        start_from=one.tag,
        input_size=one.input_size,
        mean=one.mean,
        std=one.std,
        crop_fraction=one.crop_fraction,
        interpolation=one.interpolation,
        epochs=20,
        learning_rate=0.1 * RECIPE.learning_rate,
        warmup_epochs=1,
        dropout_rate=0.0,
        stochastic_depth_rate=0.0,
        weight_decay=0.1 * RECIPE.weight_decay,
    )


ROWS = {one.model: fine_tuned(one) for one in pretrained_weights.WEIGHTS}
