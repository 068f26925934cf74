# SPDX-License-Identifier: Apache-2.0
"""The error of a classifier's probabilities, and the temperature that lowers it (Guo et al. 2017).

The confidence of a prediction is the probability of its class. A model is calibrated if, for example, 80 % of
the images with a confidence of 0.8 are classified correctly.
"""

import numpy as np

from lambdanet.core.errors import InputError

NUM_BINS = 15  # of confidences, all of the same width, as in the paper


def expected_calibration_error(
    confidences: np.ndarray, is_correct: np.ndarray
) -> float:
    """Returns the expected calibration error, in 0..1 (Guo et al. 2017, equation 3).

      sum over bins of (images in the bin / images) |accuracy in the bin - mean confidence in the bin|

    Bin i of 0 to 14 has the confidences above i / 15, up to (i + 1) / 15.

    Args:
      confidences: the probability of the predicted class of each image, [n].
      is_correct: whether that is the class of the image, [n].

    Example:
      >>> expected_calibration_error(np.array([0.9, 0.9]), np.array([True, False]))
      0.4
    """
    bins = np.ceil(confidences * NUM_BINS).astype(int)
    gaps = np.bincount(bins, confidences - is_correct)
    return float(np.abs(gaps).sum() / len(confidences))


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the temperature T for which softmax(logits / T) has the smallest negative log likelihood.

    That is a convex function of 1 / T. Its slope is the sum over the images of the expected logit less the
    logit of the label.

    Args:
      logits: float64 [n, num_classes].
      labels: the class of each image, integers [n].

    Raises:
      InputError: there is no such temperature, as where all images are classified correctly.
    """
    # Here: SciPy takes a while to import.
    from scipy.optimize import brentq
    from scipy.special import softmax

    chosen = logits[np.arange(len(labels)), labels].sum()

    def slope(scale: float) -> float:
        return np.sum(softmax(scale * logits, axis=-1) * logits) - chosen

    # A temperature beyond 1/50 and 50 is no answer.
    low = 0.02
    high = 50.0
    if not slope(low) < 0 < slope(high):
        raise InputError(
            f"no temperature fits {len(labels)} images of which the model classifies all correctly, "
            "or none better than by chance; calibrate on more images"
        )
    return 1 / brentq(slope, low, high)
