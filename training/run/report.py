# SPDX-License-Identifier: Apache-2.0
"""Lines that a training run prints about itself before its first step."""

from pathlib import Path

from lambdanet.configs.recipe import Recipe
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.run.devices import Devices


def opening(
    dataset: Dataset, path: Path, devices: Devices, step: int, is_finished: bool
) -> list[str]:
    """Returns what a run begins with, is resumed from, or has finished already.

    Args:
      dataset: the data, with the recipe.
      path: the model_dir.
      devices: the devices of the run.
      step: the number of steps completed.
      is_finished: whether nothing is left to train or to evaluate.

    Returns:
      One line for a worker that is not the chief, and for a finished run.
    """
    if not devices.chief:
        return [f"worker {devices.worker} of {devices.workers}, from 0, at step {step}"]
    recipe = dataset.recipe
    steps = dataset.steps_per_epoch
    name = f"{recipe.model} on {recipe.dataset} in {path}"
    epoch, done = divmod(step, steps)
    if is_finished:
        return [f"finished already: {name}, {epoch} epochs, step {step}"]
    if step == 0:
        start = f"training {name}: {recipe.epochs} epochs of {steps} steps"
    else:
        within = f" and {done} of {steps} steps" if done else ""
        start = f"resuming {name} after epoch {epoch} of {recipe.epochs}{within}, step {step}"
    lines = [start, _batches(recipe, devices), _loss(recipe)]
    if recipe.class_weights:
        pairs = zip(dataset.class_names, dataset.class_weights, strict=True)
        shown = [f"{name} {weight:.3g}" for name, weight in pairs]
        lines.append(f"weights of the classes: {', '.join(shown)[:200]}")
    return lines


def _batches(recipe: Recipe, devices: Devices) -> str:
    batch = recipe.global_batch_size
    replicas = devices.replicas
    parts = [f"batches of {batch} images"]
    if replicas > 1:
        parts.append(f", {batch // replicas} on each of {replicas} devices")
    if devices.workers > 1:
        parts.append(f" of {devices.workers} machines")
    if recipe.num_pseudo_labels:
        parts.append(f", {recipe.num_pseudo_labels} of them with pseudo-labels")
    precision = "bfloat16" if recipe.mixed_precision else "float32"
    verb = "rises to" if recipe.warmup_epochs else "begins at"
    rate = f"the learning rate {verb} {recipe.learning_rate:g}"
    return f"{''.join(parts)}, in {precision}; {rate}"


def _loss(recipe: Recipe) -> str:
    smoothing = recipe.label_smoothing
    decay = recipe.weight_decay
    place = ", each step" if recipe.decays_in_steps else " and"
    return f"the loss has label smoothing of {smoothing:g}{place} weight decay of {decay:g}"


def compilation(size: int) -> str:
    """Returns what JAX may take minutes for: the step for square images of `size` pixels."""
    return (
        f"compiling the step for images of {size} pixels, which may take minutes once"
    )
