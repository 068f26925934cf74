# SPDX-License-Identifier: Apache-2.0
"""Frozen layers: neither weights nor batch statistics move, also in a resumed run; a second run moves them.

With adapters (LoRA), nothing else moves but the classifier, and a trained model has them merged.

The same run trains on images of another size than those of its evaluation.
"""

from dataclasses import replace

import keras
import numpy as np
import pytest
from refusals import refused
from training_runs import SHORT, assert_resumes, write_run

from lambdanet.models import zoo
from lambdanet.models.weights import weight_files
from lambdanet.training.evaluate import evaluate
from lambdanet.training.run import start
from lambdanet.training.run.build import (
    build_model,
)
from lambdanet.training.run.lora import enable_lora
from lambdanet.training.run.model_dir import load_trained_model
from lambdanet.training.train import train

RECIPE = replace(
    SHORT,
    train_split="train[:32]",
    ema_decay=0.5,
    warmup_epochs=0,
)


@pytest.fixture(scope="module")
def tiny():
    return zoo.create_model("lambda_resnet_tiny", num_classes=10)


def frozen(model, freeze):
    """The names of the layers that a recipe freezes."""
    recipe = replace(RECIPE, freeze=freeze, start_from="imagenet")
    return [layer.name for layer in start.frozen_layers(model, recipe)]


@pytest.mark.parametrize(
    ("freeze", "starts"),
    [
        ("stem*", ("stem",)),
        ("c2, c3_block1_reduce", ("c2_", "c3_block1_reduce_")),
        ("backbone", ("stem", "c")),
        ("c5_block1_spatial_norm,logits", ("c5_block1_spatial_norm", "logits")),
    ],
)
def test_patterns_name_layers_or_their_beginning(tiny, freeze, starts):
    weighted = [layer.name for layer in tiny.layers if layer.weights]
    expected = [name for name in weighted if name.startswith(starts)]
    assert sorted(frozen(tiny, freeze)) == sorted(expected)
    assert len(starts) <= len(expected) < len(weighted)


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
def test_patterns_that_cannot_be_used(tiny, freeze, message):
    with refused(message):
        frozen(tiny, freeze)


def moved_layers(model, source):
    """The names of the layers of which some weight or average is another one than in the source."""
    return [
        layer.name
        for layer, before in zip(model.layers, source.layers, strict=True)
        if not all(map(np.array_equal, layer.get_weights(), before.get_weights()))
    ]


@pytest.mark.jax
@pytest.mark.slow
def test_frozen_layers_move_in_a_second_run(small_network, data_dir, tmp_path):
    keras.utils.set_random_seed(1)
    source = build_model(RECIPE)
    initial = tmp_path / "initial.safetensors"
    weight_files.save(source, initial)
    recipe = replace(
        RECIPE,
        start_from=str(initial),
        freeze="backbone",
        training_size=12,
        epochs=2,
        optimizer="adam",
        learning_rate=0.01,
        schedule="constant",
    )
    whole = tmp_path / "whole"
    result = train(recipe, whole, data_dir)
    top_1 = evaluate(whole)["top_1"]
    assert top_1 == pytest.approx(result["val_accuracy"], abs=1e-6)
    trained, _ = load_trained_model(whole)
    assert moved_layers(trained, source) == ["logits"]

    # At the end of the first epoch, before its evaluation.
    assert_resumes(whole, tmp_path / "resumed", recipe, data_dir, on_train_batch_end=2)

    weight_files.save(trained, initial)
    second = replace(recipe, freeze="", training_size=20, epochs=1)
    train(second, tmp_path / "second", data_dir)
    again, _ = load_trained_model(tmp_path / "second")
    assert len(moved_layers(again, trained)) == 5


@pytest.mark.jax
@pytest.mark.slow
def test_adapters_train_and_are_merged(two_blocks, data_dir, tmp_path):
    source = write_run(tmp_path / "source", RECIPE)
    recipe = replace(
        RECIPE,
        start_from=str(tmp_path / "source"),
        lora_rank=2,
        optimizer="adam",
        learning_rate=0.01,
        label_smoothing=0,
        weight_decay=0,
        epochs=2,
    )
    whole = tmp_path / "whole"
    result = train(recipe, whole, data_dir)
    # The model of the run has adapters, and this one has other kernels.
    loss = evaluate(whole)["loss"]
    assert loss == pytest.approx(result["val_loss"], abs=1e-5)
    trained, _ = load_trained_model(whole)
    moved = set()
    for weight, value in zip(source.weights, trained.get_weights(), strict=True):
        change = value - keras.ops.convert_to_numpy(weight)
        if change.any():
            *_, layer, name = weight.path.split("/")
            moved.add(f"{layer}/{name}")
            if layer != "logits":
                assert np.linalg.matrix_rank(change, tol=1e-5) == 2
    # Squeeze-and-excitation in the block of a convolution, and the lambda layer.
    adapted = ("reduce", "expand", "queries", "keys", "values", "logits")
    assert moved == {"logits/bias", *(f"{x}/kernel" for x in adapted)}

    assert_resumes(whole, tmp_path / "resumed", recipe, data_dir, on_train_batch_end=1)


@pytest.mark.jax
def test_adapters_of_a_model_without_projections():
    recipe = replace(RECIPE, model="resnet_micro", start_from="imagenet", lora_rank=2)
    with refused("lora_rank must be 0 for resnet_micro, which has no proj.*, got 2"):
        enable_lora(build_model(recipe), recipe.lora_rank)
