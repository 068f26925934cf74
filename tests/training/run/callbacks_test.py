# SPDX-License-Identifier: Apache-2.0
"""Callbacks of a run, on a model of one layer."""

import shutil
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_equal_arrays
from matplotlib.figure import Figure
from refusals import refused
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lambdanet import configs
from lambdanet.training.run import logs, loop
from lambdanet.training.run.build import build_optimizer, create_metrics
from lambdanet.training.run.checkpoints import Checkpoints, SaveCheckpoints
from lambdanet.training.run.logs import HistoryFile, Speed, read_history, show_pictures
from lambdanet.training.run.step import build_train_step
from lambdanet.training.run.stop_request import StopRequest

IMAGES = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
LABELS = np.arange(8) % 2
RECIPE = configs.get_recipe("digits")


class _Run:
    """A compiled model of one layer and its checkpoints; an epoch has two batches."""

    def __init__(self, path, ema_decay=0.0):
        keras.utils.set_random_seed(0)
        images = keras.Input([2])
        norm = keras.layers.BatchNormalization(
            momentum=0.6, center=False, scale=False, name="norm"
        )
        head = keras.layers.Dense(2, name="head")
        self.path = path
        self.model = keras.Model(images, head(norm(images)), name="one_layer")
        recipe = replace(
            RECIPE, epochs=4, warmup_epochs=2, momentum=0, ema_decay=ema_decay
        )
        optimizer = build_optimizer(recipe, self.model.weights, steps_per_epoch=2)
        self.checkpoints = Checkpoints(path / "checkpoints", self.model, optimizer)
        self.model.compile(
            optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )
        create_metrics(self.model, np.zeros([1]))
        self.model.train_step = build_train_step(self.model)

    def fit(
        self,
        *first,
        step=0,
        epochs=2,
        save_every=1000,
        recipe=RECIPE,
        images=IMAGES,
    ):
        """Trains from a step; the first callbacks come before those of a run."""
        self.path.mkdir(exist_ok=True)
        (self.path / "recipe.json").touch()
        saving = SaveCheckpoints(self.checkpoints, save_every, StopRequest())
        created = loop.create_callbacks(recipe, self.path, self.checkpoints, [], saving)
        self.model.fit(
            images,
            LABELS,
            batch_size=4,
            epochs=epochs,
            initial_epoch=step // 2,
            validation_data=(IMAGES, LABELS),
            shuffle=False,
            verbose=0,
            callbacks=[*first, *created],
        )

    def evaluate(self):
        return self.model.evaluate(IMAGES, LABELS, verbose=0)

    def history(self):
        return read_history(self.path / "history.csv")

    def events(self, folder="logs/train"):
        """What TensorBoard reads."""
        events = EventAccumulator(str(self.path / folder), size_guidance={"tensors": 0})
        events.Reload()
        return events


class _AtStep(keras.callbacks.Callback):
    """Does something after a step."""

    def __init__(self, step, action):
        super().__init__()
        self._step = step
        self._action = action

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == self._step:
            self._action(self.model)


@pytest.mark.jax
def test_nonfinite_loss_stops_at_its_step(tmp_path):
    run = _Run(tmp_path)
    images = IMAGES.copy()
    images[6] = np.nan  # in the second batch
    with refused("the loss is nan at step 2, where .* no checkpoint was written yet"):
        run.fit(images=images)
    assert run.checkpoints.steps() == []
    assert not (tmp_path / "history.csv").exists()


@pytest.mark.jax
def test_nonfinite_weights_are_not_saved(tmp_path):
    run = _Run(tmp_path)
    infinite = np.full([2, 2], np.inf)
    spoil = _AtStep(4, lambda model: model.trainable_variables[0].assign(infinite))
    with refused("a weight is not finite at step 4, .* of step 2 is kept"):
        run.fit(spoil)
    assert run.checkpoints.steps() == [2]
    assert [row["epoch"] for row in run.history()] == ["1"]
    again = _Run(tmp_path).checkpoints
    assert again.restore() == 2
    assert again.all_finite()


