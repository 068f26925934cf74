# SPDX-License-Identifier: Apache-2.0
"""Estimates of what a step costs on a TPU, by the TPU compiler on a machine without one."""
