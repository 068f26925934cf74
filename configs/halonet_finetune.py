# SPDX-License-Identifier: Apache-2.0
r"""HaloNets fine-tuned from ImageNet-21k on ImageNet, 8 epochs: Vaswani et al. (2021), C.3 and Table A3.

    lambdanet train --recipe=halonet_finetune:halonet_h4_base128@384 --model_dir=DIR --data_dir=DIR \
        --set=start_from=MODEL_DIR

MODEL_DIR is a run of `halonet_21k`, or a file of weights. Rows are named `model@size`. The paper's top-1 at
384 and 512: halonet_h4_base128 85.6 and 85.8, _patch 85.4 and 85.4, _c12 85.5 and 85.8.

C.3 gives epochs, batch, learning rate, warm-up, cosine, Nesterov's momentum, a classifier that starts at
zero, label smoothing, and neither averages of the weights nor other regularization. The weight decay is that
of the pre-training, which C.3 states in the same sentence.
"""

import dataclasses

from lambdanet.configs import halonet_21k, imagenet_90

SIZES = (384, 512)

BASE = dataclasses.replace(
    imagenet_90.BASE,
    zero_head=True,
    epochs=8,
    global_batch_size=512,
    learning_rate=0.016,
    optimizer_options={"nesterov": True},
    warmup_epochs=0.5,
    weight_decay=8e-5,
    bn_momentum=0.99,
    ema_decay=0.0,
)
ROWS = {
    f"{model}@{size}": dataclasses.replace(
        BASE, model=model, input_size=size, crop_fraction=size / (size + 32)
    )
    for model in halonet_21k.MODELS
    for size in SIZES
}
