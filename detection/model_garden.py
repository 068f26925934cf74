# SPDX-License-Identifier: Apache-2.0
"""The one door to TensorFlow Model Garden: what `detection` uses of it, imported without tensorflow-text.

Model Garden's vision imports its language models, and they import tensorflow-text where it is installed. Its
binary has to fit the TensorFlow beside it, which on a TPU VM is another one, and detection has no use for it.
Where it has not been imported before, Model Garden is therefore loaded as if it were not there; it can still
be imported afterwards.
"""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Lets an import of a package fail, unless it is there already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


with _hidden("tensorflow_text"):
    import official.vision  # noqa: F401
    from official.common import dataset_fn, distribute_utils
    from official.core import (
        exp_factory,
        input_reader,
        task_factory,
        train_lib,
        train_utils,
    )
    from official.core.config_definitions import ExperimentConfig
    from official.modeling import hyperparams, optimization, performance
    from official.vision.configs import backbones as backbone_configs
    from official.vision.configs import (
        common,
        decoders,
        image_classification,
        maskrcnn,
        retinanet,
    )
    from official.vision.dataloaders import classification_input, tf_example_decoder
    from official.vision.modeling.backbones import factory as backbone_factory
    from official.vision.tasks import image_classification as image_classification_tasks
    from official.vision.tasks import maskrcnn as maskrcnn_tasks
    from official.vision.tasks import retinanet as retinanet_tasks
    from official.vision.utils import summary_manager

__all__ = [
    "ExperimentConfig",
    "backbone_configs",
    "backbone_factory",
    "classification_input",
    "common",
    "dataset_fn",
    "decoders",
    "distribute_utils",
    "exp_factory",
    "hyperparams",
    "image_classification",
    "image_classification_tasks",
    "input_reader",
    "maskrcnn",
    "maskrcnn_tasks",
    "optimization",
    "performance",
    "retinanet",
    "retinanet_tasks",
    "summary_manager",
    "task_factory",
    "tf_example_decoder",
    "train_lib",
    "train_utils",
]
