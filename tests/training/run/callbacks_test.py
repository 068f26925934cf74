# SPDX-License-Identifier: Apache-2.0
"""Callbacks of a run, on a model of one layer."""

import dataclasses
import shutil
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from lambdanet import configs
from lambdanet.errors import InputError, Preempted
from lambdanet.training.run import callbacks, history, tensorboard
from lambdanet.training.run.build import create_metrics
from lambdanet.training.run.checkpoints import Checkpoints
from lambdanet.training.run.optimizers import with_options
from lambdanet.training.run.preemption import StopRequest
from lambdanet.training.run.schedules import WarmupSchedule

IMAGES, LABELS = (
    np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32),
    np.arange(8) % 2,
)
RECIPE = configs.get_recipe("digits")


def _run(path, rate=0.1, use_ema=False):
    """A compiled model and its checkpoints; an epoch has two batches."""
    keras.utils.set_random_seed(0)
    images = keras.Input([2])
    model = keras.Model(
        images, keras.layers.Dense(2, name="head")(images), name="one_layer"
    )
    schedule = WarmupSchedule(rate, 8, 4)
    optimizer = with_options(keras.optimizers.SGD)(
        schedule, use_ema=use_ema, ema_momentum=0.5, name="sgd"
    )
    checkpoints = Checkpoints(path / "checkpoints", model, optimizer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer,
        loss=loss,
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    create_metrics(model)
    return model, checkpoints


def _callbacks(recipe, path, checkpoints, initial_epoch, save_every=1000, stop=None):
    path.mkdir(exist_ok=True)
    (path / "recipe.json").touch()
    stop = stop or StopRequest()
    return callbacks.create_callbacks(
        recipe, path, checkpoints, 2 * initial_epoch, 2, save_every, stop
    )


class _AtStep(keras.callbacks.Callback):
    """Does something after a step."""

    def __init__(self, step, action):
        super().__init__()
        self._step, self._action = step, action

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == self._step:
            self._action(self.model)


def _fit(model, extra, epochs=2, initial_epoch=0, images=IMAGES):
    model.fit(
        images,
        LABELS,
        batch_size=4,
        epochs=epochs,
        initial_epoch=initial_epoch,
        validation_data=(IMAGES, LABELS),
        shuffle=False,
        verbose=0,
        callbacks=extra,
    )


def test_nonfinite_loss_stops_at_its_step(tmp_path):
    model, checkpoints = _run(tmp_path)
    images = IMAGES.copy()
    images[6] = np.nan  # in the second batch
    with pytest.raises(
        InputError,
        match="the loss is nan at step 2, where .* no checkpoint was written yet",
    ):
        _fit(model, _callbacks(RECIPE, tmp_path, checkpoints, 0), images=images)
    assert checkpoints.steps() == [] and not (tmp_path / "history.csv").exists()


def test_nonfinite_weights_are_not_saved(tmp_path):
    model, checkpoints = _run(tmp_path)
    spoil = _AtStep(
        4, lambda model: model.trainable_variables[0].assign(np.full([2, 2], np.inf))
    )
    with pytest.raises(
        InputError, match="a weight is not finite at step 4, .* of step 2 is kept"
    ):
        _fit(model, [spoil, *_callbacks(RECIPE, tmp_path, checkpoints, 0)])
    assert checkpoints.steps() == [2]
    assert [row["epoch"] for row in history.read_history(tmp_path / "history.csv")] == [
        "1"
    ]
    again = _run(tmp_path)[1]
    assert again.restore() == 2 and again.all_finite()


def test_history_has_epoch_step_rate_and_results(tmp_path):
    model, checkpoints = _run(tmp_path)
    _fit(model, _callbacks(RECIPE, tmp_path, checkpoints, 0))
    rows = history.read_history(tmp_path / "history.csv")
    assert [
        (row["epoch"], row["step"], float(row["learning_rate"])) for row in rows
    ] == [
        ("1", "2", 0.025),  # of the second step, counted from 0: 0.1 * 1 / 4
        ("2", "4", 0.075),
    ]
    loss, accuracy = model.evaluate(IMAGES, LABELS, verbose=0)
    assert float(rows[-1]["val_loss"]) == pytest.approx(loss, abs=1e-5)
    assert float(rows[-1]["val_accuracy"]) == pytest.approx(accuracy, abs=1e-5)
    assert {"loss", "accuracy", "seconds"} <= set(rows[0])


def test_history_of_resumed_run_has_each_epoch_once(tmp_path):
    model, checkpoints = _run(tmp_path)
    _fit(model, _callbacks(RECIPE, tmp_path, checkpoints, 0), epochs=3)
    whole = (tmp_path / "history.csv").read_text().splitlines()
    model, checkpoints = _run(tmp_path)
    # Killed between its row and its checkpoint.
    (tmp_path / "checkpoints" / "ckpt-6.npz").unlink()
    epoch = checkpoints.restore() // 2
    _fit(
        model,
        _callbacks(RECIPE, tmp_path, checkpoints, epoch),
        epochs=4,
        initial_epoch=epoch,
    )
    resumed = (tmp_path / "history.csv").read_text().splitlines()
    assert resumed[:3] == whole[:3]
    assert [line.split(",")[0] for line in resumed] == ["epoch", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    "content",
    [
        b"day,weather\n1,rain\n",
        b"\xff\xfe",
        b"epoch,loss\n1,abc\n",
        b"epoch,loss\n1,\0\n",
        b"epoch,loss\n1," + b"9" * 200_000 + b"\n",
        b"epoch,loss\n" + b"9" * 5000 + b",1\n",
        b"epoch,loss\n1,2,3\n",
        b"epoch,loss\n,2\n",
        b"epoch,loss\n1.5,2\n",
        b'epoch,loss\n1,"2\n',
        b"epoch,loss\n5,1\n1,1\n",
        b"epoch,loss\n1,1\n1,1\n",
    ],
    ids=range(12),
)
def test_invalid_history_is_rejected(tmp_path, content):
    (tmp_path / "history.csv").write_bytes(content)
    with pytest.raises(
        InputError, match="history.csv' is not the history of a run, .*; remove it"
    ) as caught:
        history.HistoryFile(tmp_path / "history.csv", 0)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_history_with_empty_cells_and_infinite_losses(tmp_path):
    (tmp_path / "history.csv").write_text(
        "epoch,loss,val_loss\n1,0.5\n2,inf,\n3,1,nan\n"
    )
    assert [row["epoch"] for row in history.read_history(tmp_path / "history.csv")] == [
        "1",
        "2",
        "3",
    ]
    (tmp_path / "history.csv").write_text("")
    assert history.read_history(tmp_path / "history.csv") == []


def test_evaluation_uses_averages_and_training_weights(tmp_path):
    recipe = dataclasses.replace(RECIPE, ema_decay=0.5)
    plain, _ = _run(tmp_path / "plain")
    weights = []
    record = [
        _AtStep(step, lambda model: weights.append(model.get_weights()))
        for step in range(1, 5)
    ]
    start = plain.get_weights()
    _fit(plain, record)
    averages = start
    for step in weights:
        averages = [
            0.5 * average + 0.5 * weight
            for average, weight in zip(averages, step, strict=True)
        ]

    model, checkpoints = _run(tmp_path, use_ema=True)
    _fit(model, _callbacks(recipe, tmp_path, checkpoints, 0))
    for got, weight in zip(model.get_weights(), weights[-1], strict=True):
        np.testing.assert_allclose(got, weight, rtol=1e-5)
    model.set_weights(averages)
    loss = float(history.read_history(tmp_path / "history.csv")[-1]["val_loss"])
    assert loss == pytest.approx(model.evaluate(IMAGES, LABELS, verbose=0)[0], abs=1e-5)

    resumed, checkpoints = _run(tmp_path, use_ema=True)
    checkpoints.restore()
    for got, weight in zip(resumed.get_weights(), weights[-1], strict=True):
        np.testing.assert_allclose(got, weight, rtol=1e-5)


def test_tensorboard_has_learning_rate(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model, checkpoints = _run(tmp_path)
    _fit(model, _callbacks(RECIPE, tmp_path, checkpoints, 0))
    events = EventAccumulator(str(tmp_path / "logs" / "train"))
    events.Reload()
    assert {"epoch_learning_rate", "epoch_loss", "epoch_accuracy"} <= set(
        events.Tags()["tensors"]
    )
    assert "epoch_ema_accuracy" not in events.Tags()["tensors"]
    assert len(events.Tensors("epoch_learning_rate")) == 2


def test_tensorboard_has_speed_averages_and_pictures(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model, checkpoints = _run(tmp_path, use_ema=True)
    _fit(
        model,
        _callbacks(
            dataclasses.replace(RECIPE, ema_decay=0.5), tmp_path, checkpoints, 0
        ),
    )
    events = EventAccumulator(str(tmp_path / "logs" / "train"))
    events.Reload()
    rows = history.read_history(tmp_path / "history.csv")
    for tag, column in (
        ("ema_accuracy", "val_accuracy"),
        ("images_per_second", "images_per_second"),
    ):
        shown = [
            float(tf.make_ndarray(event.tensor_proto))
            for event in events.Tensors(f"epoch_{tag}")
        ]
        assert shown == pytest.approx([float(row[column]) for row in rows], rel=1e-4)
    assert all(float(row["images_per_second"]) > 0 for row in rows)

    pictures = np.random.default_rng(0).integers(0, 256, [20, 5, 4, 3])
    normal = (pictures / 255 - np.float32(RECIPE.mean)) / np.float32(RECIPE.std)
    tensorboard.show_pictures(tmp_path, RECIPE, tf.constant(normal, tf.float32))
    events = EventAccumulator(str(tmp_path / "pictures"), size_guidance={"tensors": 0})
    events.Reload()
    (event,) = events.Tensors("first_batch")
    width, height, *shown = tf.make_ndarray(event.tensor_proto).tolist()
    assert (width, height, len(shown)) == (b"4", b"5", 16)
    for picture, png in zip(pictures, shown, strict=False):
        np.testing.assert_allclose(tf.io.decode_png(png), picture, atol=1)


def test_speed_without_first_execution_of_epoch(monkeypatch):
    for times, ends, expected in [
        ([0.0, 50.0, 51.0, 52.0], [0, 1, 2], 2 * 8 / 2.0),
        ([0.0, 50.0, 54.0], [3, 7], 4 * 8 / 4.0),  # several steps per execution
        ([0.0, 5.0], [0], 8 / 5.0),  # the only one
    ]:
        clock = iter(times)
        monkeypatch.setattr(
            tensorboard.time, "perf_counter", lambda clock=clock: next(clock)
        )
        speed, logs = tensorboard.Speed(8), {}
        speed.on_epoch_begin(0)
        for end in ends:
            speed.on_train_batch_end(end)
        speed.on_epoch_end(0, logs)
        assert logs == {"images_per_second": pytest.approx(expected)}


@pytest.mark.parametrize(
    ("save_every", "steps"),
    [(1, [4, 5, 6]), (2, [2, 4, 6]), (3, [3, 4, 6]), (5, [4, 5, 6]), (9, [2, 4, 6])],
)
def test_checkpoints_after_epochs_and_save_every_steps(tmp_path, save_every, steps):
    model, checkpoints = _run(tmp_path)
    _fit(model, _callbacks(RECIPE, tmp_path, checkpoints, 0, save_every), epochs=3)
    assert checkpoints.steps() == steps


@pytest.mark.parametrize("step", [3, 4])  # within an epoch, and at the end of one
def test_stop_request_saves_and_stops(tmp_path, step):
    model, checkpoints = _run(tmp_path)
    stop = StopRequest()
    with (
        stop,
        pytest.raises(
            Preempted, match=f"stopped by SIGTERM at step {step}, which is saved"
        ),
    ):
        ask = _AtStep(step, lambda model: signal.raise_signal(signal.SIGTERM))
        _fit(
            model,
            [ask, *_callbacks(RECIPE, tmp_path, checkpoints, 0, stop=stop)],
            epochs=3,
        )
    assert checkpoints.steps() == [2, step]
    rows = history.read_history(tmp_path / "history.csv")
    assert len(rows) == 1  # a completed epoch is evaluated when the run resumes


def test_resumed_epoch_continues_its_metrics(tmp_path):
    model, checkpoints = _run(tmp_path)
    _fit(model, _callbacks(RECIPE, tmp_path, checkpoints, 0), epochs=2)
    whole = history.read_history(tmp_path / "history.csv")

    model, checkpoints = _run(tmp_path / "again")
    _fit(
        model,
        _callbacks(RECIPE, tmp_path / "again", checkpoints, 0, save_every=3),
        epochs=2,
    )
    (tmp_path / "again" / "checkpoints" / "ckpt-4.npz").unlink()
    model, checkpoints = _run(tmp_path / "again")
    assert checkpoints.restore() == 3
    resumed = callbacks.create_callbacks(
        RECIPE, tmp_path / "again", checkpoints, 3, 2, 1000, StopRequest()
    )
    rest = (IMAGES[4:], LABELS[4:])
    model.fit(
        *rest, batch_size=4, initial_epoch=1, epochs=2, verbose=0, callbacks=resumed
    )
    last = history.read_history(tmp_path / "again" / "history.csv")[-1]
    for name in ("step", "loss", "accuracy", "learning_rate"):
        assert last[name] == whole[-1][name]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (2, "run' was deleted, with the checkpoints"),
        (3, "of step 3: .*run' was deleted"),
    ],
)
def test_deleted_model_dir_ends_run(tmp_path, step, message):
    (tmp_path / "run").mkdir()
    model, checkpoints = _run(tmp_path / "run")
    remove = _AtStep(step, lambda model: shutil.rmtree(tmp_path / "run"))
    extra = _callbacks(RECIPE, tmp_path / "run", checkpoints, 0, save_every=3)
    with pytest.raises(OSError, match=message) as caught:
        _fit(model, [remove, *extra])
    assert (
        "\n" not in str(caught.value)
        and not (tmp_path / "run" / "checkpoints").exists()
    )
