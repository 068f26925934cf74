# SPDX-License-Identifier: Apache-2.0
"""Short runs of every kind of recipe on ImageNet and CIFAR-10, on TFDS datasets of a few generated images.

They use the recipe's settings for decoding, crops, RandAugment, precision, optimizer, schedule, averages,
smoothing and decay, with a small model; other tests train the models.
"""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow_datasets as tfds

from lambdanet import configs
from lambdanet.training.run import logs, model_dir
from lambdanet.training.run.build import WarmupSchedule
from lambdanet.training.train import train

IMAGES, BATCH = 16, 8
DATASETS = {"cifar10": ("train", "test"), "imagenet2012": ("train", "validation")}


# With each optimizer, loss, dataset and augmentation; `make weekly` has the other modules.
DAILY = {"cifar10", "halonet", "imagenet_90", "mobilenet", "rsb_a"}


def _one_row_of_each_module():
    rows = {}
    for name in configs.list_recipes():
        recipe = configs.get_recipe(name)
        if recipe.dataset in DATASETS and not recipe.pseudo_share:
            rows.setdefault(name.partition(":")[0], name)
    slow, weekly = pytest.mark.slow, pytest.mark.weekly
    return [
        pytest.param(name, marks=slow if module in DAILY else weekly)
        for module, name in rows.items()
    ]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Both datasets, as TFDS writes them, with random images of similar sizes."""
    path = str(tmp_path_factory.mktemp("data"))
    random = np.random.default_rng(0)

    def examples(builder):
        is_cifar = builder.name == "cifar10"
        for index in range(IMAGES):
            height, width = (32, 32) if is_cifar else random.integers(40, 90, 2)
            image = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
            name = {"id": str(index)} if is_cifar else {"file_name": f"{index}.JPEG"}
            yield index, {"image": image, "label": index % 10, **name}

    for name, splits in DATASETS.items():
        builder = tfds.builder(name, data_dir=path)
        generators = {split: examples(builder) for split in splits}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                type(builder), "_split_generators", lambda *_, made=generators: made
            )
            builder.download_and_prepare()
    return path


@pytest.mark.parametrize("name", _one_row_of_each_module())
def test_recipe_trains_and_loads(
    data_dir, two_operations, small_network, tmp_path, name
):
    whole = configs.get_recipe(name)
    recipe = dataclasses.replace(
        whole,
        global_batch_size=BATCH,
        epochs=1,
        warmup_epochs=0.5,
        input_size=32,
        train_split="train",
        held_out_split="",
        patience=0,
        zero_head=False,
        randaugment_layers=min(1, whole.randaugment_layers),  # each is a large graph
    )
    result = train(recipe, tmp_path, data_dir)
    assert result["step"] == IMAGES // BATCH
    classes = recipe.num_classes if recipe.loss == "cross_entropy" else 2
    # That of an untrained model is about math.log(classes).
    assert 0.5 * math.log(classes) < result["loss"] < math.inf

    (row,) = logs.read_history(tmp_path / "history.csv")
    rate = WarmupSchedule(recipe.learning_rate, 2, 1, recipe.schedule)(1)
    assert float(row["learning_rate"]) == pytest.approx(float(rate), rel=1e-3)
    model, loaded = model_dir.load_trained_model(tmp_path)
    assert loaded == recipe
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
