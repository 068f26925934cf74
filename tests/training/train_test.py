# SPDX-License-Identifier: Apache-2.0
"""Complete training runs: reproducible weights, also after interruptions, and refused runs."""

import collections
import os
import signal
from dataclasses import replace

import keras
import numpy as np
import pytest
from picture_sources import write_folder
from refusals import refused
from training_runs import (
    IN_FOLDERS,
    RUN_FILES,
    SHORT,
    act_at,
    assert_same_run,
    saved_steps,
    send_sigterm,
    times_of_files,
)

from lambdanet import LambdaLayer
from lambdanet.core.errors import Preempted
from lambdanet.training.evaluate import evaluate
from lambdanet.training.run import build, logs, model_dir
from lambdanet.training.train import train

pytestmark = pytest.mark.usefixtures("one_block")

RECIPE = replace(
    SHORT,
    dropout_rate=0.3,
    stochastic_depth_rate=0.3,
    ema_decay=0.5,
    mixup_alpha=0.2,
    cutmix_alpha=1.0,
    random_erasing=0.25,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data_dir, one_block):
    """A complete run, and the result of `train`."""
    path = tmp_path_factory.mktemp("finished")
    return path, train(RECIPE, path, data_dir)


@pytest.mark.slow
def test_run_lists_each_class_folder_once(small_network, tmp_path, monkeypatch):
    write_folder(tmp_path, 12)
    folders = [*tmp_path.glob("*/*")]
    listed = collections.Counter()
    scandir = os.scandir

    def record(path="."):
        listed[str(path)] += 1
        return scandir(path)

    monkeypatch.setattr(os, "scandir", record)
    recipe = replace(IN_FOLDERS, epochs=2, global_batch_size=4)
    assert train(recipe, tmp_path / "run", str(tmp_path))["step"] == 6
    assert [listed[str(folder)] for folder in folders] == [1] * 6


@pytest.mark.jax
def test_run_writes_recipe_checkpoints_history_and_logs(finished):
    path, result = finished
    assert sorted(file.name for file in path.iterdir()) == RUN_FILES
    rows = logs.read_history(path / "history.csv")
    ends = [4, 8, 12]
    assert [int(row["step"]) for row in rows] == ends
    assert saved_steps(path) == ends
    assert (result["epoch"], result["step"]) == (3, 12)
    assert result["val_accuracy"] == float(rows[-1]["val_accuracy"])


@pytest.mark.jax
@pytest.mark.slow
def test_resumed_run_has_same_dropout(finished, data_dir, tmp_path, monkeypatch):
    """Stops after step 6, then at once in the evaluation of the second epoch, which is repeated."""
    before = signal.getsignal(signal.SIGTERM)
    for event, step in [("on_train_batch_end", 6), ("on_test_batch_end", 8)]:
        with monkeypatch.context() as patch:
            act_at(patch, [step], send_sigterm, event)
            message = f"stopped by SIGTERM at step {step}, which is saved"
            with refused(message, Preempted):
                train(RECIPE, tmp_path, data_dir)
        assert len(logs.read_history(tmp_path / "history.csv")) == 1
    assert saved_steps(tmp_path) == [4, 6, 8]
    assert signal.getsignal(signal.SIGTERM) is before
    train(RECIPE, tmp_path, data_dir)
    assert_same_run(tmp_path, finished[0])


@pytest.mark.jax
def test_finished_run_finds_its_data_and_is_unchanged(finished, data_dir, capsys):
    path, result = finished
    assert (path / "data_dir.txt").read_text() == f"{data_dir}\n"
    before = times_of_files(path)
    assert train(RECIPE, path) == result
    assert (
        f"finished already: lambda_resnet_tiny on digits in {path}, 3 epochs"
        in capsys.readouterr().out
    )
    assert times_of_files(path) == before


