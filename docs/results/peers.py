# SPDX-License-Identifier: Apache-2.0
"""Compares lambdanet with other libraries by trying them, for the table of the README.

    pip install lambda-networks keras-cv-attention-models timm torch
    python docs/results/peers.py

Cells about speed and memory are those of layers.csv, which `python -m benchmarks.layers --peers` writes.
"""

import csv
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
NONE = "–"
MAP, DEPTH, HEADS, KEY_DIM, SCOPE = (6, 5), 8, 2, 3, 5  # of the layers that are tried
TOLERANCE = 1e-5
CASE = {"height": "64", "width": "64", "channels": "256", "scope": "23", "pass": "both"}

# What lambdanet has, with the test or the command that shows it.
OWN = {
    "equals the paper's equations": "[yes](tests/ops/reference_test.py)",
    "masks, causal, other contexts": "[yes](tests/layers/lambda_layer_test.py)",
    "sequences and volumes": "[yes](tests/layers/conformance_test.py)",
    "models with lambda layers": "[{models}](models/names.py), the paper's among them",
    "pretrained, with lambda layers": "[{pretrained}](configs/registry/pretrained_weights.py), timm's",
    "training step of one layer, 64x64, CPU": "[{time}](docs/results/layers.csv)",
    "peak memory of that step": "[{memory}](docs/results/layers.csv)",
    "TPU": "[compiles, not run](tests/tpu/tpu_check_test.py)",
    "detection": "[Mask R-CNN, RetinaNet](tests/detection/experiments_test.py)",
    "export": "[SavedModel, LiteRT, ONNX](tests/training/serving/export_runtimes_test.py)",
}
PACKAGES = {
    "lambdanet": "lambdanet",
    "lucidrains": "lambda-networks",
    "timm": "timm",
    "kecam": "keras-cv-attention-models",
}


