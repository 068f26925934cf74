# SPDX-License-Identifier: Apache-2.0
"""Predicts where neither Keras nor the models can be imported: predict_without_keras.py MODEL IMAGE."""

import sys


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("tf_keras", "tensorflow_datasets", "sklearn", "lambdanet.models")):
            raise ModuleNotFoundError(f"blocked: {name}")


sys.meta_path.insert(0, Blocker())
from lambdanet.training.serving.predict import predict  # noqa: E402

predict(*sys.argv[1:])
