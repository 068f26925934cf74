# SPDX-License-Identifier: Apache-2.0
"""Records what backbones and detectors compute, and their variables: python record_detectors.py FILE.npz

This program wrote `tests/detection/before_one_keras.npz` at the commit that its entry `commit` names, at
which backbones were models of tf_keras. `tests/detection/one_keras_test.py` runs it again and compares.
"""

import sys
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)

import tf_keras  # noqa: E402
from samples import samples, save  # noqa: E402

from lambdanet.detection.configs import resolve  # noqa: E402
from lambdanet.detection.model_garden import common, task_factory  # noqa: E402
from lambdanet.detection.modeling import backbones  # noqa: E402
from lambdanet.detection.run import train_step  # noqa: E402
from lambdanet.models.weights import weight_files  # noqa: E402

SIDE = 64
# Backbone -> whether its statistics are synchronized, and its precision.
BACKBONES = {
    "lambda_resnet_tiny": [
        (False, "float32"),
        (True, "float32"),
        (False, "mixed_bfloat16"),
        (True, "mixed_bfloat16"),
    ],
    "mobilenet_v2_lambda": [(False, "float32"), (True, "float32")],
    "eca_halonext26ts": [(False, "float32"), (True, "float32")],
}
DETECTORS = {
    "maskrcnn": "lambda_resnet/maskrcnn_resnetfpn_coco",
    "retinanet": "lambda_resnet/retinanet_resnetfpn_coco",
}
COMMON = {
    "runtime": {
        "distribution_strategy": "one_device",
        "mixed_precision_dtype": "float32",
        "enable_xla": False,
    },
    "task": {
        "init_checkpoint": None,
        "model": {
            "num_classes": 3,
            "input_size": [128, 128, 3],
            "backbone": {
                "type": "lambda_resnet",
                "lambda_resnet": {"model_id": "lambda_resnet_tiny"},
            },
            "decoder": {"fpn": {"num_filters": 16}},
        },
        "train_data": {
            "global_batch_size": 2,
            "dtype": "float32",
            "parser": {
                "aug_rand_hflip": False,
                "aug_scale_min": 1.0,
                "aug_scale_max": 1.0,
            },
        },
    },
}


def weights_of(backbone: Any) -> dict[str, tf.Variable]:
    """Returns the variables of a backbone by their names in files."""
    found = weight_files.weights_by_name(getattr(backbone, "network", backbone))
    return {
        name: v if isinstance(v, tf.Variable) else v.value for name, v in found.items()
    }


def weights_of_all(model: Any) -> dict[str, tf.Variable]:
    """Returns the variables of a detector, those above the backbone by their number and name."""
    inside = {f"backbone/{name}": v for name, v in weights_of(model.backbone).items()}
    known = {v.ref() for v in inside.values()}
    others = [v for v in model.variables if v.ref() not in known]
    return inside | {f"{number}/{v.name}": v for number, v in enumerate(others)}


def set_values(weights: dict[str, tf.Variable]) -> None:
    """Gives each variable values that depend on its name alone."""
    for name, variable in weights.items():
        random = np.random.default_rng(zlib.crc32(name.encode()))
        shape = tuple(variable.shape)
        if not variable.dtype.is_floating:
            continue
        if any(kind in name for kind in ("gamma", "variance")):
            values = random.uniform(0.5, 1.5, shape)
        elif any(kind in name for kind in ("beta", "mean", "bias")):
            values = random.normal(0, 0.1, shape)
        else:
            values = random.normal(0, np.prod(shape[:-1]) ** -0.5, shape)
        variable.assign(values.astype(variable.dtype.as_numpy_dtype))


def sampled(array: Any) -> np.ndarray:
    """Returns samples of a tensor of any precision."""
    return samples(tf.cast(tf.convert_to_tensor(array), tf.float32))


def table(variables: Iterable[tf.Variable]) -> np.ndarray:
    """Returns a row for each variable: name, shape, dtype, trainable, synchronization and aggregation."""
    return np.array(
        [
            f"{v.name} {tuple(v.shape)} {v.dtype.name} {v.trainable} "
            f"{v.synchronization.name} {v.aggregation.name}"
            for v in variables
        ]
    )