@pytest.mark.jax
@pytest.mark.slow
def test_averages_and_bfloat16_train_and_load(data_dir, tmp_path):
    recipe = replace(
        RECIPE, epochs=1, mixed_precision=True, optimizer="adam", learning_rate=1e-3
    )
    result = train(recipe, tmp_path, data_dir)
    assert keras.mixed_precision.global_policy().name == "float32"
    model, _ = model_dir.load_trained_model(tmp_path)
    assert {weight.dtype for weight in model.get_weights()} == {np.dtype("float32")}
    top_1 = evaluate(tmp_path, data_dir)["top_1"]
    assert top_1 == pytest.approx(result["val_accuracy"], abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": "lambda_resnet_tny"},
            "unknown model 'lambda_resnet_tny'; did you mean lambda_resnet_tiny",
        ),
        (
            {"zero_head": True},
            "start_from must be weights to fine-tune, with zero_head, got ''",
        ),
        ({"start_from": "/none"}, "start_from must be a model_dir .*, got '/none'"),
        (
            {"start_from": "/none", "freeze": "c9"},
            "freeze must be backbone, or layers of lambda_resnet_tiny",
        ),
        ({"model_options": {"scop": 7}}, "no option 'scop'; its options: "),
        (
            {"model_options": {"num_classes": 7}},
            "options of the model's layers, got 'num_classes'",
        ),
        (
            {"optimizer_options": {"rho": 0.9}},
            "unknown option of optimizer sgd 'rho'; accepted: nesterov",
        ),
        (
            {"optimizer_options": {"nesterov": "no"}},
            r"\['nesterov'\] must be true or false, got 'no'",
        ),
        ({"global_batch_size": 65}, "global_batch_size must be at most 64, .*, got 65"),
    ],
)
def test_rejected_run_writes_nothing(data_dir, tmp_path, changes, message):
    with refused(message):
        train(replace(RECIPE, **changes), tmp_path / "run", data_dir)
    assert not list(tmp_path.iterdir())


@pytest.mark.jax
def test_weight_decay_of_kernels_only():
    model = build.build_model(replace(RECIPE, weight_decay=0.2))
    kernels = [v for v in model.trainable_variables if "kernel" in v.name]
    assert 0 < len(kernels) < len(model.trainable_variables)
    expected = 0.1 * sum(np.square(kernel).sum() for kernel in kernels)
    assert float(sum(model.losses)) == pytest.approx(expected, rel=1e-5)
    assert not build.build_model(replace(RECIPE, weight_decay=0.0)).losses


@pytest.mark.jax
def test_positions_and_statistics_of_recipe():
    recipe = replace(RECIPE, position_stddev=0.01, bn_momentum=0.7)
    layers = build.build_model(recipe)._flatten_layers()
    tables = [np.array(x.position.table) for x in layers if isinstance(x, LambdaLayer)]
    assert tables
    for table in tables:
        assert 0.005 < table.std() < 0.02  # of hundreds of draws
    norms = [x for x in layers if isinstance(x, keras.layers.BatchNormalization)]
    assert {norm.momentum for norm in norms} == {0.7}
    with refused("'resnet_50' has no option 'embeddings_initializer'"):
        build.build_model(replace(recipe, model="resnet_50"))


@pytest.mark.jax
@pytest.mark.parametrize(
    ("optimizer", "attribute", "options"),
    [
        ("sgd", "momentum", {"nesterov": True}),
        ("adam", "beta_1", {"beta_2": 0.9999}),
        ("rmsprop", "momentum", {"rho": 0.8, "epsilon": 1.0}),
    ],
)
def test_optimizer_of_recipe(optimizer, attribute, options):
    recipe = replace(
        RECIPE,
        optimizer=optimizer,
        optimizer_options=options,
        momentum=0.8,
        ema_decay=0.99,
    )
    built = build.build_optimizer(recipe, [keras.Variable(1.0)], steps_per_epoch=10)
    assert getattr(built, attribute) == 0.8
    assert {name: getattr(built, name) for name in options} == options
    assert not built.use_ema  # or the averages replace the weights
