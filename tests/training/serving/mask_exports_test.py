# SPDX-License-Identifier: Apache-2.0
"""Pictures on which exports for masks are calibrated and compared: windows at the size of the pictures."""

import dataclasses

import keras
import numpy as np
import pytest
from PIL import Image

from lambdanet import configs

pytestmark = pytest.mark.skipif(
    keras.config.backend() == "jax", reason="exports need TensorFlow"
)


def test_pictures_of_masks_keep_their_size(tmp_path):
    """Stripes of a pixel, which a smaller picture would make gray."""
    from lambdanet.training.serving import comparison

    stripes = np.full([48, 80, 3], 10, np.uint8)
    stripes[:, ::2] = 181
    for split in ("train", "validation"):
        for folder, pixels in (("images", stripes), ("masks", stripes[..., 0] // 181)):
            (tmp_path / split / folder).mkdir(parents=True)
            for number in range(3):
                path = tmp_path / split / folder / f"{number}.png"
                Image.fromarray(pixels).save(path)
    (tmp_path / "classes.txt").write_text("dark\nlight\n")
    recipe = dataclasses.replace(
        configs.get_recipe("segment"), input_size=32, num_classes=2
    )
    found = comparison.evaluation_pictures(recipe, str(tmp_path)).images
    np.testing.assert_array_equal(found, [stripes[8:40, 24:56]] * 3)
