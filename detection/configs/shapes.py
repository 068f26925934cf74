# SPDX-License-Identifier: Apache-2.0
"""The experiment `maskrcnn_lambda_resnet_shapes`: a small Mask R-CNN that trains on a CPU in minutes.

`python -m lambdanet.detection.shapes --out=DIR` writes its data and DIR/config.yaml with their paths, for
`--config_file`.
"""

from typing import Any

from lambdanet.detection.data.drawn_shapes import CLASSES
from lambdanet.detection.experiments import with_zoo_backbone
from lambdanet.detection.model_garden import ExperimentConfig, exp_factory, maskrcnn
from lambdanet.detection.modeling import tasks
from lambdanet.detection.modeling.backbones import Backbone, LambdaResNet

DATA = "shapes"


@exp_factory.register_config_factory("maskrcnn_lambda_resnet_shapes")
def maskrcnn_lambda_resnet_shapes() -> ExperimentConfig:
    """Mask R-CNN for images of 128x128 pixels with small heads, trained from scratch."""
    backbone = Backbone(lambda_resnet=LambdaResNet(model_id="lambda_resnet_tiny"))
    config = with_zoo_backbone("maskrcnn_resnetfpn_coco", backbone)
    config.runtime.distribution_strategy = "one_device"
    config.runtime.mixed_precision_dtype = "float32"
    config.runtime.enable_xla = False
    _shrink_heads(config.task.model)
    _set_paths(config.task)
    _set_schedule(config.trainer)
    return config


def _shrink_heads(model: maskrcnn.MaskRCNN) -> None:
    """Adapts Model Garden's Mask R-CNN to small images of few objects.

    Class-agnostic boxes and masks learn from every object.
    """
    model.num_classes = len(CLASSES) + 1
    model.input_size = [128, 128, 3]
    model.max_level = 5
    model.anchor.anchor_size = 3.0  # 12, 24, 48 and 96 pixels on levels 2 to 5
    model.norm_activation.norm_momentum = 0.97
    model.norm_activation.use_sync_bn = False
    model.decoder.fpn.num_filters = model.rpn_head.num_filters = (
        model.detection_head.num_filters
    ) = 48
    model.detection_head.num_convs = 1
    model.detection_head.fc_dims = 128
    model.detection_head.class_agnostic_bbox_pred = True
    model.mask_head.num_convs = 4
    model.mask_head.num_filters = 32
    model.mask_head.class_agnostic = True
    proposals = model.roi_generator
    proposals.pre_nms_top_k = proposals.test_pre_nms_top_k = 200
    proposals.num_proposals = proposals.test_num_proposals = 64
    model.roi_sampler.num_sampled_rois = 32
    model.roi_sampler.foreground_fraction = 0.5
    model.mask_sampler.num_sampled_masks = 16
    model.detection_generator.pre_nms_top_k = 200
    model.detection_generator.max_num_detections = 30
    model.detection_generator.pre_nms_score_threshold = 0.01


def _set_paths(task: tasks.MaskRCNNTask) -> None:
    task.annotation_file = f"{DATA}/annotations/instances_val.json"
    for data, split in ((task.train_data, "train"), (task.validation_data, "val")):
        data.input_path = f"{DATA}/tfrecords/{split}-*"
        data.global_batch_size = 8
        data.dtype = "float32"
        data.shuffle_buffer_size = 200
        data.parser.max_num_instances = 16
        data.parser.mask_crop_size = 56
        data.parser.rpn_batch_size_per_im = 64
    task.train_data.parser.aug_rand_vflip = True
    task.validation_data.drop_remainder = False


def _set_schedule(trainer: Any) -> None:
    steps = 1800
    trainer.train_steps = trainer.validation_interval = steps
    trainer.steps_per_loop = trainer.summary_interval = 100
    trainer.checkpoint_interval = 500
    trainer.validation_steps = -1  # all
    optimizer = trainer.optimizer_config
    optimizer.optimizer.type = "adam"
    optimizer.learning_rate.type = "cosine"
    optimizer.learning_rate.cosine.initial_learning_rate = 0.002
    optimizer.learning_rate.cosine.decay_steps = steps
    optimizer.warmup.linear.warmup_steps = 100
    optimizer.warmup.linear.warmup_learning_rate = 0.0
