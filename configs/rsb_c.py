# SPDX-License-Identifier: Apache-2.0
"""ImageNet with SGD and adaptive gradient clipping, as on the model cards of timm's `c1_in1k` weights.

    lambdanet train --recipe=rsb_c:lambda_resnet26t --model_dir=DIR --data_dir=DIR

The cards say: a C recipe of "ResNet strikes back" (Wightman et al. 2021, arXiv 2110.00476), SGD with
Nesterov's momentum and AGC, a cosine with warm-up. They give no numbers, so this is no reproduction: the
limit of the gradients is from Brock et al. (2021, section 4.1) for a batch of 4096, also timm's default; the
size, normalization and central crop are the published weights'; all else is as in `imagenet_350`.

The networks with `c1_in1k` weights are lambda_resnet26t, lambda_resnet26rpt_256, eca_halonext26ts,
botnet26t_256 and eca_botnext26ts_256; there is a row for each of timm's networks.
"""

import dataclasses

from lambdanet.configs import imagenet_350
from lambdanet.configs.registry import pretrained_weights

BASE = dataclasses.replace(
    imagenet_350.BASE,
    optimizer_options={"nesterov": True},
    clip_adaptive=0.01,
    bn_momentum=0.9,
    ema_decay=0.0,
)

ROWS = {
    weights.model: dataclasses.replace(
        BASE, model=weights.model, **weights.preprocessing
    )
    for weights in pretrained_weights.WEIGHTS
}
