# SPDX-License-Identifier: Apache-2.0
"""The experiment `maskrcnn_lambda_resnet_shapes`: a small Mask R-CNN that a CPU trains on shapes in minutes.

`--config_file=DIR/config.yaml` tells it where its data are; `python -m lambdanet.detection.shapes --out=DIR`
writes both.
"""

from typing import Any

from lambdanet.detection.data.scenes import CLASSES
from lambdanet.detection.experiments import twin
from lambdanet.detection.model_garden import ExperimentConfig, exp_factory, maskrcnn
from lambdanet.detection.modeling import tasks
from lambdanet.detection.modeling.backbones import Backbone, LambdaResNet

DATA = "shapes"


@exp_factory.register_config_factory("maskrcnn_lambda_resnet_shapes")
def maskrcnn_lambda_resnet_shapes() -> ExperimentConfig:
    """Mask R-CNN for pictures of 128x128 pixels, with slim heads, from scratch."""
    backbone = Backbone(lambda_resnet=LambdaResNet(model_id="lambda_resnet_tiny"))
    config = twin("maskrcnn_resnetfpn_coco", backbone)
    config.runtime.distribution_strategy = "one_device"
    config.runtime.mixed_precision_dtype = "float32"
    config.runtime.enable_xla = False
    _slim(config.task.model)
    _data(config.task)
    _train(config.trainer)
    return config


def _slim(model: maskrcnn.MaskRCNN) -> None:
    """Cuts Model Garden's Mask R-CNN down to small pictures of a few objects.

    One box and one mask for all classes, instead of one for each, learn from every object.
    """
    model.num_classes = len(CLASSES) + 1
    model.input_size = [128, 128, 3]
    model.max_level = 5
    model.anchor.anchor_size = 3.0  # of 12, 24, 48 and 96 pixels, on the levels 2 to 5
    model.norm_activation.norm_momentum = 0.97
    model.norm_activation.use_sync_bn = False
    model.decoder.fpn.num_filters = model.rpn_head.num_filters = model.detection_head.num_filters = 48
    model.detection_head.num_convs, model.detection_head.fc_dims = 1, 128
    model.detection_head.class_agnostic_bbox_pred = True
    model.mask_head.num_convs, model.mask_head.num_filters = 4, 32
    model.mask_head.class_agnostic = True
    proposals = model.roi_generator
    proposals.pre_nms_top_k = proposals.test_pre_nms_top_k = 200
    proposals.num_proposals = proposals.test_num_proposals = 64
    model.roi_sampler.num_sampled_rois, model.roi_sampler.foreground_fraction = 32, 0.5
    model.mask_sampler.num_sampled_masks = 16
    model.detection_generator.pre_nms_top_k = 200
    model.detection_generator.max_num_detections = 30
    model.detection_generator.pre_nms_score_threshold = 0.01


def _data(task: tasks.MaskRCNNTask) -> None:
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


def _train(trainer: Any) -> None:
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
