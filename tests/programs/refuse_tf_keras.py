# SPDX-License-Identifier: Apache-2.0
"""Uses layers of Keras 3 within tf_keras; prints the name of each use and its error, one line each."""

import numpy as np
import tf_keras

import lambdanet
from lambdanet.errors import InputError, one_line

lambdanet.use("keras")
IMAGES = np.zeros([1, 4, 4, 8], np.float32)


class Model(tf_keras.Model):
    """A model of tf_keras with a layer of Keras 3 in it."""

    def __init__(self):
        super().__init__()
        self.layer = lambdanet.SqueezeExcite()

    def call(self, images):
        return self.layer(images)


USES = {
    "model": lambda: Model()(IMAGES),
    "tensor": lambda: lambdanet.SqueezeExcite()(tf_keras.Input([4, 4, 8])),
    "regularizer": lambda: lambdanet.create_model(
        "lambda_resnet_tiny", kernel_regularizer=tf_keras.regularizers.L2(0.1)
    ),
    "late": lambda: lambdanet.use("tf_keras"),
}

for name, use in USES.items():
    try:
        use()
    except InputError as error:
        print(f"{name}: {one_line(error)}")