def build_backbone(model_id: str, synchronized: bool) -> Any:
    is_mobile = model_id.startswith("mobilenet")
    family = "mobilenet_v2_lambda" if is_mobile else "lambda_resnet"
    config = (backbones.MobileNetV2Lambda if is_mobile else backbones.LambdaResNet)(
        model_id=model_id
    )
    return backbones.backbone_factory.build_backbone(
        tf_keras.layers.InputSpec(shape=[None, SIDE, SIDE, 3]),
        backbones.Backbone(type=family, **{family: config}),
        common.NormActivation(
            norm_momentum=0.9, norm_epsilon=1e-3, use_sync_bn=synchronized
        ),
        l2_regularizer=tf_keras.regularizers.L2(1e-4),
    )


def record_backbone(
    model_id: str, synchronized: bool, precision: str
) -> dict[str, np.ndarray]:
    """Returns outputs, losses, gradients, and weights after a step with momentum."""
    tf_keras.mixed_precision.set_global_policy(precision)
    backbone = build_backbone(model_id, synchronized)
    tf_keras.mixed_precision.set_global_policy("float32")
    weights = weights_of(backbone)
    set_values(weights)
    images = np.random.default_rng(0).normal(size=[4, SIDE, SIDE, 3]).astype("float32")
    found = {
        f"inference/{level}": sampled(x)
        for level, x in backbone(images, training=False).items()
    }
    with tf.GradientTape() as tape:
        outputs = backbone(images, training=True)
        data_loss = tf.add_n(
            [tf.reduce_mean(tf.cast(x, tf.float32) ** 2) for x in outputs.values()]
        )
        loss = data_loss + tf.add_n(backbone.losses)
    found |= {f"training/{level}": sampled(x) for level, x in outputs.items()}
    found["losses"] = sampled(tf.sort(tf.stack(backbone.losses)))
    found["loss"] = sampled(loss)
    gradients = tape.gradient(loss, backbone.trainable_variables)
    names = {variable.ref(): name for name, variable in weights.items()}
    for variable, gradient in zip(backbone.trainable_variables, gradients, strict=True):
        found[f"gradient/{names[variable.ref()]}"] = sampled(gradient)
    optimizer = tf_keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.apply_gradients(zip(gradients, backbone.trainable_variables, strict=True))
    found |= {
        f"updated/{name}": sampled(variable) for name, variable in weights.items()
    }
    found["variables"] = table(backbone.variables)
    return found


def create_task(kind: str) -> Any:
    params = resolve.resolve(DETECTORS[kind])
    params.override(COMMON)
    return task_factory.get_task(params.task)


def record_detector(kind: str) -> dict[str, np.ndarray]:
    """Returns outputs of a detector and, where no regions are drawn by chance, its loss and new weights."""
    task = create_task(kind)
    model = task.build_model()
    weights = weights_of_all(model)
    set_values(weights)
    images, labels = train_step._synthetic_batch(task, 2)
    options = {
        "anchor_boxes": labels["anchor_boxes"],
        "image_shape": labels["image_info"][:, 1, :],
    }
    outputs = model(images, training=False, **options)
    found = {}
    for name in (
        ("rpn_boxes", "rpn_scores")
        if kind == "maskrcnn"
        else ("box_outputs", "cls_outputs")
    ):
        for number, array in enumerate(tf.nest.flatten(outputs[name])):
            found[f"inference/{name}/{number}"] = sampled(array)
    found["variables"] = table(model.variables)
    if kind == "retinanet":
        optimizer = tf_keras.optimizers.SGD(0.01, momentum=0.9)
        train_step.create_variables(optimizer, model)
        logs = task.train_step((images, labels), model=model, optimizer=optimizer)
        found["loss"] = sampled(logs[task.loss])
        found |= {
            f"updated/{name}": sampled(variable) for name, variable in weights.items()
        }
    return found


def record() -> dict[str, np.ndarray]:
    """Returns everything, and the tables of variables within a strategy of two devices."""
    found: dict[str, np.ndarray] = {}
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for model_id, cases in BACKBONES.items():
        for synchronized, precision in cases:
            key = (
                f"{model_id}/{'synchronized' if synchronized else 'local'}/{precision}"
            )
            found |= {
                f"{key}/{name}": x
                for name, x in record_backbone(
                    model_id, synchronized, precision
                ).items()
            }
        with strategy.scope():
            found[f"{model_id}/two_devices/variables"] = table(
                build_backbone(model_id, True).variables
            )
    for kind in DETECTORS:
        found |= {f"{kind}/{name}": x for name, x in record_detector(kind).items()}
        with strategy.scope():
            found[f"{kind}/two_devices/variables"] = table(
                create_task(kind).build_model().variables
            )
    return found


if __name__ == "__main__":
    save(sys.argv[1], record())
