# SPDX-License-Identifier: Apache-2.0
"""Backbones, tasks and initial weights for the detectors of Model Garden."""
