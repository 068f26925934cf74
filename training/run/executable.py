# SPDX-License-Identifier: Apache-2.0
"""Files with the compiled training step of a recipe: compiled on one machine, run on another.

A file is a zip archive of `executable.json`, the facts that a run compares with its own, and of
`executable.bin`, the program as `jax.experimental.serialize_executable` writes it. The learning rate schedule
is part of the program, and so are all other constants: a run also compares a hash of its own step.

An executable is a program, and so is its file, in which JAX reads pickles: load those that you trust.
"""

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import lambdanet
from lambdanet.backend import keras
from lambdanet.configs.recipe import Recipe, to_json
from lambdanet.errors import InputError, invalid, one_line, unreadable
from lambdanet.files import write_output

FACTS = "executable.json"
PROGRAM = "executable.bin"
_DAMAGED = (EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile, zlib.error)


def save_executable(
    path: str | Path,
    recipe: Recipe,
    steps_per_epoch: int,
    lowered: Any,
    compiled: Any,
    devices: Sequence[Any],
) -> None:
    """Writes the compiled step of a recipe for `load_executable`.

    Args:
      path: the file.
      recipe: the recipe of the step, with its number of classes.
      steps_per_epoch: the number of steps per epoch for which the optimizer was built.
      lowered: the step of all devices, a `jax.stages.Lowered` of the state and of the batch, with the state
        donated and on each device, and the batch divided.
      compiled: what its `compile` returned.
      devices: the devices for which it is compiled, real ones or those of a topology.

    Raises:
      InputError: the file cannot be written.

    Example:
      >>> lowered = lower_step(model, batch, devices)
      >>> compiled = lowered.compile()
      >>> save_executable("step.zip", recipe, 1000, lowered, compiled, devices)
    """
    from jax.experimental import serialize_executable

    program, _, _ = serialize_executable.serialize(compiled)
    (_, batch), _ = lowered.args_info
    facts = {
        **_facts(steps_per_epoch, batch, devices),
        "hash": _hash(lowered),
        "recipe": json.loads(to_json(recipe)),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(FACTS, json.dumps(facts, indent=2))
        archive.writestr(PROGRAM, program)
    write_output(path, buffer.getvalue(), "executable")


def load_executable(
    path: str | Path,
    recipe: Recipe,
    steps_per_epoch: int,
    model: keras.Model,
    batch: Sequence[Any],
    devices: Sequence[Any],
) -> Any:
    """Reads the compiled step of a run, which must be equal to what the run would compile.

    Args:
      path: a file of `save_executable`.
      recipe: the recipe of the run, with its number of classes.
      steps_per_epoch: the number of steps per epoch.
      model: the model, compiled by `compile_model`; its optimizer has its variables.
      batch: the images and labels of all devices, with a `shape` and a `dtype` as in JAX.
      devices: the devices of the run.

    Returns:
      A `jax.stages.Compiled`: state, batch -> logs, new state; the state is donated.

    Raises:
      InputError: the file cannot be read, or is for another device, version, batch, schedule or recipe.
    """
    from jax.experimental import serialize_executable

    saved, program = _read(path)
    for name, own in _facts(steps_per_epoch, batch, devices).items():
        if saved.get(name) != own:
            what = f"{name} of executable {str(path)!r}"
            raise invalid(what, f"{own}, as in this run", saved.get(name))
    lowered = lower_step(model, batch, devices)
    if saved["hash"] != _hash(lowered):
        raise InputError(
            f"executable {str(path)!r} is another training step: "
            f"{_difference(saved['recipe'], json.loads(to_json(recipe)))}"
        )
    try:
        return serialize_executable.deserialize_and_load(
            program, lowered.in_tree, lowered.out_tree, execution_devices=devices
        )
    except Exception as error:  # of any kind: JAX reads pickles in it
        raise InputError(
            f"executable {str(path)!r} cannot be loaded: {one_line(error)}"
        ) from error


def lower_step(model: keras.Model, batch: Sequence[Any], devices: Sequence[Any]) -> Any:
    """Traces the training step of a compiled model, as `fit` does, with the batch divided between devices.

    Args:
      model, batch, devices: as in `load_executable`; the distribution of Keras is that of the devices.

    Returns:
      A `jax.stages.Lowered`.
    """
    import jax
    import numpy as np

    mesh = jax.sharding.Mesh(np.array(devices), ("batch",))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    divided = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    state = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    step = jax.jit(
        model.train_step,
        donate_argnums=0,
        in_shardings=(whole, divided),
        out_shardings=(None, whole),
    )
    return step.lower(*jax.tree.map(struct, (state, tuple(batch))))


def struct(array: Any) -> Any:
    """Returns the shape and type with which JAX traces an array or a variable of any library."""
    import jax

    dtype = jax.dtypes.canonicalize_dtype(keras.backend.standardize_dtype(array.dtype))
    return jax.ShapeDtypeStruct(tuple(array.shape), dtype)


def _facts(
    steps_per_epoch: int, batch: Sequence[Any], devices: Sequence[Any]
) -> dict[str, Any]:
    """Returns what a file and a run must have in common, besides the program."""
    arrays = map(struct, batch)
    facts = {
        "device_kind": devices[0].device_kind,
        "num_devices": len(devices),
        "batch": [f"{array.dtype}{list(array.shape)}" for array in arrays],
        "steps_per_epoch": steps_per_epoch,
        "lambdanet_version": lambdanet.__version__,
    }
    packages = ["jax", "jaxlib", "keras"]
    if devices[0].platform == "tpu":
        packages.append("libtpu")
    for package in packages:
        facts[f"{package}_version"] = metadata.version(package)
    return facts


def _hash(lowered: Any) -> str:
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()


def _read(path: str | Path) -> tuple[dict[str, Any], bytes]:
    """Returns the facts and the program in a file; `InputError` where it is none or is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            facts = json.loads(archive.read(FACTS))
            facts["hash"], facts["recipe"]
            return facts, archive.read(PROGRAM)
    except OSError as error:
        raise unreadable(path, error) from None
    except _DAMAGED:
        raise InputError(f"executable {str(path)!r} is damaged") from None


def _difference(saved: dict[str, Any], own: dict[str, Any]) -> str:
    """Returns which fields of two recipes differ, in words."""
    fields = []
    for name, value in own.items():
        if saved.get(name) != value:
            fields.append(f"{name} {saved.get(name)!r} (in this run {value!r})")
    if not fields:
        return "the recipes agree, but not the programs"
    return f"its recipe has {', '.join(fields)}"
