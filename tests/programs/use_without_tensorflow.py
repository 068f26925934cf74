# SPDX-License-Identifier: Apache-2.0
"""Uses models and prepares pictures in a process that cannot import TensorFlow; writes the prepared pictures.

use_without_tensorflow.py FOLDER

FOLDER/pictures.npz has the pictures; prepared ones go to FOLDER/prepared.npz, by interpolation and name.
"""

import sys
from pathlib import Path

import numpy as np
from refusals import refused

import lambdanet
from lambdanet.models.preprocessing import Preprocessing
from lambdanet.models.weights import weight_files


def main(folder: Path) -> None:
    assert "tensorflow" not in sys.modules
    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # an import raises ImportError
    pictures = np.load(folder / "pictures.npz")
    prepared = {
        f"{interpolation} {name}": Preprocessing(
            32, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), 0.9, interpolation
        )(array)
        for interpolation in ("bilinear", "bicubic")
        for name, array in pictures.items()
    }
    np.savez(folder / "prepared.npz", **prepared)
    prepare = lambdanet.preprocess_for("lambda_resnet50ts", input_size=32)
    with refused("the type of pictures must be uint8, got 'float32'"):
        prepare(np.zeros([9, 9, 3], "float32"))
    model = lambdanet.create_model("lambda_resnet_tiny", num_classes=4)
    weight_files.save(model, folder / "weights.safetensors")
    model = lambdanet.create_model(
        "lambda_resnet_tiny", num_classes=4, weights=folder / "weights.safetensors"
    )
    fast = lambdanet.for_inference(model)
    images = prepare(pictures["gray"])
    np.testing.assert_allclose(
        fast.predict(images, verbose=0), model.predict(images, verbose=0), atol=1e-5
    )
    assert lambdanet.list_models("lambda_resnet_tiny")
    assert lambdanet.model_info("lambda_resnet_tiny").params > 0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
