# SPDX-License-Identifier: Apache-2.0
"""Masks: what is read, their loss and metric, and a run up to its predictions."""

import shutil
from dataclasses import replace

import keras
import numpy as np
import pytest
from helpers import write_picture
from keras import layers
from numpy.random import default_rng
from numpy.testing import assert_array_equal
from PIL import Image
from refusals import refused
from sklearn.metrics import jaccard_score
from training_runs import (
    IN_FOLDERS,
    ON_TENSORFLOW,
    assert_resumes,
    open_dataset,
    recipe_with,
    write_run,
)

import lambdanet
from lambdanet.training.evaluate import evaluate
from lambdanet.training.run.build import build_model
from lambdanet.training.serving.predict import predict
from lambdanet.training.tasks.losses import MaskIoU, MaskLoss
from lambdanet.training.train import train

pytestmark = pytest.mark.usefixtures("two_blocks")

COLORS = np.array([[40, 40, 40], [220, 30, 30], [30, 220, 30], [30, 30, 220]], np.uint8)
NAMES = ["background", "red", "green", "blue"]
RECIPE = replace(
    IN_FOLDERS,
    task="segmentation",
    model_options={"filters": 8, "low_level_filters": 4, "dilation_rates": (1,)},
    augmentation="crop_flip",
    loss="cross_entropy_dice",
    class_weights="balanced",
    label_smoothing=0.0,
    learning_rate=0.02,
    global_batch_size=8,
)


