# SPDX-License-Identifier: Apache-2.0
"""Frozen layers: neither weights nor batch statistics move until they are unfrozen, also in a resumed run.

The same run trains on images of several sizes.
"""

import dataclasses
import itertools
import signal

import keras
import numpy as np
import pytest
from programs.small_model import small_model
from training_runs import assert_same_run

from lambdanet import configs
from lambdanet.errors import InputError, Preempted
from lambdanet.models import zoo
from lambdanet.models.weights import weight_files
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.evaluate import evaluate
from lambdanet.training.run import callbacks, freezing, history, initial_weights, run
from lambdanet.training.run.build import build_model
from lambdanet.training.run.checkpoints import Checkpoints
from lambdanet.training.run.optimizers import with_options
from lambdanet.training.train import train

RECIPE = dataclasses.replace(
    configs.get_recipe("digits"),
    **{
        "epochs": 3,
        "train_split": "train[:32]",
        "eval_split": "test[:16]",
        "global_batch_size": 16,
    },
    **{"input_size": 16, "ema_decay": 0.5, "warmup_epochs": 0},
)


@pytest.fixture
def small_network(monkeypatch):
    monkeypatch.setattr("lambdanet.models.zoo.create_model", small_model)


@pytest.mark.parametrize(
    ("freeze", "names"),
    [
        ("stem*", ["stem1_conv", "stem1_norm", "stem2_conv", "stem2_norm"]),
        ("c2, c3_block1_reduce", None),
        ("backbone", None),
        ("c5_block1_spatial_norm,logits", ["c5_block1_spatial_norm", "logits"]),
    ],
)
def test_patterns_name_layers_or_their_beginning(freeze, names):
    model = zoo.create_model("lambda_resnet_tiny", num_classes=10)
    recipe = dataclasses.replace(RECIPE, freeze=freeze, start_from="imagenet")
    found = [layer.name for layer in freezing.frozen_layers(model, recipe)]
    weighted = [layer.name for layer in model.layers if layer.weights]
    if freeze == "backbone":
        assert found == weighted[:-1] and weighted[-1] == "logits"
    elif names is None:
        starts = ("c2_", "c3_block1_reduce_")
        assert sorted(found) == sorted(
            name for name in weighted if name.startswith(starts)
        )
    else:
        assert set(names) <= set(found) and all(
            name.startswith(("stem", "c5", "logits")) for name in found
        )


@pytest.mark.parametrize(
    ("freeze", "message"),
    [
        (
            "c9",
            r"freeze must be backbone, or layers of .* \(stem1, .*, logits\), got 'c9'",
        ),
        ("*", "freeze must be fewer than all layers of .*, got '\\*'"),
        ("backbone,logits", "fewer than all layers"),
    ],
)
def test_patterns_that_cannot_be_used(freeze, message):
    model = zoo.create_model("lambda_resnet_tiny", num_classes=10)
    with pytest.raises(InputError, match=message):
        freezing.frozen_layers(
            model, dataclasses.replace(RECIPE, freeze=freeze, start_from="imagenet")
        )


def test_rejected_pattern_writes_nothing(small_network, data_dir, tmp_path):
    recipe = dataclasses.replace(RECIPE, freeze="c9", start_from="weights.safetensors")
    with pytest.raises(InputError, match="freeze must be backbone, or layers of small"):
        train(recipe, tmp_path / "run", data_dir)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"freeze": "c2"}, "freeze"), ({"unfreeze_epoch": 1}, "unfreeze")],
)
def test_freezing_needs_initial_weights(changes, field):
    with pytest.raises(InputError, match=f"{field}.* without"):
        dataclasses.replace(RECIPE, **changes)


