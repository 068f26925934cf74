# SPDX-License-Identifier: Apache-2.0
"""Two logical devices of TensorFlow, for programs that train on two."""

import tensorflow as tf


def divide_cpu() -> None:
    """Divides the processor into two devices, before TensorFlow starts to use it."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )
