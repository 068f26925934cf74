# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training run, which are checked before anything is restored."""

import collections
import shutil
import tempfile
from pathlib import Path

import tensorflow as tf
import tf_keras as keras

from lambdanet.backend import compat
from lambdanet.errors import InputError, invalid, one_line
from lambdanet.training.run.devices import ONE_DEVICE, Devices

MAX_TO_KEEP = 3
NUM_SUMS = 4  # the sum and the count of the loss, and of the accuracy
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # ends the key of every variable in a checkpoint

# Raised by TensorFlow for files that are truncated, corrupted or missing.
_DAMAGED = (tf.errors.OpError, LookupError, RuntimeError, ValueError)


class Checkpoints:
    """The checkpoints of a model and its optimizer, numbered by the steps completed.

    Args:
      directory: the folder, created with the first checkpoint.
      model: a built model.
      optimizer: its optimizer, whose variables are created here so that they can be restored.
      devices: the devices of the run; all workers take part in saving, the chief writes.
      max_to_keep: the number of checkpoints to keep, the newest.

    Attributes:
      sums: the sums of the metrics since the start of the epoch; 0 once it is evaluated.

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
        self._max_to_keep = max_to_keep
        self._weights = list(model.trainable_variables)  # also those that are frozen later
        optimizer.build(self._weights)
        self.sums = tf.Variable(tf.zeros([NUM_SUMS]), trainable=False, name="sums")
        self._step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self._checkpoint = tf.train.Checkpoint(
            model=model, optimizer=optimizer, step=self._step, sums=self.sums
        )
        self._checkpoint.save_counter.assign(0)  # creates the variable now
        self._manager: tf.train.CheckpointManager | None = None

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints on disk, in order."""
        found = (path.stem.removeprefix("ckpt-") for path in self.directory.glob("ckpt-*.index"))
        return sorted(int(number) for number in found if number.isdigit())

    def save(self, step: int) -> None:
        """Writes the checkpoint after a step and removes all but the newest.

        Raises:
          OSError: the files cannot be written, or the model_dir was deleted.
        """
        self._step.assign(step)
        if not self.devices.chief:  # takes part: variables with a value per device are averaged
            with tempfile.TemporaryDirectory() as other:
                self._checkpoint.write(f"{other}/ckpt")
            return
        failure, folder = f"cannot write the checkpoint of step {step}", str(self.directory)
        if not self.directory.parent.is_dir():  # TensorFlow would create it again, empty
            raise OSError(f"{failure}: {str(self.directory.parent)!r} was deleted")
        try:
            if self._manager is None:
                self._manager = tf.train.CheckpointManager(self._checkpoint, folder, self._max_to_keep)
            self._manager.save(checkpoint_number=step)
        except tf.errors.OpError as error:
            remove_unfinished(self.directory)
            raise OSError(f"{failure}: {error.message}") from None

    def restore(self) -> int:
        """Restores the newest checkpoint that can be read, and prints which ones cannot.

        Returns:
          The steps completed; 0 where there is no checkpoint.

        Raises:
          InputError: the checkpoint is of another model or optimizer, no checkpoint can be read, or workers
            found different ones.
        """
        step = self._restore()
        if self.devices.workers_differ(step):
            found = f"the newest checkpoint here is of step {step}, elsewhere of another"
            raise invalid("model_dir", "a folder shared by all machines", str(self.directory.parent), found)
        return step

    def _restore(self) -> int:
        for step in reversed(self.steps()):
            path = str(self.directory / f"ckpt-{step}")
            try:
                shapes = _read_shapes(path)
            except _DAMAGED as error:
                reason = one_line(error)
                print(f"checkpoint {path} is damaged ({reason}); trying the previous one", flush=True)
                continue
            self._check_fit(path, shapes)
            self._checkpoint.restore(path).assert_consumed()
            return int(self._step.numpy())
        if self.steps():
            raise InputError(
                f"no checkpoint in {str(self.directory)!r} can be read; remove that folder to start again"
            )
        return 0

    def use_averages(self) -> None:
        """Replaces the weights by their moving averages, where the optimizer keeps them."""
        self.optimizer.finalize_variable_values(self.model.trainable_variables)

    def reset_averages(self) -> None:
        """Starts the moving averages at the weights, where the optimizer keeps them.

        Otherwise they would start at the values with which the model was built.
        """
        if self.optimizer.use_ema:
            averages = self.optimizer._model_variables_moving_average
            for average, weight in zip(averages, self._weights, strict=True):
                average.assign(weight)

    def all_finite(self) -> bool:
        """Returns whether all weights and variables of the optimizer are finite."""
        variables = [*self.model.variables, *self.optimizer.variables]
        floats = [v for v in variables if v.dtype.is_floating]
        return bool(tf.reduce_all([tf.reduce_all(tf.math.is_finite(v)) for v in floats]))

    def _check_fit(self, path: str, shapes: dict[str, tuple[int, ...]]) -> None:
        expected = _variables(self._checkpoint)
        problems = []
        for key, variable in expected.items():
            shape, name = tuple(variable.shape), compat.variable_name(variable)
            if key not in shapes:
                problems.append(f"it lacks {name} {shape}")
            elif shapes[key] != shape:
                problems.append(f"{name} is {shapes[key]} there and {shape} in the model")
        problems += [f"it also holds {key} {shapes[key]}" for key in sorted(shapes.keys() - expected.keys())]
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            what = f"{self.model.name} with {self.optimizer.name}"
            raise InputError(f"checkpoint {path!r} is not of {what}: {problems[0]}{more}")


def remove_unfinished(directory: Path) -> None:
    """Removes checkpoints that were interrupted by a full disk or the end of the process."""
    for path in directory.glob("ckpt-*_temp"):
        shutil.rmtree(path, ignore_errors=True)


def _read_shapes(path: str) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every variable in a checkpoint, after checking the checksums of all values."""
    reader = tf.train.load_checkpoint(path)
    shapes = {key: tuple(shape) for key, shape in reader.get_variable_to_shape_map().items()}
    for key in shapes:
        reader.get_tensor(key)
    return {key.removesuffix(VALUE): shape for key, shape in shapes.items() if key.endswith(VALUE)}


def _variables(root: tf.train.Checkpoint) -> dict[str, tf.Variable]:
    """Returns the variables below `root` by their keys in a checkpoint, the shortest paths to them."""
    view = tf.train.TrackableView(root)
    found, seen, queue = {}, {id(root)}, collections.deque([("", root)])
    while queue:
        path, node = queue.popleft()
        if isinstance(node, tf.Variable):
            found[path.removeprefix("/")] = node
        for name, child in view.children(node).items():
            if id(child) not in seen:
                seen.add(id(child))
                queue.append((f"{path}/{name}", child))
    return found
