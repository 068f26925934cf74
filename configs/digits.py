# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits of scikit-learn, a recipe without a download.

    lambdanet train --recipe=digits --model_dir=/tmp/digits

It takes minutes on a CPU.
"""

from lambdanet.configs.recipe import Recipe

RECIPE = Recipe(
    model="lambda_resnet_tiny",
    num_classes=10,
    input_size=32,
    dataset="digits",
    mean=(0.305, 0.305, 0.305),
    std=(0.376, 0.376, 0.376),
    augmentation="affine",
    epochs=40,
    global_batch_size=64,
    learning_rate=0.1,
    warmup_epochs=1.0,
    weight_decay=5e-4,
    label_smoothing=0.1,
)
