# SPDX-License-Identifier: Apache-2.0
"""Trains a recipe in a folder; the same call again resumes an interrupted run."""

from lambdanet.training.run.loop import train as train
