# SPDX-License-Identifier: Apache-2.0
"""ImageNet in 350 epochs with RandAugment, dropout and stochastic depth: Bello (2021), F.3 and Table 20.

    lambdanet train --recipe=imagenet_350:lambda_resnet_152@256 --model_dir=DIR --data_dir=DIR

Rows are named `model@size`. The paper trains on 32 or 64 TPUv3 cores. Its top-1 (Table 18) for
lambda_resnet: 50@128 77.4, 50@160 79.2, 101@160 80.8, 101@192 81.9, 152@192 82.5, 152@224 83.2, 152@256
83.8, 270@256 84.2, 350@256 84.4, 350@288 84.5, 350@320 84.7, 420@320 84.9. Of the baselines, Table 13
has resnet_rs_152@256 83.0 and resnet_rs_152_no_se@256 82.5, beside lambda_resnet_152_c4@256 83.4.

The largest, 350@288 and above, hold out the first 20 of ImageNet's 1024 files: `evaluate` and `export` take
the best epoch on these, and 20 epochs without improvement end the run. The paper stops them early on these
files too, but does not state after how many epochs.

Batch normalization, averages, label smoothing and warm-up, which F.3 does not mention, are as in 90 epochs.
If a batch of 4096 does not fit, the paper halves it: --set=global_batch_size=2048 --set=learning_rate=0.8.
"""

import dataclasses
from typing import Any

from lambdanet.configs import imagenet_90

BASE = dataclasses.replace(
    imagenet_90.BASE, epochs=350, weight_decay=4e-5, randaugment_layers=2
)

# Table 20. Depth, size: RandAugment magnitude, dropout, stochastic depth rate.
HYPERPARAMETERS = {
    (50, 128): (10, 0.2, 0.0),
    (50, 160): (10, 0.2, 0.0),
    (101, 160): (10, 0.3, 0.0),
    (101, 192): (15, 0.2, 0.0),
    (152, 192): (15, 0.3, 0.0),
    (152, 224): (15, 0.3, 0.1),
    (152, 256): (15, 0.3, 0.1),
    (152, 288): (15, 0.3, 0.1),
    (270, 256): (15, 0.3, 0.1),
    (350, 256): (15, 0.3, 0.2),
    (350, 288): (15, 0.3, 0.2),
    (350, 320): (15, 0.3, 0.2),
    (420, 320): (15, 0.3, 0.2),
}

# Lambda layers and two baselines for every depth and size, and a row of Table 13.
FAMILIES = ("lambda_resnet_{}", "resnet_rs_{}", "resnet_rs_{}_no_se")
MODELS = [
    (family.format(depth), depth, size)
    for family in FAMILIES
    for depth, size in HYPERPARAMETERS
]
MODELS += [("lambda_resnet_152_c4", 152, 256)]

LARGEST = ((350, 288), (350, 320), (420, 320))
EARLY_STOPPING: dict[str, Any] = {
    "train_split": "train[20shard:]",
    "held_out_split": "train[:20shard]",
    "patience": 20,
}


def hyperparameters(depth: int, size: int) -> dict[str, Any]:
    """Returns what the rows of a depth and size have in common beyond `BASE`."""
    magnitude, dropout_rate, stochastic_depth_rate = HYPERPARAMETERS[depth, size]
    return {
        "input_size": size,
        "crop_fraction": size / (size + 32),
        "randaugment_magnitude": magnitude,
        "dropout_rate": dropout_rate,
        "stochastic_depth_rate": stochastic_depth_rate,
        **(EARLY_STOPPING if (depth, size) in LARGEST else {}),
    }


ROWS = {
    f"{model}@{size}": dataclasses.replace(
        BASE, model=model, **hyperparameters(depth, size)
    )
    for model, depth, size in MODELS
}
