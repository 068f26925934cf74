# SPDX-License-Identifier: Apache-2.0
"""Quickly traced graphs, for tests of a few steps."""

import tensorflow as tf
from tensorflow.python.autograph.core import config

RULES = config.CONVERSION_RULES
# None of their functions branches on the value of a tensor.
WITHOUT_BRANCHES = tuple(
    config.DoNotConvert(package) for package in ("lambdanet", "official")
)


def trace_quickly(enabled: bool = True) -> None:
    """Leaves graphs as traced and functions as written, or no longer.

    TensorFlow's optimizer and AutoGraph take longer than a few steps.
    """
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": enabled})
    config.CONVERSION_RULES = (*WITHOUT_BRANCHES, *RULES) if enabled else RULES