def test_frozen_layers_move_once_unfrozen(
    small_network, data_dir, tmp_path, monkeypatch
):
    keras.utils.set_random_seed(1)
    source = build_model(RECIPE)
    weight_files.save(source, tmp_path / "start.safetensors")
    settings = {
        "start_from": str(tmp_path / "start.safetensors"),
        "freeze": "backbone",
        "unfreeze_epoch": 2,
    }
    settings |= {"sizes": (12, 20)}
    recipe, seen = dataclasses.replace(RECIPE, **settings), []
    begin = {layer.name: layer.get_weights() for layer in source.layers}

    def record(self, epoch, logs=None):
        layers = [layer for layer in self.model.layers if layer.weights]
        seen.append(
            [all(map(np.array_equal, x.get_weights(), begin[x.name])) for x in layers]
        )

    monkeypatch.setattr(
        history.HistoryFile,
        "on_epoch_end",
        _first(record, history.HistoryFile.on_epoch_end),
    )
    sizes, read = [], Dataset.train

    def record_size(self, step, *arguments):
        batches = read(self, step, *arguments)
        sizes.append((step, batches.element_spec[0].shape[1]))
        return batches

    monkeypatch.setattr(Dataset, "train", record_size)
    load, trainable = initial_weights.load_initial_weights, []

    def record_trainable(model, *arguments):
        trainable.extend(layer.trainable for layer in model.layers)
        load(model, *arguments)

    monkeypatch.setattr(initial_weights, "load_initial_weights", record_trainable)
    result = train(recipe, tmp_path / "whole", data_dir)
    assert sizes == [(0, 12), (4, 20)]
    assert evaluate(tmp_path / "whole")["top_1"] == pytest.approx(
        result["val_accuracy"], abs=1e-6
    )
    # A frozen LambdaLayer has its weights in another order.
    assert trainable and all(trainable)
    frozen, moved = [True] * 4 + [False], [False] * 5
    assert seen == [frozen, frozen, moved]

    save, compiled = callbacks.SaveCheckpoints.on_train_batch_end, []

    def stop(self, batch, logs=None):
        # Within the second epoch, and at its end.
        if int(self.model.optimizer.iterations) in (3, 4):
            signal.raise_signal(signal.SIGTERM)
        save(self, batch, logs)

    with monkeypatch.context() as patch:
        patch.setattr(callbacks.SaveCheckpoints, "on_train_batch_end", stop)
        for _ in range(2):
            with pytest.raises(Preempted):
                train(recipe, tmp_path / "resumed", data_dir)
    monkeypatch.setattr(
        run, "compile_model", _first(lambda *_: compiled.append(1), run.compile_model)
    )
    train(recipe, tmp_path / "resumed", data_dir)
    # The evaluation first.
    assert sizes[2:] == [(0, 12), (3, 12), (4, 20)] and len(compiled) == 2
    assert_same_run(tmp_path / "resumed", tmp_path / "whole")


def _first(function, then):
    def both(*args, **kwargs):
        function(*args, **kwargs)
        return then(*args, **kwargs)

    return both


def test_averages_start_at_initial_weights(tmp_path):
    """With a decay of almost 1, the averages after a step are the initial weights, not those of the build."""
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(3, use_bias=False)])
    optimizer = with_options(keras.optimizers.SGD)(
        0.1, use_ema=True, ema_momentum=1 - 1e-6
    )
    checkpoints = Checkpoints(tmp_path, model, optimizer)
    model.layers[0].kernel.assign(np.full([2, 3], 7.0))
    checkpoints.reset_averages()
    optimizer.apply([np.ones([2, 3], np.float32)], [model.layers[0].kernel])
    checkpoints.use_averages()
    np.testing.assert_allclose(model.layers[0].kernel, 7.0, atol=1e-5)


def test_first_adam_step_of_unfrozen_layers_is_the_rate(
    small_network, data_dir, tmp_path, monkeypatch
):
    """Its moments are corrected from the epoch in which they begin: a step of the rate for each weight."""
    weight_files.save(build_model(RECIPE), tmp_path / "start.safetensors")
    settings = {
        "start_from": str(tmp_path / "start.safetensors"),
        "freeze": "backbone",
        "unfreeze_epoch": 2,
    }
    settings |= {
        "optimizer": "adam",
        "learning_rate": 0.01,
        "schedule": "constant",
        "ema_decay": 0.0,
    }
    original, seen = callbacks.SaveCheckpoints.on_train_batch_end, []

    def record(self, batch, logs=None):
        seen.append(self.model.get_layer("conv32").get_weights()[0])
        original(self, batch, logs)

    monkeypatch.setattr(callbacks.SaveCheckpoints, "on_train_batch_end", record)
    train(dataclasses.replace(RECIPE, **settings), tmp_path / "run", data_dir)
    steps = [
        np.median(np.abs(after - before)) for before, after in itertools.pairwise(seen)
    ]
    assert steps[:3] == [0, 0, 0] and steps[3] == pytest.approx(0.01, rel=0.01)
