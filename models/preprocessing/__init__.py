# SPDX-License-Identifier: Apache-2.0
"""The steps from pixels to the input of a model."""
