# SPDX-License-Identifier: Apache-2.0
"""Pseudo-labels: what a trained model says of pictures without labels, chosen as Noisy Student does."""
