# SPDX-License-Identifier: Apache-2.0
"""Pictures in folders, from training to prediction, and invalid folders."""

import dataclasses
import os
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import lambdanet
from lambdanet import cli, configs
from lambdanet.configs.registry import pretrained_weights
from lambdanet.errors import InputError
from lambdanet.models.weights import weight_files
from lambdanet.training.data import preprocess
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.image_files import read_image
from lambdanet.training.run import initial_weights, model_dir
from lambdanet.training.run.build import build_model

pytestmark = pytest.mark.usefixtures("one_block")

SMALL = {
    **{
        "model": "lambda_resnet_tiny",
        "input_size": 32,
        "global_batch_size": 8,
        "epochs": 6,
    },
    **{
        "learning_rate": 0.05,
        "warmup_epochs": 1.0,
        "randaugment_layers": 0,
        "dropout_rate": 0.0,
    },
}
RECIPE = dataclasses.replace(configs.get_recipe("folder"), **SMALL)
COLORS = {"blue sky": (40, 60, 220), "red": (220, 50, 40)}


def _write(folder, count, seed, size=(48, 40)):
    """Writes noisy pictures with a color per class."""
    random = np.random.default_rng(seed)
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = np.clip(random.normal(color, 40, (*size, 3)), 0, 255).astype(
                np.uint8
            )
            ending = ("jpg", "PNG", "jpeg")[index % 3]
            Image.fromarray(pixels).save(folder / name / f"{index:02d}.{ending}")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    _write(root / "train", 16, seed=0)
    _write(root / "validation", 5, seed=1)
    (root / "train" / "red" / ".DS_Store").write_text("no picture")
    (root / "train" / "red" / "notes.txt").write_text("no picture")
    return root


@pytest.fixture(scope="module")
def trained(pictures, tmp_path_factory):
    """A model_dir of the command."""
    path = tmp_path_factory.mktemp("run")
    words = [f"--set={name}={value}" for name, value in SMALL.items()]
    command = [
        "train",
        "--recipe=folder",
        f"--data_dir={pictures}",
        f"--model_dir={path}",
        *words,
    ]
    assert cli.main(command) == 0
    return path


def test_classes_of_folders(trained):
    assert model_dir.load_recipe(trained).num_classes == 2
    assert model_dir.class_names(trained) == list(COLORS)


def test_evaluate_export_and_predict(trained, pictures, tmp_path, capsys):
    assert (
        cli.main(["evaluate", f"--model_dir={trained}", f"--data_dir={pictures}"]) == 0
    )
    assert "folder validation: 10 images, top-1 100.00 %" in capsys.readouterr().out
    assert (
        cli.main(["export", f"--model_dir={trained}", f"--out={tmp_path / 'model'}"])
        == 0
    )
    picture = str(pictures / "validation" / "blue sky" / "00.jpg")
    assert cli.main(["predict", f"--saved_model={tmp_path / 'model'}", picture]) == 0
    first = capsys.readouterr().out.splitlines()[-2]
    assert first.split("  ")[1] == "blue sky"


def test_other_classes_are_rejected(trained, tmp_path, capsys):
    for name in ("blue sky", "green"):
        for split in ("train", "validation"):
            (tmp_path / split / name).mkdir(parents=True)
    assert (
        cli.main(["evaluate", f"--model_dir={trained}", f"--data_dir={tmp_path}"]) == 2
    )
    said = capsys.readouterr().err
    assert (
        "class 1 of the data must be 'red', as in " in said
        and ", got 'green'\n" in said
    )


def _values(model):
    return {
        name: variable.numpy()
        for name, variable in weight_files.weights_by_name(model).items()
    }


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("start", ["model_dir", "net.safetensors"])
def test_start_from_with_new_head(trained, tmp_path, start, num_classes):
    """The classifier starts at zero, or at random for other classes; a dropout has no weights."""
    source, _ = model_dir.load_trained_model(trained)
    weight_files.save(source, tmp_path / "net.safetensors")
    path, dropout = (trained, 0.2) if start == "model_dir" else (tmp_path / start, 0.0)
    for zero_head in (True, False):
        model = build_model(
            dataclasses.replace(RECIPE, num_classes=num_classes, dropout_rate=dropout)
        )
        fresh, wanted = _values(model), _values(source)
        initial_weights.load_initial_weights(model, path, zero_head=zero_head)
        for name, value in _values(model).items():
            expected = (
                fresh if name.startswith("logits") and num_classes == 3 else wanted
            )
            zero = zero_head and name.startswith("logits")
            np.testing.assert_array_equal(value, expected[name] * (1 - zero))


def test_recipes_have_preprocessing_of_their_weights():
    for one in pretrained_weights.WEIGHTS:
        recipe = configs.get_recipe(f"finetune:{one.model}")
        assert (recipe.model, recipe.start_from, recipe.num_classes) == (
            one.model,
            one.tag,
            0,
        )
        assert preprocess.of_recipe(recipe) == lambdanet.preprocess_for(one.model)


