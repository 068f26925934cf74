# SPDX-License-Identifier: Apache-2.0
"""A run on folders of pictures, and its use: classes in other orders, new heads, left out files."""

import contextlib
import io
from dataclasses import replace

import keras
import numpy as np
import pytest
from helpers import write_picture
from numpy.testing import assert_array_equal
from refusals import refused
from refused_commands import assert_refused
from training_runs import recipe_with, write_run

from lambdanet import cli
from lambdanet.models.weights import trained_classes, weight_files
from lambdanet.training.data.class_names import Classes
from lambdanet.training.evaluate import evaluate
from lambdanet.training.run import model_dir
from lambdanet.training.run.build import build_model
from lambdanet.training.run.start import load_initial_weights
from lambdanet.training.serving import trained_weights

pytestmark = pytest.mark.usefixtures("one_block")

SMALL = {
    "model": "lambda_resnet_tiny",
    "input_size": 32,
    "global_batch_size": 8,
    "epochs": 5,
    "learning_rate": 0.05,
    "warmup_epochs": 1.0,
    "randaugment_layers": 0,
    "dropout_rate": 0.0,
    "class_weights": "balanced",
}
RECIPE = recipe_with("folder", **SMALL)
COLORS = {"blue sky": (40, 60, 220), "green": (50, 200, 60), "red": (220, 50, 40)}
TRAINED = {"blue sky": 8, "green": 6, "red": 8}  # pictures for training


def _write(folder, counts, size):
    """Writes noisy pictures with a color per class."""
    random = np.random.default_rng(0)
    for name, count in counts.items():
        for number in range(count):
            pixels = random.normal(COLORS[name], 40, size).clip(0, 255)
            ending = ("jpg", "PNG", "jpeg", "jfif", "jpe")[number % 5]
            write_picture(folder / name / f"{number:02d}.{ending}", pixels)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    _write(root / "train", TRAINED, (36, 40, 3))
    _write(root / "validation", dict.fromkeys(COLORS, 3), (36, 40, 3))
    return root


def _train(pictures, path, *words):
    paths = [f"--data_dir={pictures}", f"--model_dir={path}"]
    sets = [f"--set={name}={value}" for name, value in SMALL.items()]
    return cli.main(["train", "--recipe=folder", *paths, *sets, *words])


@pytest.fixture(scope="module")
def run(pictures, tmp_path_factory):
    """The folder of a run that tells the colors apart, and what it printed."""
    path = tmp_path_factory.mktemp("run")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert _train(pictures, path) == 0
    return path, out.getvalue()


@pytest.fixture(scope="module")
def trained(pictures, tmp_path_factory):
    """The folder of a run that was not trained, for tests to which that makes no difference."""
    path = tmp_path_factory.mktemp("trained")
    recipe = replace(RECIPE, num_classes=3)
    write_run(path, recipe, list(COLORS), str(pictures))
    return path


@pytest.mark.slow
def test_run_keeps_classes_and_says_their_weights(run):
    path, said = run
    # 22 pictures: 22 / (3 x 8) and 22 / (3 x 6).
    assert "weights of the classes: blue sky 0.917, green 1.22, red 0.917\n" in said
    assert model_dir.load_recipe(path).num_classes == 3
    assert model_dir.class_names(path) == list(COLORS)
    assert model_dir.load_recipe(path).class_weights == "balanced"


def _head(model):
    variables = weight_files.classifier(model)
    return {name: value.numpy() for name, value in variables.items()}


def _saved(trained, start, path):
    """Returns the run, or a file of its weights with the names of its classes."""
    if start == "run":
        return trained
    source, _ = model_dir.load_trained_model(trained)
    weight_files.save(source, path / start, trained_classes.as_metadata(list(COLORS)))
    return path / start


@pytest.mark.parametrize(("start", "num_classes"), [("run", 3), ("net.safetensors", 2)])
def test_start_from_with_new_head(trained, tmp_path, start, num_classes):
    """The classifier starts at zero, or at random for other classes; a dropout has no weights."""
    source, _ = model_dir.load_trained_model(trained)
    wanted = weight_files.weights_by_name(source)
    path = _saved(trained, start, tmp_path)
    changes = {"num_classes": num_classes, "dropout_rate": 0.2 * (start == "run")}
    for zero_head in (True, False):
        model = build_model(replace(RECIPE, **changes))
        fresh = _head(model)
        load_initial_weights(model, path, zero_head=zero_head)
        for name, value in weight_files.weights_by_name(model).items():
            expected = wanted[name]
            if name.startswith("logits"):
                expected = expected if num_classes == 3 else fresh[name]
                expected = expected * (1 - zero_head)
            assert_array_equal(value, expected)


@pytest.mark.parametrize(
    ("start", "names", "columns"),
    [
        ("net.safetensors", ["apple", "red", "zebra"], [None, 2, None]),
        ("run", ["apple", "pear", "zebra"], [None, None, None]),
        ("net.safetensors", ["red", "blue sky"], [2, 0]),
    ],
)
def test_start_from_takes_the_columns_of_the_same_names(
    trained, tmp_path, start, names, columns
):
    path = _saved(trained, start, tmp_path)
    head = _head(model_dir.load_trained_model(trained)[0])
    model = build_model(replace(RECIPE, num_classes=len(names)))
    fresh = _head(model)
    classes = Classes("the data", len(names), names)
    assert load_initial_weights(model, path, classes=classes)
    for name, value in _head(model).items():
        for number, column in enumerate(columns):
            wanted = fresh[name][..., number]
            if column is not None:
                wanted = head[name][..., column]
            assert_array_equal(value[..., number], wanted)


