# SPDX-License-Identifier: Apache-2.0
"""Keras layers: lambda layers, attention, and the other layers of the models."""
