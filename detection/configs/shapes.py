# SPDX-License-Identifier: Apache-2.0
"""The experiment `maskrcnn_lambda_resnet_shapes`: a small Mask R-CNN that trains on a CPU in minutes.

`python -m lambdanet.detection.shapes --out=DIR` writes its data and DIR/config.yaml with their paths, for
`--config_file`. Its settings are in `shapes.yaml`, in the format of such files.
"""

from pathlib import Path

from lambdanet.detection.experiments import with_zoo_backbone
from lambdanet.detection.model_garden import ExperimentConfig, exp_factory, hyperparams
from lambdanet.detection.modeling.backbones import Backbone, LambdaResNet


@exp_factory.register_config_factory("maskrcnn_lambda_resnet_shapes")
def maskrcnn_lambda_resnet_shapes() -> ExperimentConfig:
    """Mask R-CNN for images of 128x128 pixels with small heads, trained from scratch."""
    backbone = Backbone(lambda_resnet=LambdaResNet(model_id="lambda_resnet_tiny"))
    config = with_zoo_backbone("maskrcnn_resnetfpn_coco", backbone)
    settings = str(Path(__file__).with_suffix(".yaml"))
    config.override(hyperparams.read_yaml_to_params_dict(settings).as_dict())
    return config
