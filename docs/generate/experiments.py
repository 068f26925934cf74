# SPDX-License-Identifier: Apache-2.0
"""The detection and classification experiments that have a backbone of the zoo."""

from generate.pages import table
from lambdanet.detection import experiments
from lambdanet.detection.configs import shapes  # noqa: F401  registers its experiment

OWN = (
    "lambda_resnet/",
    "mobilenet_v2_lambda/",
    "maskrcnn_lambda_resnet_",
    "maskrcnn_halo_resnet_",
)


def rows() -> str:
    """Returns the table of experiments."""
    names = [name for name in experiments.list_experiments() if name.startswith(OWN)]
    header = ["experiment", "model", "backbone", "image", "batch", "steps"]
    return table(header, [_row(name, experiments.get(name)) for name in names])


def _row(name: str, config) -> list[str]:
    model = config.task.model
    options = model.backbone.get()
    return [
        f"`{name}`",
        type(model).__name__,
        f"`{getattr(options, 'model_id', model.backbone.type)}`",
        "x".join(str(side) for side in model.input_size[:2]),
        str(config.task.train_data.global_batch_size),
        f"{config.trainer.train_steps:,}",
    ]
