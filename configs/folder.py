# SPDX-License-Identifier: Apache-2.0
"""Your own pictures, in one folder per class.

    PICTURES/train/CLASS/*.jpg    PICTURES/validation/CLASS/*.jpg

    lambdanet train --recipe=folder --data_dir=PICTURES --model_dir=DIR

The number of classes is the number of folders, and the regularization is as in
`imagenet_350:lambda_resnet_50@160`. One GPU is enough. To start from trained weights:
--set=start_from=MODEL_DIR --set=epochs=20.

`finetune` has recipes that start from published weights.
"""

import dataclasses

from lambdanet.configs import imagenet_90

BATCH = 64
SIZE = 160
RECIPE = dataclasses.replace(
    imagenet_90.BASE,
    model="lambda_resnet_50",
    num_classes=0,
    input_size=SIZE,
    crop_fraction=SIZE / (SIZE + 32),
    dataset="folder",
    randaugment_layers=2,
    dropout_rate=0.2,
    weight_decay=4e-5,
    epochs=100,
    global_batch_size=BATCH,
    learning_rate=0.1 * BATCH / 256,
    bn_momentum=0.9,
    ema_decay=0.0,
    mixed_precision=False,
)
