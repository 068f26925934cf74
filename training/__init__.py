# SPDX-License-Identifier: Apache-2.0
"""Training with `keras.Model.fit` on TensorFlow or JAX, evaluation, export and prediction.

Each task is in the table of its name, so that the modules below the tasks find it, and import none.
"""

from lambdanet.configs.recipe_values import TASKS
from lambdanet.training.tasks import classification, multilabel, segmentation

TASKS["classification"] = classification.Classification
TASKS["multilabel"] = multilabel.Multilabel
TASKS["segmentation"] = segmentation.Segmentation
