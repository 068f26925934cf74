# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401
"""All imports of TensorFlow Model Garden, made without tensorflow-text.

Model Garden's vision models import its language models, which import tensorflow-text if it is installed. Its
binary must match the TensorFlow version, which differs on a TPU VM, and detection does not use it. Unless it
is already imported, it is therefore hidden meanwhile; it can be imported afterwards.
"""

import contextlib
import os
import sys
from collections.abc import Iterator

from lambdanet.core import which_keras

which_keras.check_backend("lambdanet.detection", ("tensorflow",))
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # Model Garden reads it too


@contextlib.contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Makes the import of a package fail inside, unless it is already imported."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


with _hidden("tensorflow_text"):
    import official.vision
    import orbit
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
        semantic_segmentation,
    )
    from official.vision.dataloaders import classification_input, tf_example_decoder
    from official.vision.modeling.backbones import factory as backbone_factory
    from official.vision.ops import mask_ops, preprocess_ops
    from official.vision.serving import detection as detection_serving
    from official.vision.tasks import image_classification as image_classification_tasks
    from official.vision.tasks import maskrcnn as maskrcnn_tasks
    from official.vision.tasks import retinanet as retinanet_tasks
    from official.vision.tasks import semantic_segmentation as segmentation_tasks
    from official.vision.utils import summary_manager