@pytest.mark.jax
def test_history_has_epoch_step_rate_and_results(tmp_path):
    run = _Run(tmp_path)
    run.fit()
    rows = run.history()
    assert [(row["epoch"], row["step"]) for row in rows] == [("1", "2"), ("2", "4")]
    # Of the second step, counted from 0: 0.1 * 1 / 4
    assert [float(row["learning_rate"]) for row in rows] == [0.025, 0.075]
    loss, accuracy = run.evaluate()
    assert float(rows[-1]["val_loss"]) == pytest.approx(loss, abs=1e-5)
    assert float(rows[-1]["val_accuracy"]) == pytest.approx(accuracy, abs=1e-5)
    assert {"loss", "accuracy", "seconds"} <= set(rows[0])


@pytest.mark.jax
def test_history_of_resumed_run_has_each_epoch_once(tmp_path):
    _Run(tmp_path).fit(epochs=3)
    whole = (tmp_path / "history.csv").read_text().splitlines()
    run = _Run(tmp_path)
    # Killed between its row and its checkpoint.
    (tmp_path / "checkpoints/ckpt-6.npz").unlink()
    run.fit(step=run.checkpoints.restore(), epochs=4)
    resumed = (tmp_path / "history.csv").read_text().splitlines()
    assert resumed[:3] == whole[:3]
    assert [line.split(",")[0] for line in resumed] == ["epoch", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    "content",
    [
        b"day,weather\n1,rain\n",
        b"\xff\xfe",
        b"epoch,loss\n1,\0\n",
        b"epoch,loss\n1," + b"9" * 200_000 + b"\n",
        b"epoch,loss\n" + b"9" * 5000 + b",1\n",
        b"epoch,loss\n1,2,3\n",
        b"epoch,loss\n1.5,2\n",
        b'epoch,loss\n1,"2\n',
        b"epoch,loss\n5,1\n1,1\n",
    ],
    ids=range(9),
)
def test_invalid_history_is_rejected(tmp_path, content):
    (tmp_path / "history.csv").write_bytes(content)
    with refused("history.csv' is not the history of a run, .*; remove it") as caught:
        HistoryFile(tmp_path / "history.csv", RECIPE)
    assert len(str(caught.value)) < 300


def test_history_with_empty_cells_and_infinite_losses(tmp_path):
    path = tmp_path / "history.csv"
    path.write_text("epoch,loss,val_loss\n1,0.5\n2,inf,\n3,1,nan\n")
    assert [row["epoch"] for row in read_history(path)] == ["1", "2", "3"]
    path.write_text("")
    assert read_history(path) == []


