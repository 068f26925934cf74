# SPDX-License-Identifier: Apache-2.0
"""Your own pictures, from published ImageNet weights: one row per network of `lambdanet list --pretrained`.

    lambdanet train --recipe=finetune:lambda_resnet50ts --data_dir=PICTURES --model_dir=DIR

PICTURES is arranged as for `folder`, and the preprocessing is the published weights'. 20 epochs. To start
from an earlier run, or to freeze layers: --set=start_from=MODEL_DIR --set=freeze=backbone. Low-rank adapters
(LoRA): --set=lora_rank=8.

The learning rates were chosen with `lambda_resnet_tiny`, trained on 4,000 digits of MNIST, then 20 epochs on
100 digits of scikit-learn in batches of 20. On 600 others it has, as a mean of two seeds, 77.5 % from random
weights, 84.2 % with a learning rate of 0.003, which is 0.01 in batches of 64, and 88.6 % with 10 times that
for the classifier; 88.0 % with 0.01 and 89.6 % with 0.03 for all layers, 83.7 % with a frozen backbone, and
88.2 % with one that is unfrozen after 5 epochs. The chosen rates leave a margin for larger networks.
"""

import dataclasses

from lambdanet.configs import imagenet_90
from lambdanet.configs.registry import pretrained_weights

BASE = dataclasses.replace(
    imagenet_90.BASE,
    num_classes=0,
    dataset="folder",
    randaugment_layers=2,
    epochs=20,
    global_batch_size=64,
    learning_rate=0.01,
    head_rate=10,
    warmup_epochs=1,
    weight_decay=4e-6,
    bn_momentum=0.9,
    ema_decay=0.0,
    mixed_precision=False,
)

ROWS = {
    weights.model: dataclasses.replace(
        BASE, model=weights.model, start_from=weights.tag, **weights.preprocessing
    )
    for weights in pretrained_weights.WEIGHTS
}
