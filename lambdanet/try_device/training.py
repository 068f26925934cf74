# SPDX-License-Identifier: Apache-2.0
"""Trains twenty steps of recipes and of a detector, and compares times of steps with estimates for a TPU."""

import importlib.util
import itertools
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from lambdanet import backend as K
from lambdanet import configs
from lambdanet.backend import keras
from lambdanet.configs.recipe import override
from lambdanet.tpu import chips, costs
from lambdanet.training.train import train
from lambdanet.try_device import not_installed

STEPS = 20
EXPERIMENT = "maskrcnn_lambda_resnet_shapes"
# JAX's `device_kind` -> the key of `chips.CHIPS`.
CHIPS = {f"TPU {name}": name for name in chips.CHIPS} | {
    "TPU v5 lite": "v5e",
    "TPU v5": "v5p",
    "TPU v6 lite": "v6e",
    "TPU7x": "tpu7x",
}


class Steps(keras.callbacks.Callback):
    """Keeps the time at which each step of an epoch is complete, and the mean loss until then."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []
        self.losses: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.times.append(time.perf_counter())

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self.losses.append(float((logs or {})["loss"]))  # a number: it is complete
        self.times.append(time.perf_counter())


def train_digits(folder: Path) -> list[dict[str, Any]]:
    """Returns a row for the recipe `digits`."""
    return _train("digits", folder)


def train_lambda_resnet(folder: Path) -> list[dict[str, Any]]:
    """Returns a row for `lambda_resnet_50` in mixed precision, on enlarged digits."""
    size = 224 if accelerator() else 48
    settings = (
        "model=lambda_resnet_50",
        f"input_size={size}",
        "mixed_precision=true",
    )
    return _train("lambda_resnet_50", folder, settings)


def accelerator() -> str:
    """Returns "TPU" or "GPU" if this process has one, and else an empty text; initializes none of them."""
    if K.ENGINE == "jax":
        return next(iter(K.accelerators()), "")
    kinds = [device.device_type for device in tf.config.list_physical_devices()]
    return next((kind for kind in ("TPU", "GPU") if kind in kinds), "")


def _train(
    name: str, folder: Path, settings: Sequence[str] = ()
) -> list[dict[str, Any]]:
    batch = 64 if accelerator() else 4
    recipe = override(
        configs.get_recipe("digits"),
        [
            *settings,
            f"global_batch_size={batch}",
            f"train_split=train[:{STEPS * batch}]",
            f"eval_split=test[:{batch}]",
            "epochs=1",
            "warmup_epochs=0",
            "learning_rate=0.01",
        ],
    )
    steps = Steps()
    is_tpu = accelerator() == "TPU"
    train(
        recipe,
        folder / "run",
        str(folder),
        callback=[lambda *_: steps],
        tpu="local" if is_tpu else None,
    )
    row = _row(f"{name}, {K.ENGINE}", steps.times, steps.losses)
    if K.ENGINE == "jax":
        row["figures"] |= _program(steps.model, batch)
    return [row]


def _row(case: str, times: Sequence[float], losses: Sequence[float]) -> dict[str, Any]:
    """Returns the row of some steps.

    Args:
      case: what was trained.
      times: the times of the start and of the end of each step, in seconds.
      losses: the loss after each step.
    """
    figures = {
        "steps": len(losses),
        "first step": f"{times[1] - times[0]:.1f} s",
        "loss": f"{losses[0]:.3g} to {losses[-1]:.3g}",
    }
    passed = len(losses) == STEPS and all(map(math.isfinite, losses))
    ms = 1e3 * _step_seconds(times)
    return {"case": case, "passed": passed, "ms": ms, "figures": figures}


def _program(model: Any, global_batch_size: int) -> dict[str, str]:
    """Returns the times of a trained model's step on one device of JAX: to compile, to run, and estimated."""
    import jax

    first = jax.devices()[0]
    batch = global_batch_size // len(jax.devices())
    images = np.zeros((batch, *model.input_shape[1:]), model.compute_dtype)
    parts = ("trainable", "non_trainable", "optimizer", "metrics")
    state = model._get_jax_state(**{f"{part}_variables": True for part in parts})
    # By way of NumPy, as they may be on several devices.
    state = jax.tree.map(np.asarray, state)
    state, data = jax.device_put((state, (images, np.zeros(batch, "int32"))), first)
    step = jax.jit(model.train_step, donate_argnums=0).lower(state, data).compile()
    times = [time.perf_counter()]
    for _ in range(STEPS):
        _, state = jax.block_until_ready(step(state, data))
        times.append(time.perf_counter())
    estimate = estimate_seconds(str(step.as_text()), first.device_kind)
    return {
        "program on one device": f"{1e3 * _step_seconds(times):.2f} ms",
        "estimate": "-" if estimate is None else f"{1e3 * estimate:.2f} ms",
    }


def _step_seconds(times: Sequence[float]) -> float:
    """Returns the median time between two ends of steps, without the first step."""
    return statistics.median(b - a for a, b in itertools.pairwise(times[1:]))


def estimate_seconds(text: str, device_kind: str) -> float | None:
    """Returns the time of a compiled program by the TPU compiler's cycles, as `lambdanet tpu-check` does.

    Args:
      text: the program, as JAX prints it.
      device_kind: the kind of the device, as JAX names it.

    Returns:
      Seconds; None for a device of another kind, and for a text without cycles.
    """
    if device_kind not in CHIPS:
        return None
    try:
        operations = costs.profile(text).operations
    except Exception:  # of any kind: the text is not a public format
        return None
    cycles = sum(cost.cycles for cost in operations)
    return cycles / chips.CHIPS[CHIPS[device_kind]].clock if cycles else None


def train_detector(folder: Path) -> list[dict[str, Any]]:
    """Returns a row for a small Mask R-CNN on synthetic pictures, under TensorFlow's strategy."""
    if importlib.util.find_spec("official") is None:
        return [not_installed(EXPERIMENT, "lambdanet[detection]")]
    from lambdanet.detection.model_garden import distribute_utils
    from lambdanet.detection.run.train_step import build_train_step

    kind = accelerator()
    strategies = {"TPU": "tpu", "GPU": "mirrored", "": "one_device"}
    gpus = tf.config.list_physical_devices("GPU")
    strategy = distribute_utils.get_distribution_strategy(
        strategies[kind], num_gpus=len(gpus), tpu_address="local"
    )
    with strategy.scope():
        step = build_train_step(EXPERIMENT, batch_size=8 if kind else 2)
        times = [time.perf_counter()]
        losses = []
        for _ in range(STEPS):
            loss = strategy.run(step.function, args=step.inputs)
            losses.append(float(strategy.reduce("sum", loss, axis=None)))
            times.append(time.perf_counter())
    return [_row(EXPERIMENT, times, losses)]