def test_epochs_have_time_left_and_curves(tmp_path, monkeypatch, capsys):
    """Of a resumed run, in epochs of 30 and 12 seconds; the second ends too soon for another drawing."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, _: figures.append(figure))
    model = _Run(tmp_path).model
    (tmp_path / "recipe.json").touch()
    path = tmp_path / "history.csv"
    path.write_text("epoch,loss,val_accuracy\n1,9,0.25\n")
    clock = iter([0, 10, 40, 50, 62])
    monkeypatch.setattr(logs.time, "monotonic", lambda: next(clock))
    history = HistoryFile(path, replace(RECIPE, epochs=5))
    history.set_model(model)
    for epoch, minutes in ((1, 3 * 0.5), (2, 2 * 0.2)):
        end = {"loss": 7.0, "val_accuracy": 0.5}
        history.on_epoch_begin(epoch)
        history.on_epoch_end(epoch, end)
        assert end["minutes_left"] == minutes
    (figure,) = figures
    loss, measure = figure.axes
    assert loss.lines[0].get_ydata().tolist() == [9, 7]
    assert measure.lines[1].get_ydata().tolist() == [0.25, 0.5]
    path.write_text("epoch\nrain\n")
    logs.draw_curves(path, RECIPE)
    assert "curves.png is not drawn" in capsys.readouterr().out


@pytest.mark.jax
def test_evaluation_uses_averages_and_training_weights(tmp_path):
    plain = _Run(tmp_path / "plain")
    weights = [plain.model.get_weights()]
    averages = weights[0]
    plain.fit(
        *(
            _AtStep(step, lambda model: weights.append(model.get_weights()))
            for step in range(1, 5)
        )
    )
    for number, step in enumerate(weights[1:], start=1):
        decay = min(0.3, (1 + number) / (10 + number))
        pairs = zip(averages, step, strict=True)
        averages = [decay * average + (1 - decay) * weight for average, weight in pairs]

    run = _Run(tmp_path / "run", ema_decay=0.3)
    run.fit(recipe=replace(RECIPE, ema_decay=0.5))
    resumed = _Run(tmp_path / "run", ema_decay=0.3)
    resumed.checkpoints.restore()
    for model in (run.model, resumed.model):
        assert_equal_arrays(model.get_weights(), weights[-1], rtol=1e-5)
    run.model.set_weights(averages)
    loss = float(run.history()[-1]["val_loss"])
    assert loss == pytest.approx(run.evaluate()[0], abs=1e-5)


def test_tensorboard_has_results_and_speed(tmp_path):
    run = _Run(tmp_path, ema_decay=0.3)
    run.fit(recipe=replace(RECIPE, ema_decay=0.5))
    events = run.events()
    tags = set(events.Tags()["tensors"])
    assert {"epoch_loss", "epoch_accuracy", "epoch_learning_rate"} <= tags
    expected = [float(row["images_per_second"]) for row in run.history()]
    shown = events.Tensors("epoch_images_per_second")
    shown = [float(tf.make_ndarray(event.tensor_proto)) for event in shown]
    assert shown == pytest.approx(expected, rel=1e-4)
    assert min(float(row["images_per_second"]) for row in run.history()) > 0


def test_tensorboard_has_pictures(tmp_path):
    pictures = np.random.default_rng(0).integers(0, 256, [20, 5, 4, 3])
    show_pictures(tmp_path, [*pictures.astype(np.uint8)])
    (event,) = _Run(tmp_path).events("pictures").Tensors("first_batch")
    width, height, *shown = tf.make_ndarray(event.tensor_proto).tolist()
    assert (width, height, len(shown)) == (b"4", b"5", 16)
    for picture, png in zip(pictures, shown, strict=False):
        np.testing.assert_allclose(tf.io.decode_png(png), picture, atol=1)


@pytest.mark.parametrize(
    ("times", "ends", "expected"),
    [
        ([0.0, 50.0, 51.0, 52.0], [0, 1, 2], 2 * 8 / 2.0),
        ([0.0, 50.0, 54.0], [3, 7], 4 * 8 / 4.0),  # several steps per execution
        ([0.0, 5.0], [0], 8 / 5.0),  # the only one
    ],
)
def test_speed_without_first_execution(monkeypatch, times, ends, expected):
    clock = iter(times)
    monkeypatch.setattr(
        "lambdanet.training.run.logs.time.perf_counter", lambda: next(clock)
    )
    speed = Speed(8)
    logs = {}
    speed.on_epoch_begin(0)
    for end in ends:
        speed.on_train_batch_end(end)
    speed.on_epoch_end(0, logs)
    assert logs == {"images_per_second": pytest.approx(expected)}


@pytest.mark.jax
@pytest.mark.parametrize(
    ("save_every", "steps"),
    [(1, [4, 5, 6]), (2, [2, 4, 6]), (3, [3, 4, 6]), (5, [4, 5, 6]), (9, [2, 4, 6])],
)
def test_checkpoints_after_epochs_and_save_every_steps(tmp_path, save_every, steps):
    run = _Run(tmp_path)
    run.fit(epochs=3, save_every=save_every)
    assert run.checkpoints.steps() == steps


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (2, "run' was deleted, with the checkpoints"),
        (3, "of step 3: .*run' was deleted"),
    ],
)
def test_deleted_model_dir_ends_run(tmp_path, step, message):
    remove = _AtStep(step, lambda model: shutil.rmtree(tmp_path / "run"))
    with refused(message, OSError):
        _Run(tmp_path / "run").fit(remove, save_every=3)
    assert not (tmp_path / "run/checkpoints").exists()
