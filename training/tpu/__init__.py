# SPDX-License-Identifier: Apache-2.0
"""What a step would cost on a TPU, asked of the TPU compiler on a machine that has none."""
