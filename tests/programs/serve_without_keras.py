# SPDX-License-Identifier: Apache-2.0
"""Runs an exported classifier in a process that can import neither lambdanet nor a Keras."""

import json
import sys

import numpy as np

BLOCKED = ("lambdanet", "keras", "tf_keras")
sys.modules.update(dict.fromkeys(BLOCKED))  # an import of None fails
import tensorflow as tf  # noqa: E402

folder = sys.argv[1]
served = tf.saved_model.load(f"{folder}/served")
by_images, by_bytes = (
    served.signatures["serving_default"],
    served.signatures["serving_bytes"],
)
results = {}
for name, images in np.load(f"{folder}/images.npz").items():
    results[name] = by_images(images=tf.constant(images))["probabilities"].numpy()
files = [
    tf.io.encode_png(images[0]) for images in np.load(f"{folder}/images.npz").values()
]
outputs = by_bytes(image_bytes=tf.stack(files))
results["files"] = outputs["probabilities"].numpy()
results["top_probabilities"] = outputs["top_probabilities"].numpy()
np.savez(f"{folder}/results.npz", **results)
assert not any(sys.modules[name] for name in BLOCKED)
names = np.char.decode(outputs["top_names"].numpy().astype(bytes))
print(json.dumps(names.tolist()))
