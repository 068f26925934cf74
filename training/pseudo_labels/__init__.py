# SPDX-License-Identifier: Apache-2.0
"""Pseudo-labels of a trained model for unlabeled pictures, as in Noisy Student (Xie et al. 2020)."""
