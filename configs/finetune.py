# SPDX-License-Identifier: Apache-2.0
"""Your own pictures, from published ImageNet weights: one row per network of `lambdanet list --pretrained`.

    lambdanet train --recipe=finetune:lambda_resnet50ts --data_dir=PICTURES --model_dir=DIR

PICTURES is laid out as for `folder`, and the preprocessing is that of the weights. 20 epochs. To start from a
run of your own, or to freeze layers: --set=start_from=MODEL_DIR --set=freeze=backbone.
"""

import dataclasses

from lambdanet.configs import folder
from lambdanet.configs.recipe import Recipe
from lambdanet.configs.registry import pretrained_weights


def fine_tuned(weights: pretrained_weights.PublishedWeights) -> Recipe:
    """Returns a recipe that fine-tunes published weights, with their preprocessing."""
    return dataclasses.replace(
        folder.RECIPE,
        model=weights.model,
        start_from=weights.tag,
        input_size=weights.input_size,
        mean=weights.mean,
        std=weights.std,
        crop_fraction=weights.crop_fraction,
        interpolation=weights.interpolation,
        epochs=20,
        learning_rate=0.01,
        head_rate=10,
        warmup_epochs=1,
        dropout_rate=0.0,
        stochastic_depth_rate=0.0,
        weight_decay=0.1 * folder.RECIPE.weight_decay,
    )


ROWS = {weights.model: fine_tuned(weights) for weights in pretrained_weights.WEIGHTS}
