# SPDX-License-Identifier: Apache-2.0
"""Short runs of every kind of recipe on ImageNet and CIFAR-10, on TFDS datasets of a few generated images.

They use the recipe's settings for decoding, crops, RandAugment, precision, optimizer, schedule, averages,
smoothing and decay, with a small model; other tests train the models.
"""

import dataclasses
import math

import keras
import numpy as np
import pytest
import tensorflow_datasets as tfds

from lambdanet import configs
from lambdanet.training.run import history, model_dir
from lambdanet.training.run.schedules import WarmupSchedule
from lambdanet.training.train import train

IMAGES, BATCH = 16, 8
DATASETS = {"cifar10": ("train", "test"), "imagenet2012": ("train", "validation")}


def _one_row_of_each_module():
    rows = {}
    for name in configs.list_recipes():
        recipe = configs.get_recipe(name)
        if recipe.dataset in DATASETS and not recipe.pseudo_share:
            rows.setdefault(name.partition(":")[0], name)
    return list(rows.values())


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Both datasets, as TFDS writes them, with random images of similar sizes."""
    path = str(tmp_path_factory.mktemp("data"))
    random = np.random.default_rng(0)

    def examples(builder):
        for index in range(IMAGES):
            shape = (
                (32, 32, 3)
                if builder.name == "cifar10"
                else tuple(random.integers(40, 90, 2)) + (3,)
            )
            image = random.integers(0, 256, shape, dtype=np.uint8)
            name = (
                {"id": str(index)}
                if builder.name == "cifar10"
                else {"file_name": f"{index}.JPEG"}
            )
            yield index, {"image": image, "label": index % 10, **name}

    with pytest.MonkeyPatch.context() as patch:
        for name, splits in DATASETS.items():
            builder = tfds.builder(name, data_dir=path)
            made = dict.fromkeys(splits, examples)
            patch.setattr(
                type(builder),
                "_split_generators",
                lambda self, *_, made=made: {
                    split: make(self) for split, make in made.items()
                },
            )
            builder.download_and_prepare()
    return path


def _small_model(
    name, num_classes, input_size, dropout_rate, kernel_regularizer, batch_norm, **_
):
    images = keras.Input([input_size, input_size, 3])
    x = keras.layers.Conv2D(
        8, 3, strides=4, kernel_regularizer=kernel_regularizer, name="conv"
    )(images)
    x = keras.layers.ReLU()(
        keras.layers.BatchNormalization(**batch_norm, name="norm")(x)
    )
    x = keras.layers.Dropout(dropout_rate)(keras.layers.GlobalAveragePooling2D()(x))
    x = keras.layers.Dense(
        num_classes, kernel_regularizer=kernel_regularizer, name="logits"
    )(x)
    return keras.Model(
        images, keras.layers.Activation("linear", dtype="float32")(x), name=name
    )


@pytest.mark.parametrize("name", _one_row_of_each_module())
def test_recipe_trains_and_loads(data_dir, two_operations, tmp_path, monkeypatch, name):
    monkeypatch.setattr("lambdanet.training.run.build.zoo.create_model", _small_model)
    whole = configs.get_recipe(name)
    recipe = dataclasses.replace(
        whole,
        **{
            "global_batch_size": BATCH,
            "epochs": 1,
            "warmup_epochs": 0.5,
            "input_size": 32,
        },
        **{
            "train_split": "train",
            "held_out_split": "",
            "patience": 0,
            "zero_head": False,
        },
        randaugment_layers=min(1, whole.randaugment_layers),  # each is a large graph
    )
    result = train(recipe, tmp_path, data_dir)
    assert result["step"] == IMAGES // BATCH and math.isfinite(result["loss"])
    classes = {"cross_entropy": recipe.num_classes, "binary_cross_entropy": 2}[
        recipe.loss
    ]
    # That of an untrained model is about math.log(classes).
    assert result["loss"] > 0.5 * math.log(classes)

    (row,) = history.read_history(tmp_path / "history.csv")
    rate = WarmupSchedule(recipe.learning_rate, 2, 1, recipe.schedule)(1)
    assert float(row["learning_rate"]) == pytest.approx(float(rate), rel=1e-3)
    model, loaded = model_dir.load_trained_model(tmp_path)
    assert loaded == recipe and model.count_params() > 0
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
