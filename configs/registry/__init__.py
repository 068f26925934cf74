# SPDX-License-Identifier: Apache-2.0
"""Published weights and class names, as data."""
