# SPDX-License-Identifier: Apache-2.0
"""MobileNetV2 with and without lambda blocks on ImageNet: Bello (2021), F.3 and Table 17.

    lambdanet train --recipe=mobilenet:mobilenet_v2_lambda --model_dir=DIR --data_dir=DIR

The paper trains on 32 TPUv3 cores. Its top-1: mobilenet_v2 72.7, mobilenet_v2_lambda 73.3.

F.3 refers to Howard et al. (2019) for the rest: averages of 0.9999, batch normalization with decay 0.99.
Neither gives the 5 epochs of warm-up, which are as in the other setups, and rho and epsilon, which are as in
TF-Slim, where MobileNets were trained; with the usual epsilon of 1e-7, a learning rate of 0.1 would
be far too large.
"""

import dataclasses

from lambdanet.configs import imagenet_90

BASE = dataclasses.replace(
    imagenet_90.BASE,
    epochs=350,
    optimizer="rmsprop",
    learning_rate=0.1,
    momentum=0.9,
    optimizer_options={"rho": 0.9, "epsilon": 1.0},
    schedule="exponential",
    decay_rate=0.99,
    decay_epochs=3,
    weight_decay=1e-5,
    dropout_rate=0.2,
    label_smoothing=0.0,
    bn_momentum=0.99,
)

ROWS = {
    model: dataclasses.replace(BASE, model=model)
    for model in ("mobilenet_v2", "mobilenet_v2_lambda")
}
