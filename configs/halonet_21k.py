# SPDX-License-Identifier: Apache-2.0
"""HaloNets on ImageNet-21k, before `halonet_finetune`: Vaswani et al. (2021), C.3 and Table A3.

    lambdanet train --recipe=halonet_21k:halonet_h4_base128 --model_dir=DIR --data_dir=RECORDS

TFDS has no ImageNet-21k: RECORDS has it as TFRecords, see docs/how-to/tfrecords.md, with the names of its
classes in classes.txt, and validation images as the split `validation`. The paper trains on TPUv3, with 32
images per core.

C.3 gives 90 epochs, the batch, the base learning rate, warm-up, cosine, Nesterov's momentum, weight decay and
size. The rest follows Kolesnikov et al. (2020): random crops and mirroring, and no averages of the weights,
label smoothing, RandAugment, dropout or stochastic depth.
"""

import dataclasses

from lambdanet.configs import imagenet_90

BATCH = 4096
SIZE = 256
MODELS = ("halonet_h4_base128", "halonet_h4_base128_patch", "halonet_h4_base128_c12")

BASE = dataclasses.replace(
    imagenet_90.BASE,
    num_classes=0,
    dataset="tfrecord",
    input_size=SIZE,
    crop_fraction=SIZE / (SIZE + 32),
    global_batch_size=BATCH,
    learning_rate=0.16 * BATCH / 256,
    optimizer_options={"nesterov": True},
    warmup_epochs=2,
    weight_decay=8e-5,
    label_smoothing=0.0,
    bn_momentum=0.99,
    ema_decay=0.0,
)

ROWS = {model: dataclasses.replace(BASE, model=model) for model in MODELS}