def test_weights_of_other_model_are_rejected(trained):
    changes = {"num_classes": 3, "model_options": {"scope": 3}}
    other = build_model(replace(RECIPE, **changes))
    message = r"start_from .* does not fit 'lambda.*: c5.* has the shape .*, not"
    with refused(message):
        load_initial_weights(other, trained)
    with refused("start_from must be an existing .* got 'none.safetensors'"):
        load_initial_weights(other, "none.safetensors")
    other = keras.Sequential([keras.Input([2]), keras.layers.Dense(2)], name="small")
    with refused("model in start_from .* must be small, got 'lambda_resnet_tiny'"):
        load_initial_weights(other, trained)


@pytest.mark.slow
def test_class_map_gives_the_order(pictures, run, tmp_path, capsys):
    """The run keeps it: it goes on, and is evaluated, with the data as they are, as accurate as before."""
    trained, _ = run
    before = evaluate(trained, str(pictures))["top_1"]
    order = ["red", "green", "blue sky"]
    class_map = tmp_path / "map.txt"
    class_map.write_text("\n".join(order) + "\n")
    words = [f"start_from={trained}", "learning_rate=1e-9", "epochs=1"]
    sets = [f"--set={word}" for word in (*words, "warmup_epochs=0")]
    path = tmp_path / "run"
    assert _train(pictures, path, f"--class_map={class_map}", *sets) == 0
    said = capsys.readouterr().out
    for owner in (f"class_map {str(class_map)!r}", f"start_from {str(trained)!r}"):
        assert f"the data has the classes of {owner} in another order" in said
    assert model_dir.class_names(path) == order
    assert _train(pictures, path, *sets) == 0  # is finished
    out = tmp_path / "evaluation"
    assert evaluate(path, out=out)["top_1"] == before > 0.5
    rows = (out / "classes.csv").read_text().splitlines()[1:]
    assert [row.split(",")[1] for row in rows] == order


def test_some_of_the_classes_can_be_evaluated(pictures, trained, tmp_path, capsys):
    for split in ("train", "validation"):
        (tmp_path / split).mkdir()
        for name in ("green", "red"):
            (tmp_path / split / name).symlink_to(pictures / split / name)
    command = ["evaluate", f"--model_dir={trained}", f"--data_dir={tmp_path}"]
    assert cli.main(command) == 0
    said = capsys.readouterr().out
    assert f"the data has 2 of the 3 classes of {str(trained)!r}" in said
    assert "folder validation: 6 images, top-1" in said
    for split in ("train", "validation"):
        (tmp_path / split / "green").rename(tmp_path / split / "violet")
    message = "class 0 of the data must be 'blue sky', as in .*, got 'red'\n"
    assert_refused(cli.main(command), message, capsys)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "red\ngreen\nviolet\n",
            "class 0 of the data must be 'red', as in class_map .*, got 'blue sky'",
        ),
        (None, "map.txt' does not exist"),
    ],
)
def test_class_maps_that_are_rejected(pictures, tmp_path, content, message, capsys):
    path = tmp_path / "map.txt"
    if content is not None:
        path.write_text(content)
    run = tmp_path / "run"
    assert_refused(_train(pictures, run, f"--class_map={path}"), message, capsys)
    assert not run.exists()


def test_export_matches_the_names_of_the_weights(trained, tmp_path, capsys):
    """In another order they are matched; others replace them."""
    source, _ = model_dir.load_trained_model(trained)
    metadata = {
        "input_size": "32",
        "mean": "0.5, 0.5, 0.5",
        "std": "0.5, 0.5, 0.5",
        "num_classes": "3",
    }
    path = tmp_path / "net.safetensors"
    names = list(COLORS)
    weight_files.save(source, path, metadata | trained_classes.as_metadata(names))
    expected = _head(source)["logits/bias"]
    other = "are those of the weights in another order: matched by name"
    replaced = "replace those of the weights, in their order"
    for names, columns, line in [
        (None, [0, 1, 2], ""),
        (["green", "red", "blue sky"], [1, 2, 0], other),
        (["bleu", "vert", "rouge"], [0, 1, 2], replaced),
    ]:
        file = None
        if names:
            file = tmp_path / "names.txt"
            # With a byte order mark, as Notepad writes it.
            file.write_text("\n".join(names), encoding="utf-8-sig")
        built = trained_weights.build_classifier("lambda_resnet_tiny", path, file)
        assert built.class_names == (names or list(COLORS))
        bias = _head(built.model)["logits/bias"]
        assert_array_equal(bias, expected[columns])
        assert line in capsys.readouterr().out


def test_class_that_loses_most_files_ends_command(trained, tmp_path, capsys):
    """8 of 10 files of a class have an unknown ending; a limit that is given counts them all."""
    _write(tmp_path / "validation", dict.fromkeys(COLORS, 10), (8, 8, 3))
    for path in sorted((tmp_path / "validation/red").iterdir())[:8]:
        path.rename(path.with_suffix(".heic"))
    (tmp_path / "train").symlink_to(tmp_path / "validation")
    command = ["evaluate", f"--model_dir={trained}", f"--data_dir={tmp_path}"]
    status = cli.main([*command, "--max_bad_records=7"])
    assert_refused(status, "--max_bad_records=8 or more leaves them out", capsys)
    assert cli.main([*command, "--max_bad_records=8"]) == 0
    said = capsys.readouterr().out
    assert "left out: 8 of 10 files in " in said and "validation: 22 images" in said
