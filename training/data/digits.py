# SPDX-License-Identifier: Apache-2.0
"""A TFDS builder for the digits of scikit-learn: 1797 scans of 8x8 pixels, without a download.

Importing this module registers the dataset for `tfds.load("digits")`.
"""

from collections.abc import Iterator

import numpy as np
import tensorflow_datasets as tfds

# One in five images of each class, in the order of the source, is in the test split.
TEST_STRIDE = 5


class Digits(tfds.core.GeneratorBasedBuilder):
    """Handwritten digits, 8x8 gray pixels, with the splits "train" (1442 images) and "test" (355)."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First version."}

    def _info(self) -> tfds.core.DatasetInfo:
        return self.dataset_info_from_configs(
            description="Scanned handwritten digits, 8x8 pixels in 17 gray levels, from scikit-learn.",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(8, 8, 1), encoding_format="png"),
                    "label": tfds.features.ClassLabel(names=[str(digit) for digit in range(10)]),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
            disable_shuffling=False,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterator]:
        del dl_manager  # nothing to download
        return {"train": self._generate_examples(test=False), "test": self._generate_examples(test=True)}

    def _generate_examples(self, test: bool) -> Iterator[tuple[str, dict[str, object]]]:
        from sklearn import datasets  # needed to prepare the data, not to read it

        images, labels = datasets.load_digits(return_X_y=True)
        images = np.round(images * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
        seen = [0] * 10  # images of each class so far
        for index, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
            seen[label] += 1
            if (seen[label] % TEST_STRIDE == 0) == test:
                yield f"{index:04d}", {"image": image, "label": label}
