# SPDX-License-Identifier: Apache-2.0
"""The tasks of recipes, subclasses of `training.data.task.Task`."""
