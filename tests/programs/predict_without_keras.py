# SPDX-License-Identifier: Apache-2.0
"""Predicts where neither Keras nor the models can be imported: predict_without_keras.py MODEL IMAGE ...

Runs the command for each image, and prints the exit statuses.
"""

import sys

BLOCKED = ("keras", "tf_keras", "tensorflow_datasets", "sklearn", "lambdanet.models")
sys.modules.update(dict.fromkeys(BLOCKED))  # an import of None fails
from lambdanet import cli  # noqa: E402

saved_model, *images = sys.argv[1:]
print(
    [cli.main(["predict", f"--saved_model={saved_model}", image]) for image in images]
)
