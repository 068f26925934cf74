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

from lambdanet.configs import imagenet_350

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
