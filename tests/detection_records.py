# SPDX-License-Identifier: Apache-2.0
"""Records of detectors for tests."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from lambdanet.detection.data.records import CORNERS
from lambdanet.training.data.records import bytes_feature


def encode_example(
    image: np.ndarray,
    boxes: np.ndarray,
    labels: Sequence[int] | np.ndarray,
    masks: np.ndarray | Sequence[np.ndarray],
    number: int,
    crowd: bool = False,
) -> tf.train.Example:
    """Returns a record as Model Garden's converter writes it.

    Args:
      image: uint8 [height, width, 3], or [height, width, 1] for a gray one.
      boxes: [n, 4], top, left, bottom and right as fractions of the sides.
      labels: the classes of the n objects, from 1.
      masks: uint8 [n, height, width, 1], zeros and ones.
      number: the id of the image.
      crowd: whether the objects are crowds.
    """

    def integers(*values: int) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    height, width, _ = image.shape
    features = {
        "image/encoded": bytes_feature(tf.io.encode_jpeg(image).numpy()),
        "image/height": integers(height),
        "image/width": integers(width),
        "image/source_id": bytes_feature(str(number).encode()),
        "image/object/class/label": integers(*labels),
        "image/object/is_crowd": integers(*[int(crowd)] * len(labels)),
        "image/object/mask": bytes_feature(
            *[tf.io.encode_png(mask).numpy() for mask in masks]
        ),
    }
    for name, values in zip(CORNERS, np.reshape(boxes, [-1, 4]).T, strict=True):
        features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Example(features=tf.train.Features(feature=features))
