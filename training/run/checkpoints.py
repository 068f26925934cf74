# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training run: a file of arrays per step, the same on TensorFlow and JAX."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from lambdanet.backend import compat, keras
from lambdanet.backend.strategies import SEEDS
from lambdanet.errors import InputError, invalid, one_line
from lambdanet.files import atomic_file
from lambdanet.training.run.devices import ONE_DEVICE, Devices

MAX_TO_KEEP = 3
NUM_SUMS = 4  # the sum and the count of the loss, and of the accuracy
# Names in a checkpoint, or their beginnings.
MODEL = "model/"
AVERAGE = "average/"
SUMS = "sums"

_DAMAGED = (EOFError, KeyError, OSError, ValueError, zipfile.BadZipFile, zlib.error)


class Checkpoints:
    """The checkpoints of a model and its optimizer, numbered by the steps completed.

    A checkpoint is a NumPy archive of the variables of the model and the optimizer by name. It is written
    completely or not at all, has a CRC-32 per array, and is checked before anything is restored.

    Args:
      directory: the folder, created with the first checkpoint.
      model: a built model.
      optimizer: its optimizer, whose variables are created here so that they can be restored.
      devices: the devices of the run; all workers take part in saving, the chief writes.
      max_to_keep: the number of checkpoints to keep, the newest.

    Attributes:
      sums: the sums of the metrics since the start of the epoch, float32 [4]; 0 once it is evaluated.

    Example:
      >>> checkpoints = Checkpoints("checkpoints", model, keras.optimizers.SGD())
      >>> checkpoints.save(step=1)
      >>> checkpoints.restore()
      1
    """

    def __init__(
        self,
        directory: str | Path,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        devices: Devices = ONE_DEVICE,
        max_to_keep: int = MAX_TO_KEEP,
    ):
        self.directory = Path(directory)
        self.model = model
        self.optimizer = optimizer
        self.devices = devices
        self.sums = np.zeros(NUM_SUMS, np.float32)
        self._max_to_keep = max_to_keep
        # Also those that `Run` freezes.
        self._weights = list(model.trainable_variables)
        if not optimizer.built:
            optimizer.build(self._weights)

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints on disk, in order."""
        return _steps(self.directory)

    def save(self, step: int) -> None:
        """Writes the checkpoint after a step and removes all but the newest.

        Raises:
          OSError: the file cannot be written, or the model_dir was deleted.
        """
        sync(self.model)
        arrays: dict[str, Any] = {
            name: variable.numpy() for name, variable in self._variables().items()
        }
        arrays[SUMS] = self.sums
        # Took part: variables with a value per device were averaged.
        if not self.devices.chief:
            return
        failure = f"cannot write the checkpoint of step {step}"
        folder = self.directory
        if not folder.parent.is_dir():
            raise OSError(f"{failure}: {str(folder.parent)!r} was deleted")
        try:
            folder.mkdir(exist_ok=True)
            with (
                atomic_file(_path(folder, step)) as unfinished,
                unfinished.open("wb") as file,
            ):
                np.savez(file, **arrays)
        except OSError as error:
            raise OSError(f"{failure}: {error}") from None
        for old in self.steps()[: -self._max_to_keep]:
            _path(folder, old).unlink(missing_ok=True)

    def restore(self) -> int:
        """Restores the newest checkpoint that can be read, and prints which ones cannot.

        Returns:
          The steps completed; 0 where there is no checkpoint.

        Raises:
          InputError: the checkpoint is of another model or optimizer, no checkpoint can be read, or workers
            found different ones.
        """
        step, arrays = read_newest(self.directory)
        if step:
            self._check_fit(_path(self.directory, step), arrays)
            for name, variable in self._variables().items():
                variable.assign(arrays[name])
            self.sums = arrays[SUMS]
        if self.devices.workers_differ(step):
            found = (
                f"the newest checkpoint here is of step {step}, elsewhere of another"
            )
            raise invalid(
                "model_dir",
                "a folder shared by all machines",
                str(self.directory.parent),
                found,
            )
        return step

    def use_averages(self) -> None:
        """Replaces the weights by their moving averages, where the optimizer keeps them."""
        self._copy(self.averages, self._weights)

    def reset_averages(self) -> None:
        """Starts the moving averages at the weights, where the optimizer keeps them.

        Otherwise they would start at the values with which the model was built.
        """
        self._copy(self._weights, self.averages)

    @property
    def averages(self) -> list[Any]:
        """The moving averages of the weights, in their order; none where the optimizer keeps none."""
        return (
            self.optimizer._model_variables_moving_average
            if self.optimizer.use_ema
            else []
        )

    def all_finite(self) -> bool:
        """Returns whether all weights and variables of the optimizer are finite."""
        sync(self.model)
        floats = [v for v in self._variables().values() if "float" in v.dtype]
        return all(
            bool(keras.ops.all(keras.ops.isfinite(variable))) for variable in floats
        )

    def _copy(self, sources: list[Any], targets: list[Any]) -> None:
        for source, target in zip(sources, targets, strict=bool(self.averages)):
            # On JAX, two variables must not share an array.
            target.assign(keras.ops.copy(source))

    def _variables(self) -> dict[str, Any]:
        """Returns the variables of the model and of the optimizer by their names in a checkpoint."""
        pairs = zip(self._weights, self.averages, strict=bool(self.averages))
        averages = {
            f"{AVERAGE}{compat.variable_name(weight)}": average
            for weight, average in pairs
        }
        averaged = set(map(id, self.averages))
        others = [v for v in self.optimizer.variables if id(v) not in averaged]
        seeds = [
            variable for variable in self.model.variables if SEEDS in variable.path
        ]
        weights = [
            variable for variable in self.model.variables if SEEDS not in variable.path
        ]
        return {
            **{
                f"{MODEL}{compat.variable_name(variable)}": variable
                for variable in weights
            },
            # Keras counts in the process
            **{f"{SEEDS}/{number}": seed for number, seed in enumerate(seeds)},
            **averages,
            **{f"optimizer/{variable.path}": variable for variable in others},
        }

    def _check_fit(self, path: Path, arrays: dict[str, np.ndarray]) -> None:
        expected = self._variables()
        problems = []
        for name, variable in expected.items():
            shape = tuple(variable.shape)
            if name not in arrays:
                problems.append(f"it lacks {name} {shape}")
            elif arrays[name].shape != shape:
                problems.append(
                    f"{name} is {arrays[name].shape} there and {shape} in the model"
                )
        others = sorted(arrays.keys() - expected.keys() - {SUMS})
        problems += [f"it also holds {name} {arrays[name].shape}" for name in others]
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            what = f"{self.model.name} with {self.optimizer.name}"
            raise InputError(
                f"checkpoint {str(path)!r} is not of {what}: {problems[0]}{more}"
            )


def read_newest(directory: Path) -> tuple[int, dict[str, np.ndarray]]:
    """Reads the newest checkpoint that can be read, and prints which ones cannot; `InputError` if none can.

    Returns the steps completed, and the arrays by name; 0 and none where there is no checkpoint.
    """
    for step in reversed(_steps(directory)):
        try:
            # `np.load` leaves damaged ones open
            with (path := _path(directory, step)).open("rb") as file:
                return step, dict(np.load(file))
        except _DAMAGED as error:
            print(
                f"checkpoint {path} is damaged ({one_line(error)}); trying the previous one",
                flush=True,
            )
    if _steps(directory):
        raise InputError(
            f"no checkpoint in {str(directory)!r} can be read; remove that folder to start again"
        )
    return 0, {}


def is_of_tf_keras(directory: Path) -> bool:
    """Whether a folder has checkpoints of a run with tf_keras, which are no longer read."""
    return bool(_steps(directory, ".index"))


def _steps(directory: Path, ending: str = ".npz") -> list[int]:
    found = (
        path.stem.removeprefix("ckpt-") for path in directory.glob(f"ckpt-*{ending}")
    )
    return sorted(int(number) for number in found if number.isdigit())


def _path(directory: Path, step: int) -> Path:
    return directory / f"ckpt-{step}.npz"


def sync(model: keras.Model) -> None:
    """Gives the variables of a model their current values, in a callback of `fit` or `evaluate`.

    On JAX, `fit` takes the values out of the variables, and each step overwrites those of the one before.
    """
    if keras.config.backend() == "jax":
        model.jax_state_sync()


def remove_unfinished(directory: Path) -> None:
    """Removes checkpoints that were interrupted by the end of the process."""
    for path in directory.glob(".ckpt-*.partial"):
        path.unlink(missing_ok=True)
