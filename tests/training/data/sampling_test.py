# SPDX-License-Identifier: Apache-2.0
"""Pictures of training drawn by their classes: rounds counted by hand, batches, resumption and refusals."""

import numpy as np
import pytest
from helpers import assert_equal_batches, noise, write_picture
from picture_sources import write_parquet
from refusals import refused
from training_runs import open_dataset, recipe_with

from lambdanet.training.data.sources import (
    Shard,
    draw_balanced,
    places_of_classes,
)

RECIPE = recipe_with(
    "folder",
    input_size=8,
    global_batch_size=4,
    epochs=3,
    warmup_epochs=0,
    randaugment_layers=0,
    augmentation="crop_flip",
    sampling="balanced",
)


def test_each_class_is_drawn_alike_in_rounds_of_its_pictures():
    classes = [np.array([4]), np.array([0, 2, 5]), np.arange(10, 20)]
    drawn = draw_balanced(classes, 3000, np.array([1, 0, 0]))
    assert len(drawn) == 3000
    for pictures in classes:
        of_class = drawn[np.isin(drawn, pictures)]
        assert 900 < len(of_class) < 1100
        count = len(of_class) // len(pictures)
        rounds = of_class[: count * len(pictures)].reshape(count, -1)
        np.testing.assert_array_equal(np.sort(rounds), [pictures] * count)
        if len(pictures) > 1:
            assert len(np.unique(rounds, axis=0)) > 5
    assert len(draw_balanced(classes, 1, np.array([1, 0, 0]))) == 1


def test_pictures_without_a_label_are_one_more_class():
    unknown = np.nan
    labels = [[1, 0, 0], [0, unknown, 0], [1, 1, 0], [0, 0, 0]]
    found = [places.tolist() for places in places_of_classes(labels)]
    assert found == [[0, 2], [2], [1, 3]]
    found = [places.tolist() for places in places_of_classes([2, 0, 2])]
    assert found == [[1], [0, 2]]


@pytest.fixture
def root(tmp_path):
    """18 pictures of cats and two of dogs, of another size each."""
    for name, count in (("cat", 18), ("dog", 2)):
        for number in range(count):
            for split in ("train", "validation"):
                path = tmp_path / split / name / f"{number}.png"
                write_picture(path, noise(20 + number, 24, 3))
    return tmp_path


@pytest.mark.jax
def test_batches_are_balanced_and_resumed(root):
    dataset = open_dataset(RECIPE, root)
    batches = list(dataset.train())
    assert len(batches) == 3 * 5
    labels = np.concatenate([label for _, label in batches])
    assert 20 <= labels.sum() <= 40
    views = {image.tobytes() for images, _ in batches for image in images.numpy()}
    assert len(views) == 60
    assert_equal_batches(dataset.train(7), batches[7:])
    assert_equal_batches(open_dataset(RECIPE, root).train(), batches)
    orders = []
    for seed, number in ((0, 0), (0, 1), (1, 0)):
        source = open_dataset(RECIPE, root, seed=seed).source
        examples = source.examples("train", np.int64(number)).as_numpy_iterator()
        orders.append([example["name"] for example in examples])
    assert len(np.unique(orders, axis=0)) == 3


def test_machines_draw_their_own_pictures(root):
    source = open_dataset(RECIPE, root).source
    orders = []
    for index in range(2):
        shard = Shard(index, 2)
        own = {row.picture for row in source.rows("train")[index::2]}
        examples = source.examples("train", np.int64(0), shard).as_numpy_iterator()
        names = [example["name"].decode() for example in examples]
        assert len(names) == 10 and own >= set(names)
        orders.append(["dog" in name for name in names])
    assert orders[0] != orders[1]
    in_order = source.examples("train", None).as_numpy_iterator()
    assert [example["label"] for example in in_order] == [0] * 18 + [1] * 2


def test_sampling_is_refused_where_it_cannot_be(root, tmp_path):
    for changes, message in (
        ({"task": "segmentation"}, "shuffled without the tasks classification and mul"),
        ({"class_weights": "balanced"}, "shuffled with balanced weights, or rare"),
        (
            {"sampling": "often"},
            "unknown sampling 'often'; accepted: balanced, shuffled",
        ),
    ):
        with refused(message):
            open_dataset(RECIPE, root, **changes)
    (tmp_path / "tables").mkdir()
    changes = write_parquet(tmp_path / "tables")
    with refused("sampling must be shuffled: labels of folder are read with the image"):
        open_dataset(RECIPE, tmp_path / "tables", **changes)
