# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10 as in the reproduction of LambdaNetworks by students of TU Delft (2021), chapter 7.

    lambdanet train --recipe=cifar10:resnet_50_llll --model_dir=DIR

One GPU with 4 GB is enough: the reproduction took about an hour. Its lambda layer reshaped without
transposing, which mixed channels and pixels, and its batch statistics had a momentum of 0.0001. This recipe
has the paper's layer and the usual `bn_momentum` of 0.9. The conclusion, that the lambda layer is 3 % worse
than the convolution, may therefore not apply to it.

What each of these mistakes costs in small networks was measured on Fashion-MNIST (docs/results/fashion.md).
"""

import dataclasses

from lambdanet.configs.recipe import Recipe

WARMUP_EPOCHS = 5
INITIAL_LEARNING_RATE = 0.0005  # after one epoch; twice that after two, and so on

BASE = Recipe(
    model="resnet_50",
    num_classes=10,
    input_size=32,
    dataset="cifar10",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2023, 0.1994, 0.2010),
    augmentation="padded_crop_flip",
    epochs=90,
    global_batch_size=4096 // 32,  # the paper's batch per core, on 32 cores
    optimizer="adam",
    learning_rate=WARMUP_EPOCHS * INITIAL_LEARNING_RATE,
    momentum=0.9,
    optimizer_options={"beta_2": 0.9999},
    warmup_epochs=WARMUP_EPOCHS,
    schedule="cosine",
    weight_decay=1e-4,
    label_smoothing=0.1,
)

ROWS = {
    model: dataclasses.replace(BASE, model=model)
    for model in ("resnet_50", "resnet_50_llll")
}
