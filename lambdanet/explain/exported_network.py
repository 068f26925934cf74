# SPDX-License-Identifier: Apache-2.0
"""The network of an exported classifier, rebuilt from its SavedModel as a Keras model."""

import json
import os
from pathlib import Path

import tensorflow as tf

from lambdanet.backend import keras
from lambdanet.core.errors import InputError, invalid, one_line
from lambdanet.models import zoo  # noqa: F401, so that Keras finds all layers
from lambdanet.models.preprocessing import Preprocessing
from lambdanet.training.data import class_names
from lambdanet.training.data.task_outputs import CLASSIFICATION
from lambdanet.training.serving.exported_model import check_saved_model
from lambdanet.training.serving.saved_model import CLASS_NAMES, NETWORK
from lambdanet.training.serving.trained_weights import TrainedModel

KEY = "model_variables/{}/.ATTRIBUTES/VARIABLE_VALUE"


def load_exported_network(saved_model: str | Path) -> TrainedModel:
    """Returns the classifier in a SavedModel of `lambdanet export`, as a model of Keras.

    Raises:
      InputError: the folder holds no such SavedModel, is damaged, or was written without its network: by an
        earlier version, or of a subclassed model.
    """
    path = os.path.expanduser(saved_model)
    accepted = "a folder written by `lambdanet export`"
    check_saved_model(path, accepted)
    file = Path(path, NETWORK)
    if not file.exists():
        raise invalid(
            "saved_model",
            accepted,
            path,
            "no record of its network, as of masks, earlier versions and subclassed models; export it again",
        )
    try:
        network = json.loads(file.read_text(encoding="utf-8"))
        values = network["preprocessing"]
        for name in ("mean", "std"):
            values[name] = tuple(values[name])
        preprocessing = Preprocessing(**values)
        model = keras.models.model_from_json(network["model"])
        reader = tf.train.load_checkpoint(os.path.join(path, "variables", "variables"))
        keys = [KEY.format(number) for number in range(len(model.weights))]
        model.set_weights([reader.get_tensor(key) for key in keys])
        names = class_names.read_names(Path(path, "assets", CLASS_NAMES))
        record = network.get("record", CLASSIFICATION)
        # Of an earlier version.
        if thresholds := network.get("thresholds"):
            record = {"task": "multilabel", "thresholds": thresholds}
    except InputError:
        raise
    except Exception as error:  # a damaged file raises exceptions of many kinds
        reason = f"its network cannot be loaded ({one_line(error)})"
        raise invalid("saved_model", accepted, path, reason) from error
    return TrainedModel(model, preprocessing, names, record)