def draw_mask(random, height, width):
    """Returns rectangles of all classes, with a frame that is ignored."""
    mask = np.zeros([height, width], np.uint8)
    for number in (1, 2, 3):
        top, left = random.integers(0, [height - 8, width - 8])
        mask[top : top + 8, left : left + 8] = number
    mask[0] = 255
    return mask


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Pictures of two sizes, 32 and 12 of them, of which each class has a color; masks have a palette."""
    root = tmp_path_factory.mktemp("pictures")
    random = default_rng(0)
    for split, count in (("train", 32), ("validation", 12)):
        (root / split / "masks").mkdir(parents=True)
        for number in range(count):
            mask = draw_mask(random, 24, 20 + 8 * (number % 2))
            file = root / split / f"images/{number}.png"
            write_picture(file, COLORS[mask % 255])
            palette = Image.fromarray(mask)
            palette.putpalette(list(range(256)) * 3)
            palette.save(root / split / f"masks/{number}.png")
    (root / "classes.txt").write_text("\n".join(NAMES) + "\n")
    return root


@pytest.fixture(scope="module")
def run(pictures, tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    train(RECIPE, path, str(pictures))
    return path


def read_mask(path):
    return np.asarray(Image.open(path))


def test_whole_pictures_and_held_out_ones(pictures, tmp_path, capsys):
    for folder in ("images", "masks"):
        shutil.copytree(pictures / "train" / folder, tmp_path / folder)
    shutil.copy(pictures / "classes.txt", tmp_path)
    shutil.copytree(tmp_path / "images", tmp_path / "test/images")  # without masks
    dataset = open_dataset(RECIPE, tmp_path)
    dataset.check()
    assert "no folder 'validation'" in capsys.readouterr().out
    assert [dataset.num_examples(split) for split in ("train", "validation")] == [26, 6]
    shapes = set()
    for name, (images, labels) in zip(
        dataset.source.made_from_training, dataset.eval(whole=True), strict=True
    ):
        shapes.add(images.shape[1:3])
        expected = read_mask(tmp_path / name.replace("images", "masks"))
        assert_array_equal(labels[0], expected)
    assert shapes == {(24, 20), (24, 28)}
    counts = np.zeros(256)
    for mask in (tmp_path / "masks").iterdir():
        if f"images/{mask.name}" not in dataset.source.made_from_training:
            counts += np.bincount(read_mask(mask).ravel(), minlength=256)
    counts = counts[:4]
    np.testing.assert_allclose(dataset.class_weights, counts.sum() / (4 * counts))


def test_table_of_masks(pictures, tmp_path):
    rows = [
        f"{split}/images/{number}.png,{split}/masks/{number}.png,{split}"
        for split in ("train", "validation")
        for number in range(12)
    ]
    table = tmp_path / "masks.csv"
    table.write_text("\n".join(["file,mask,split", *rows]))
    dataset = open_dataset(RECIPE, pictures, labels=str(table))
    dataset.check()
    ((_, labels), *_) = dataset.eval(whole=True)
    assert_array_equal(labels[0], read_mask(pictures / "validation/masks/0.png"))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("mixup_alpha", 1.0, "mixup_alpha must be left out with the task segm"),
        (
            "loss",
            "binary_cross_entropy",
            "loss must be cross_entropy or dice or .* got .bin",
        ),
    ],
)
def test_fields_of_other_tasks_are_rejected(field, value, message):
    with refused(message):
        replace(RECIPE, **{field: value})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "classification"}, "model must be one for classification, got 'u"),
        ({"layer_decay": 0.5}, "layer_decay must be 1 with unet_2d, which has no"),
        ({"model": "unet_3d"}, "model must be one for pictures, got 'unet_3d'"),
    ],
)
def test_unets_are_refused_elsewhere(fields, message):
    plain = {"model": "unet_2d", "num_classes": 2}
    with refused(message):
        build_model(recipe_with("segment", **{**plain, **fields}))


@pytest.mark.jax
@pytest.mark.parametrize("loss", ["cross_entropy", "dice", "cross_entropy_dice"])
def test_loss_is_that_of_a_loop_over_pixels(loss):
    random = default_rng(0)
    labels = random.integers(0, 4, [3, 4, 5])
    labels[0, :2] = 255
    labels[2] = 255
    logits = random.normal(size=[3, 4, 5, 4]).astype(np.float32)
    weights = np.array([1.0, 2.0, 0.5, 0.0])
    function = MaskLoss(0.1, weights, loss, reduction=None)
    found = keras.ops.convert_to_numpy(function(labels, logits))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for picture, total in enumerate(found):
        known = labels[picture] != 255
        classes = labels[picture][known]
        targets = np.eye(4)[classes]
        scores = p[picture][known]
        expected = 0
        if "cross" in loss and known.any():
            smooth = 0.9 * targets + 0.1 / 4
            losses = -np.sum(smooth * np.log(scores), -1) * weights[classes]
            expected += losses.mean()
        if "dice" in loss:
            common = 2 * np.sum(scores * targets, 0) + 1
            missed = 1 - common / (np.sum(scores + targets, 0) + 1)
            expected += np.average(missed, weights=weights)
        assert total == pytest.approx(expected, abs=1e-5)
    assert found[2] == 0
    assert MaskLoss.from_config(function.get_config()).get_config()["loss"] == loss


@pytest.mark.jax
def test_iou_is_that_of_a_confusion_matrix():
    random = default_rng(0)
    labels = random.integers(0, 3, [6, 4, 5])
    labels[:, 0] = 255
    logits = random.normal(size=[6, 4, 5, 4]).astype(np.float32)
    metric = MaskIoU(4)
    weights = np.array([1.5, 1.5, 0.0])
    for part in np.split(np.arange(6), 2):
        metric.update_state(labels[part], logits[part], sample_weight=weights)
    kept = np.array([0, 1, 3, 4])
    found = logits[kept].argmax(-1)
    known = labels[kept] != 255
    expected = jaccard_score(labels[kept][known], found[known], average="macro")
    assert float(metric.result()) == pytest.approx(expected)


def write_pictures(root, images, masks):
    """Writes the same pictures for training and validation."""
    for split in ("train", "validation"):
        for folder, arrays in (("images", images), ("masks", masks)):
            for number, array in enumerate(arrays):
                write_picture(root / split / folder / f"{number}.png", array)
    (root / "classes.txt").write_text("\n".join(NAMES))


def segmenter_of_colors(name, num_classes, **_):
    """A network without weights: the logits are red, green, blue and those of black."""
    images = keras.Input([None, None, 3])
    black = 0 * images[..., :1] - 2
    return keras.Model(images, keras.ops.concatenate([images, black], -1))


def test_evaluation_is_a_count_by_hand(tmp_path, monkeypatch, capsys):
    """Of two pictures, with a pixel that is ignored in each, and a class that is in none."""
    masks = ([[0, 0, 1], [1, 2, 255]], [[0, 1], [2, 255]])
    found = ([[0, 1, 1], [1, 2, 0]], [[0, 2], [2, 1]])
    images = [255 * np.eye(3)[np.array(classes)] for classes in found]
    write_pictures(tmp_path, images, masks)
    monkeypatch.setattr("lambdanet.models.deeplab.create_deeplab", segmenter_of_colors)
    recipe = replace(RECIPE, num_classes=4)
    write_run(tmp_path / "run", recipe, NAMES, str(tmp_path))
    result = evaluate(tmp_path / "run", out=tmp_path / "out")
    per_class = "\n  background 67 %\n  red 50 %\n  green 67 %\nper class:"
    assert per_class in capsys.readouterr().out
    assert result["mean_iou"] == pytest.approx((2 / 3 + 2 / 4 + 2 / 3) / 3)
    # The logits are 2 and -2; six of eight pixels are right.
    loss = np.log(np.exp(2) + 3 * np.exp(-2)) - (6 * 2 - 2 * 2) / 8
    assert result["loss"] == pytest.approx(loss, rel=1e-5)
    assert (tmp_path / "out/classes.csv").read_text().split() == [
        "class,name,iou,pixels",
        f"0,background,{2 / 3},3",
        f"1,red,{2 / 4},3",
        f"2,green,{2 / 3},2",
        "3,blue,nan,0",
    ]


@pytest.mark.jax
@pytest.mark.slow
def test_stopped_run_resumes_to_same_weights(run, pictures, tmp_path):
    assert_resumes(
        run, tmp_path, RECIPE, str(pictures), on_train_batch_end=2, on_test_batch_end=8
    )


def segmenter_of_windows(name, num_classes, **_):
    """A network that sees all of its window, in each of which its logits are others."""
    images = keras.Input([None, None, 3])
    large = keras.initializers.RandomNormal(stddev=4.0, seed=3)
    mean = layers.GlobalAveragePooling2D(keepdims=True)(images)
    x = layers.Conv2D(num_classes, 3, padding="same", name="near")(images)
    x += layers.Dense(num_classes, kernel_initializer=large, name="far")(mean)
    return keras.Model(images, x)


@ON_TENSORFLOW
@pytest.mark.parametrize("windows", [{}, {"window": 72, "overlap": 16}])
def test_windows_are_joined_by_their_logits(windows, tmp_path, monkeypatch):
    """In evaluation and in predictions of an export, as by `sliding_window` of the network."""
    from lambdanet.training.serving.export import export

    random = default_rng(0)
    shades = np.linspace(0, 200, 112)[:, np.newaxis] * [1, 0.5, 0.2]
    image = (shades + random.integers(0, 56, [80, 112, 3])).astype(np.uint8)
    mask = random.integers(0, 4, [80, 112], np.uint8)
    mask[:9] = 255
    write_pictures(tmp_path, [image], [mask])
    monkeypatch.setattr("lambdanet.models.deeplab.create_deeplab", segmenter_of_windows)
    recipe = replace(RECIPE, num_classes=4)
    run = tmp_path / "run"
    model = write_run(run, recipe, NAMES, str(tmp_path))
    inputs = np.float32((image[np.newaxis] / 255 - 0.5) / 0.25)
    logits = np.array(model(inputs))[0]
    if windows:
        logits = lambdanet.sliding_window(model, inputs, **windows)[0]
    known = logits[9:]
    chosen = np.take_along_axis(known, mask[9:, :, np.newaxis], -1)[..., 0]
    loss = np.mean(np.logaddexp.reduce(known, -1) - chosen)
    iou = jaccard_score(
        mask[9:].ravel(), known.argmax(-1).ravel(), average="macro", zero_division=0
    )
    result = evaluate(run, **windows)
    assert result["loss"] == pytest.approx(loss, rel=1e-5)
    assert result["mean_iou"] == pytest.approx(iou)
    export(run, tmp_path / "served")
    predict(tmp_path / "served", tmp_path / "train/images", out=tmp_path, **windows)
    found = read_mask(tmp_path / "0_mask.png")
    assert_array_equal(found, logits.argmax(-1))


@ON_TENSORFLOW
def test_pictures_of_an_export_keep_their_size(tmp_path):
    """Those of its comparison are windows; of stripes of a pixel, a smaller picture would be gray."""
    from lambdanet.training.serving import comparison

    stripes = np.full([48, 80, 3], 10, np.uint8)
    stripes[:, ::2] = 181
    write_pictures(tmp_path, [stripes] * 3, [stripes[..., 0] // 181] * 3)
    dataset = open_dataset(RECIPE, tmp_path, input_size=32, num_classes=4)
    found = comparison.evaluation_pictures(dataset).images
    assert_array_equal(found, [stripes[8:40, 24:56]] * 3)


@ON_TENSORFLOW
@pytest.mark.slow
def test_overlays_and_masks_of_a_runtime(run, served, pictures, tmp_path):
    from lambdanet.training.serving.export import Options, export

    predict(served, pictures / "validation/images", out=tmp_path)
    assert len(list(tmp_path.glob("*_overlay.png"))) == 12
    parity = export(run, tmp_path / "lite", options=Options("litert"))
    assert parity.num_images == 8 * 16 * 16
    assert parity.num_equal == parity.num_images


@ON_TENSORFLOW
@pytest.mark.slow
def test_masks_and_windows_are_refused_elsewhere(served, pictures, color_teacher):
    from lambdanet.training.serving.exported_model import load_classifier

    image = pictures / "train/images/0.png"
    with refused("it finds masks"):
        load_classifier(served)
    with refused("window must be left out, unless for masks, got 8"):
        predict(color_teacher, image, window=8)
    with refused("out must be a folder, for masks"):
        predict(served, image, out="found.csv")