def test_weights_of_other_model_are_rejected(trained):
    other = build_model(
        dataclasses.replace(RECIPE, num_classes=2, model_options={"scope": 3})
    )
    with pytest.raises(
        InputError,
        match=r"start_from .* does not fit 'lambda.*: c5.* has the shape .*, not",
    ):
        initial_weights.load_initial_weights(other, trained)
    with pytest.raises(
        InputError, match="start_from must be an existing .* got 'none.safetensors'"
    ):
        initial_weights.load_initial_weights(other, "none.safetensors")
    other = keras.Sequential([keras.Input([2]), keras.layers.Dense(2)], name="small")
    with pytest.raises(
        InputError,
        match=r"model in start_from .* must be small, got 'lambda_resnet_tiny'",
    ):
        initial_weights.load_initial_weights(other, trained)


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ([], "data_dir must be .* with train/CLASS.*, got .*; it has no folders"),
        (
            ["cats", "dogs"],
            "unknown split in .* 'train'; .*cats, dogs; .*put them into '.*/train'",
        ),
        (
            ["train/cat", "validation/cat"],
            "classes in .*train' must be two or more folders, got .'cat'",
        ),
        (
            ["train/cat", "train/dog"],
            "split of dataset folder must be .* got 'validation'",
        ),
        (
            ["train/cat", "train/dog", "validation/cow"],
            "unknown class in .*validation' 'cow'; .*cat",
        ),
        (
            ["train/cat", "train/dog", "validation/dog"],
            "split of dataset folder must be .* got 'validation'",
        ),
    ],
)
def test_invalid_folders_are_rejected_in_one_line(tmp_path, folders, message):
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(InputError, match=message) as caught:
        recipe = Dataset.open(RECIPE, str(tmp_path)).recipe
        Dataset.open(recipe, str(tmp_path)).eval()
    assert "\n" not in str(caught.value)


def test_class_without_pictures_is_rejected(pictures, tmp_path):
    shutil.copytree(pictures, tmp_path, dirs_exist_ok=True)
    _rename(tmp_path / "validation" / "red", 5)
    recipe = Dataset.open(RECIPE, str(tmp_path)).recipe
    message = (
        r"pictures in .*red' must be names that end in .*\.webp, got '.*00\.heic'$"
    )
    with pytest.raises(InputError, match=message):
        Dataset.open(recipe, str(tmp_path), BadRecords(100)).eval()


def _rename(folder, count):
    """Gives the first files of a folder an unknown ending."""
    for path in sorted(folder.iterdir())[:count]:
        path.rename(path.with_suffix(".heic"))


@pytest.fixture
def unknown_endings(tmp_path):
    """Pictures in both splits, with an unknown ending for 20 of 24 files of a class."""
    for seed, split in enumerate(("train", "validation")):
        _write(tmp_path / split, 24, seed, size=(8, 8))
        _rename(tmp_path / split / "red", 20)
    return tmp_path


def _left_out(folder, split):
    folder = folder / split / "red"
    found = (
        f"20 of 24 files in '{folder}' are no pictures, such as '{folder / '00.heic'}'"
    )
    return f"{found} (HEIC has to be converted, to JPEG for example)"


def test_training_ends_where_class_loses_most_files(unknown_endings, tmp_path, capsys):
    words = [f"--set={name}={value}" for name, value in SMALL.items()]
    paths = [f"--data_dir={unknown_endings}", f"--model_dir={tmp_path / 'run'}"]
    assert cli.main(["train", "--recipe=folder", *paths, *words]) == 2
    message = f"{_left_out(unknown_endings, 'validation')}; --max_bad_records=40 or more leaves them out"
    assert capsys.readouterr().err.splitlines()[-1].endswith(message)
    assert not list((tmp_path / "run").rglob("*ckpt*"))
    with pytest.raises(
        InputError, match=r"--max_bad_records=20 or more leaves them out$"
    ):
        Dataset.open(RECIPE, str(unknown_endings)).train()


def test_evaluation_names_left_out_files_or_ends(trained, unknown_endings, capsys):
    command = ["evaluate", f"--model_dir={trained}", f"--data_dir={unknown_endings}"]
    left_out = _left_out(unknown_endings, "validation")
    for flags in ([], ["--max_bad_records=19"]):
        assert cli.main([*command, *flags]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.endswith(
            f"{left_out}; --max_bad_records=20 or more leaves them out"
        )
    assert cli.main([*command, "--max_bad_records=20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"left out: {left_out}" in lines and "validation: 28 images" in lines[-1]


def test_nested_folders_and_names_in_any_bytes(tmp_path, capsys):
    for split in ("train", "validation"):
        _write(tmp_path / split, 2, seed=0, size=(32, 32))
    red = tmp_path / "validation" / "red"
    deep = red / "2024" / "may"
    deep.mkdir(parents=True)
    (red / "00.jpg").rename(deep / "picture.jpg")
    (red / "01.PNG").rename(os.fsdecode(os.fsencode(red) + b"/\xff\xfe.png"))
    (red / "2024" / ".hidden").mkdir()
    (red / "2024" / ".hidden" / "other.png").write_bytes(b"")
    recipe = dataclasses.replace(RECIPE, num_classes=2)
    bad = BadRecords(0)
    ((images, labels),) = Dataset.open(recipe, str(tmp_path), bad).eval()
    assert labels.numpy().tolist() == [0, 0, 1, 1] and not bad.names
    files = [deep / "picture.jpg", os.fsdecode(os.fsencode(red) + b"/\xff\xfe.png")]
    pictures = tf.cast([read_image(file) for file in files], tf.uint8)
    expected = preprocess.of_recipe(recipe)(pictures)
    np.testing.assert_allclose(images[2:], expected, atol=1e-5)


def test_folder_requires_data_dir(tmp_path):
    with pytest.raises(
        InputError, match="data_dir must be the folder of the pictures, .*, got None"
    ):
        Dataset.open(RECIPE)
    with pytest.raises(
        InputError,
        match="data_dir must be the folder of the pictures, .*, got '.*missing'",
    ):
        Dataset.open(RECIPE, str(tmp_path / "missing"))
