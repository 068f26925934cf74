# SPDX-License-Identifier: Apache-2.0
"""Configurations of detection experiments: our own, and overrides from files and flags."""
