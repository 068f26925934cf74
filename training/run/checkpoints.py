# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training run: checked before anything is restored from them."""

import collections
import shutil
import tempfile
from pathlib import Path

import tensorflow as tf
import tf_keras as keras

from lambdanet.errors import InputError, one_line
from lambdanet.models.weights.keras_h5 import variable_name
from lambdanet.training.run.devices import ONE_DEVICE, Devices

KEPT = 3  # the newest ones
NUM_SUMS = 4  # the sum and the count of the loss, and of the accuracy
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # ends the key of every variable in a checkpoint

# What TensorFlow raises for files that are cut short, flipped or gone.
_DAMAGED = (tf.errors.OpError, LookupError, RuntimeError, ValueError)


class Checkpoints:
    """The checkpoints of one model and its optimizer, numbered by the steps completed.

    Args:
      directory: where they lie; made with the first one.
      model: a built model.
      optimizer: its optimizer; its variables are created here, so that all of them are restored at once.
      devices: of the run; the chief among several workers writes, and all of them take part.
      kept: how many are kept, the newest.

    Attributes:
      sums: what the metrics have summed up since the epoch began, kept for the rest of it; 0 at its end.

    Example:
      >>> checkpoints = Checkpoints("/tmp/run/checkpoints", model, keras.optimizers.SGD())
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
        kept: int = KEPT,
    ):
        self.directory = Path(directory)
        self.model = model
        self.optimizer = optimizer
        self.devices = devices
        self._kept = kept
        optimizer.build(model.trainable_variables)
        self.sums = tf.Variable(tf.zeros([NUM_SUMS]), trainable=False, name="sums")
        self._step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self._checkpoint = tf.train.Checkpoint(
            model=model, optimizer=optimizer, step=self._step, sums=self.sums
        )
        self._checkpoint.save_counter.assign(0)  # TensorFlow's own variable, made at its first use
        self._manager: tf.train.CheckpointManager | None = None

    def steps(self) -> list[int]:
        """Returns the steps after which there is a checkpoint on disk, in order."""
        found = (path.stem.removeprefix("ckpt-") for path in self.directory.glob("ckpt-*.index"))
        return sorted(int(number) for number in found if number.isdigit())

    def save(self, step: int) -> None:
        """Writes the checkpoint after a step and removes all but the newest.

        Raises:
          OSError: the files cannot be written, or the folder of the run is gone.
        """
        self._step.assign(step)
        if not self.devices.chief:
            self._read_all()
            return
        if not self.directory.parent.is_dir():  # TensorFlow would make it anew, without what else was in it
            raise OSError(
                f"cannot write the checkpoint of step {step}: {str(self.directory.parent)!r} is gone"
            )
        try:
            if self._manager is None:
                self._manager = tf.train.CheckpointManager(self._checkpoint, str(self.directory), self._kept)
            self._manager.save(checkpoint_number=step)
        except tf.errors.OpError as error:
            remove_unfinished(self.directory)
            raise OSError(f"cannot write the checkpoint of step {step}: {error.message}") from None

    def restore(self) -> int:
        """Restores the newest checkpoint that can be read, and says so when that is not the newest one.

        Returns:
          The steps completed; 0 where there is no checkpoint.

        Raises:
          InputError: a checkpoint of another model or optimizer, or none that can be read; or another worker
            has found another one.
        """
        step = self._restore()
        if self.devices.workers_differ(step):
            raise InputError(
                f"the newest checkpoint in {str(self.directory)!r} is of step {step} here and of another on "
                "another machine; accepted: one model_dir that all machines see"
            )
        return step

    def _restore(self) -> int:
        for step in reversed(self.steps()):
            path = str(self.directory / f"ckpt-{step}")
            try:
                shapes = _read_shapes(path)
            except _DAMAGED as error:
                reason = one_line(error)
                print(f"checkpoint {path} is damaged ({reason}); trying the one before", flush=True)
                continue
            self._check_fit(path, shapes)
            self._checkpoint.restore(path).assert_consumed()
            return int(self._step.numpy())
        if self.steps():
            raise InputError(
                f"no checkpoint in {str(self.directory)!r} can be read; remove that directory to begin anew"
            )
        return 0

    def _read_all(self) -> None:
        """Takes part in the saving of another worker: what each has its own value of is then averaged."""
        with tempfile.TemporaryDirectory() as folder:
            self._checkpoint.write(f"{folder}/ckpt")

    def use_averages(self) -> None:
        """Puts the moving averages of the weights, where the optimizer keeps them, in their place."""
        self.optimizer.finalize_variable_values(self.model.trainable_variables)

    def all_finite(self) -> bool:
        """Returns whether no weight, and nothing that the optimizer keeps, is infinite or nan."""
        variables = [*self.model.variables, *self.optimizer.variables]
        floats = [v for v in variables if v.dtype.is_floating]
        return bool(tf.reduce_all([tf.reduce_all(tf.math.is_finite(v)) for v in floats]))

    def _check_fit(self, path: str, shapes: dict[str, tuple[int, ...]]) -> None:
        wanted = _variables(self._checkpoint)
        wrong = []
        for key, variable in wanted.items():
            shape, name = tuple(variable.shape), variable_name(variable)
            if key not in shapes:
                wrong.append(f"it lacks {name} {shape}")
            elif shapes[key] != shape:
                wrong.append(f"{name} is {shapes[key]} there and {shape} in the model")
        wrong += [f"it also holds {key} {shapes[key]}" for key in sorted(shapes.keys() - wanted.keys())]
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            what = f"{self.model.name} with {self.optimizer.name}"
            raise InputError(f"checkpoint {path!r} is not of {what}: {wrong[0]}{more}")


def remove_unfinished(directory: Path) -> None:
    """Removes what is left of checkpoints that a full disk, or the end of the process, has interrupted."""
    for path in directory.glob("ckpt-*_temp"):
        shutil.rmtree(path, ignore_errors=True)


def _read_shapes(path: str) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every variable in a checkpoint, once all values have matched their checksums."""
    reader = tf.train.load_checkpoint(path)
    shapes = {key: tuple(shape) for key, shape in reader.get_variable_to_shape_map().items()}
    for key in shapes:
        reader.get_tensor(key)
    return {key.removesuffix(VALUE): shape for key, shape in shapes.items() if key.endswith(VALUE)}


def _variables(root: tf.train.Checkpoint) -> dict[str, tf.Variable]:
    """Returns the variables below `root` by their keys in a checkpoint: the shortest way to each."""
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