def main() -> None:
    """Writes peers.csv."""
    columns = (_own(), _lucidrains(), _timm(), _kecam())
    versions = [
        f"{name} {importlib.metadata.version(package)}"
        for name, package in PACKAGES.items()
    ]
    with (FOLDER / "peers.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["", *versions])
        for feature in OWN:
            missing = "not tried" if feature == "TPU" else NONE
            writer.writerow(
                [feature, *(cells.get(feature, missing) for cells in columns)]
            )


def measured(contender: str) -> dict[str, str]:
    """Returns the time and memory of a contender of the benchmark of layers."""
    case = {**CASE, "contender": contender}
    with (FOLDER / "layers.csv").open(encoding="utf-8", newline="") as file:
        row = next(row for row in csv.DictReader(file) if case.items() <= row.items())
    return {
        "time": f"{float(row['ms_median']):.0f} ms",
        "memory": f"{float(row['peak_mib']):.0f} MiB",
    }


def _own() -> dict[str, str]:
    from lambdanet.configs.registry import pretrained_weights
    from lambdanet.models.names import list_models

    values = {
        "models": str(
            sum(bool(re.search("lam|_[cl]*l[cl]*$", name)) for name in list_models())
        ),
        "pretrained": str(
            sum(
                weights.model.startswith("lam")
                for weights in pretrained_weights.WEIGHTS
            )
        ),
        **measured("layer/auto"),
    }
    return {feature: cell.format_map(values) for feature, cell in OWN.items()}


def _lucidrains() -> dict[str, str]:
    import lambda_networks

    layer = lambda_networks.LambdaLayer(DEPTH, dim_k=KEY_DIM, heads=HEADS, r=SCOPE)
    projections = (layer.to_q, layer.norm_q), (layer.to_k,), (layer.to_v, layer.norm_v)

    def project(x):
        return [_chain(modules, x) for modules in projections]

    kernel = layer.pos_conv.weight.detach()[:, 0, 0]  # [k, r, r]
    return {
        **_try_layer(layer, project, kernel, layer.pos_conv.bias),
        **_speed("peer/lucidrains"),
        "models with lambda layers": _modules(lambda_networks, "resnet"),
        "detection": _modules(lambda_networks, "detect"),
        "export": _modules(lambda_networks, "onnx"),
    }


def _timm() -> dict[str, str]:
    from lambdanet.models.weights.tensor_files import import_timm

    timm = import_timm()
    layer = timm.layers.lambda_layer.LambdaLayer(
        DEPTH, feat_size=MAP, num_heads=HEADS, dim_head=KEY_DIM, r=SCOPE
    )
    q, v = HEADS * KEY_DIM, DEPTH // HEADS

    def project(x):
        queries, keys, values = layer.qkv(x).split([q, KEY_DIM, v], dim=1)
        return layer.norm_q(queries), keys, layer.norm_v(values)

    kernel = layer.conv_lambda.weight.detach()[:, 0, :, :, 0]  # [k, r, r]
    backbone = timm.create_model("test_resnet", features_only=True)
    return {
        **_try_layer(layer, project, kernel, layer.conv_lambda.bias),
        **_speed("peer/timm"),
        "models with lambda layers": str(len(timm.list_models("lam*"))),
        "pretrained, with lambda layers": str(len(timm.list_pretrained("lam*"))),
        "detection": f"backbones of {len(backbone.feature_info)} levels",
        "export": "ONNX" if importlib.util.find_spec("timm.utils.onnx") else NONE,
    }


def _kecam() -> dict[str, str]:
    """kecam has halo attention, its own detectors and export, and no lambda layer."""
    import keras_cv_attention_models as kecam

    has_lambda_layer = any(
        "lambda" in name.lower() for name in dir(kecam.attention_layers)
    )
    detectors = [
        name
        for name in ("efficientdet", "yolor", "yolov7", "yolox")
        if hasattr(kecam, name)
    ]
    formats = {"prepare_for_tflite": "LiteRT", "export_onnx": "ONNX"}
    return {
        "equals the paper's equations": "not tried"
        if has_lambda_layer
        else "no lambda layer",
        "detection": f"{len(detectors)} families of its own",
        "export": ", ".join(
            text for name, text in formats.items() if hasattr(kecam.model_surgery, name)
        ),
    }


def _chain(modules: tuple[Any, ...], x: Any) -> Any:
    for module in modules:
        x = module(x)
    return x


def _try_layer(
    layer: Any, project: Callable[[Any], Any], kernel: Any, bias: Any
) -> dict[str, str]:
    """Tries a layer of PyTorch.

    Args:
      layer: the layer.
      project: returns the queries, keys and values that it computes of its input.
      kernel: its table of relative positions, [k, r, r].
      bias: what it adds to the position lambdas, [k].
    """
    import torch

    layer.eval()
    with torch.no_grad():
        bias.normal_()
        x = torch.randn([2, DEPTH, *MAP])
        with_bias = _error(layer(x), project(x), kernel)
        bias.zero_()
        without_bias = _error(layer(x), project(x), kernel)
    equal = (
        "yes"
        if with_bias < TOLERANCE
        else "except for a bias"
        if without_bias < TOLERANCE
        else "no"
    )
    return {
        "equals the paper's equations": equal,
        "masks, causal, other contexts": _yes(
            len(inspect.signature(layer.forward).parameters) > 1
        ),
        "sequences and volumes": _yes(_runs(layer, [7]) or _runs(layer, [4, 3, 5])),
    }


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _error(outputs: Any, projected: Any, kernel: Any) -> float:
    """Returns the largest difference between a layer's outputs and the paper's four einsums."""
    import tensorflow as tf

    from lambdanet.ops import reference

    # [b, channels, n]
    queries, keys, values = (x.flatten(2).numpy() for x in projected)
    embeddings = reference.gather_embeddings(
        tf.constant(kernel.permute(1, 2, 0)[..., None].numpy()), MAP, MAP
    )
    expected = reference.apply_lambdas(
        tf.reshape(tf.transpose(queries, [0, 2, 1]), [2, -1, HEADS, KEY_DIM]),
        tf.transpose(keys, [0, 2, 1])[..., tf.newaxis],
        tf.transpose(values, [0, 2, 1])[..., tf.newaxis],
        embeddings,
    )
    expected = tf.transpose(tf.reshape(expected, [2, -1, DEPTH]), [0, 2, 1])
    return float(abs(outputs.flatten(2).numpy() - expected.numpy()).max())


def _runs(layer: Any, size: list[int]) -> bool:
    """Whether a layer takes an input with these spatial axes."""
    import torch

    try:
        with torch.no_grad():
            layer(torch.randn([2, DEPTH, *size]))
    except (RuntimeError, ValueError):
        return False
    return True


def _speed(contender: str) -> dict[str, str]:
    values = measured(contender)
    return {
        "training step of one layer, 64x64, CPU": values["time"],
        "peak memory of that step": values["memory"],
    }


def _modules(package: Any, part: str) -> str:
    """Returns the modules of a package whose names contain a part."""
    return (
        ", ".join(
            info.name
            for info in pkgutil.iter_modules(package.__path__)
            if part in info.name
        )
        or NONE
    )


if __name__ == "__main__":
    main()
