# SPDX-License-Identifier: Apache-2.0
"""Classes are compared by name: in another order they are matched, and others are not taken for the same."""

import dataclasses
import re
import unicodedata

import numpy as np
import pytest
from PIL import Image

from lambdanet import cli, configs
from lambdanet.configs.registry import pretrained_weights
from lambdanet.errors import InputError
from lambdanet.models.weights import trained_classes, weight_files
from lambdanet.training.data.class_names import Classes, read_class_map
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.evaluate import evaluate
from lambdanet.training.run import initial_weights, model_dir
from lambdanet.training.run.build import build_model
from lambdanet.training.serving import trained_weights
from lambdanet.training.serving.exported_model import load_classifier

pytestmark = pytest.mark.usefixtures("one_block")

SMALL = {
    **{
        "model": "lambda_resnet_tiny",
        "input_size": 32,
        "global_batch_size": 8,
        "epochs": 5,
    },
    **{
        "learning_rate": 0.05,
        "warmup_epochs": 1.0,
        "randaugment_layers": 0,
        "dropout_rate": 0.0,
    },
}
RECIPE = dataclasses.replace(configs.get_recipe("folder"), **SMALL)
COLORS = {"blue": (40, 60, 220), "green": (50, 200, 60), "red": (220, 50, 40)}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    for split, count in (("train", 8), ("validation", 3)):
        for name, color in COLORS.items():
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(random.normal(color, 40, (36, 40, 3)), 0, 255).astype(
                    np.uint8
                )
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")
    return root


def _train(pictures, path, *words):
    sets = [f"--set={name}={value}" for name, value in SMALL.items()]
    command = [
        "train",
        "--recipe=folder",
        f"--data_dir={pictures}",
        f"--model_dir={path}",
        *sets,
        *words,
    ]
    return cli.main(command)


@pytest.fixture(scope="module")
def trained(pictures, tmp_path_factory):
    """A run that tells the colors apart."""
    path = tmp_path_factory.mktemp("run")
    assert _train(pictures, path) == 0
    return path


@pytest.mark.parametrize(
    ("own", "trained", "columns", "line"),
    [
        (["cat", "dog"], ["cat", "dog"], [0, 1], ""),
        (
            ["dog", "cat"],
            ["cat", "dog"],
            [1, 0],
            "data has the classes of run in another order: matched",
        ),
        (
            ["apple", "zebra"],
            ["cat", "dog"],
            [None, None],
            "run has other classes (cat, dog) than data",
        ),
        (
            ["dog", "wolf"],
            ["cat", "dog"],
            [1, None],
            "1 of 2 classes of data are in run (dog): the",
        ),
        (["dog"], ["cat", "dog"], [1], "1 of 1 classes of data are in run (dog)"),
        (["Zoë"], [unicodedata.normalize("NFD", "Zoë")], [0], ""),
        (
            ["0", "1", "10", "2"],
            ["0", "1", "2", "10"],
            [0, 1, 3, 2],
            "in another order",
        ),
        (
            ["0", "1"],
            ["cat", "dog"],
            [0, 1],
            "run: its 2 classes are taken as they are, without names",
        ),
        (
            ["cat", "dog"],
            [],
            [0, 1],
            "run: its 2 classes are taken as they are, without names",
        ),
        (
            [],
            ["cat", "dog"],
            [0, 1],
            "run: its 2 classes are taken as they are, without names",
        ),
        (
            ["cat", "dog", "wolf"],
            [],
            [None] * 3,
            "run has 2 classes, data has 3: the classifier starts with random weights",
        ),
    ],
)
def test_columns_of_classes(own, trained, columns, line):
    got = Classes("data", len(own) or 2, own).columns_in(
        Classes("run", len(trained) or 2, trained)
    )
    assert got[0] == columns
    assert line in got[1] and bool(line) == bool(got[1])


def _head(model):
    return {
        name: value.numpy() for name, value in weight_files.classifier(model).items()
    }


@pytest.mark.parametrize("start", ["run", "net.safetensors"])
@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (["red", "blue", "green"], [2, 0, 1]),
        (["apple", "red", "zebra"], [None, 2, None]),
        (["apple", "pear", "zebra"], [None, None, None]),
        (["red", "blue"], [2, 0]),
    ],
)
def test_start_from_takes_the_columns_of_the_same_names(
    trained, tmp_path, start, names, columns
):
    source, _ = model_dir.load_trained_model(trained)
    path = trained
    if start != "run":
        path = tmp_path / start
        weight_files.save(source, path, trained_classes.as_metadata(list(COLORS)))
    model = build_model(dataclasses.replace(RECIPE, num_classes=len(names)))
    fresh = _head(model)
    line = initial_weights.load_initial_weights(
        model, path, classes=Classes("the data", len(names), names)
    )
    assert line
    for name, value in _head(model).items():
        for number, column in enumerate(columns):
            wanted = (
                fresh[name][..., number]
                if column is None
                else _head(source)[name][..., column]
            )
            np.testing.assert_array_equal(value[..., number], wanted)


def test_fine_tuning_on_other_classes_says_so(pictures, trained, tmp_path, capsys):
    for split in ("train", "validation"):
        (tmp_path / "fruit" / split).mkdir(parents=True)
        for new, old in (("apple", "red"), ("blue", "blue")):
            (tmp_path / "fruit" / split / new).symlink_to(pictures / split / old)
    words = (f"--set=start_from={trained}", "--set=epochs=1", "--set=warmup_epochs=0")
    assert _train(tmp_path / "fruit", tmp_path / "run", *words) == 0
    line = f"1 of 2 classes of the data are in start_from {str(trained)!r} (blue): the classifier keeps these"
    assert line in capsys.readouterr().out


def test_class_map_gives_the_order(pictures, trained, tmp_path, capsys):
    """The run keeps it: it goes on, and is evaluated, with the data as they are, as accurate as before."""
    before = evaluate(trained, str(pictures))["top_1"]
    order = ["red", "green", "blue"]
    class_map = tmp_path / "map.txt"
    class_map.write_text("\n".join(order) + "\n")
    words = (
        f"--set=start_from={trained}",
        "--set=learning_rate=1e-9",
        "--set=epochs=2",
    )
    assert _train(pictures, tmp_path / "run", f"--class_map={class_map}", *words) == 0
    said = capsys.readouterr().out
    assert (
        f"the data has the classes of class_map {str(class_map)!r} in another order"
        in said
    )
    assert model_dir.class_names(tmp_path / "run") == order
    assert (
        f"the data has the classes of start_from {str(trained)!r} in another order"
        in said
    )
    assert _train(pictures, tmp_path / "run", *words) == 0  # is finished
    assert (
        evaluate(tmp_path / "run", out=tmp_path / "evaluation")["top_1"] == before > 0.5
    )
    rows = (tmp_path / "evaluation" / "classes.csv").read_text().splitlines()[1:]
    assert [row.split(",")[1] for row in rows] == order
    wrong = (tmp_path / "evaluation" / "wrong.csv").read_text().splitlines()
    assert wrong[0] == "image,class,predicted" and len(wrong) == 1 + round(
        9 * (1 - before)
    )
    assert all(f"/validation/{row.split(',')[1]}/" in row for row in wrong[1:])

    batches = Dataset.open(
        RECIPE, str(pictures), classes=model_dir.classes_of(tmp_path / "run")
    ).eval()
    labels = np.concatenate([labels for _, labels in batches.as_numpy_iterator()])
    np.testing.assert_array_equal(labels, [2, 2, 2, 1, 1, 1, 0, 0, 0])


def test_some_of_the_classes_can_be_evaluated(pictures, trained, tmp_path, capsys):
    for split in ("train", "validation"):
        (tmp_path / split).mkdir()
        for name in ("green", "red"):
            (tmp_path / split / name).symlink_to(pictures / split / name)
    assert (
        cli.main(["evaluate", f"--model_dir={trained}", f"--data_dir={tmp_path}"]) == 0
    )
    said = capsys.readouterr().out
    assert f"the data has 2 of the 3 classes of {str(trained)!r}" in said
    assert "folder validation: 6 images, top-1" in said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "red\ngreen\nblue\ngreen\n",
            "names in class_map .* must be different names, got .'green'",
        ),
        ("red\n\nblue\n", "class 1 of class_map .* must be a name of one line"),
        (
            "red\ngreen\nviolet\n",
            "class 0 of the data must be 'red', as in class_map .*, got 'blue'",
        ),
        (None, "map.txt' does not exist"),
    ],
)
def test_class_maps_that_are_rejected(pictures, tmp_path, content, message, capsys):
    if content is not None:
        (tmp_path / "map.txt").write_text(content)
    assert (
        _train(pictures, tmp_path / "run", f"--class_map={tmp_path / 'map.txt'}") == 2
    )
    said = capsys.readouterr().err
    assert re.search(message, said) and said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_class_map_of_timm_has_names_without_spaces_around(tmp_path):
    (tmp_path / "map.txt").write_text("cat \n big dog\n")
    assert read_class_map(tmp_path / "map.txt") == ["cat", "big dog"]


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
    weight_files.save(
        source, path, metadata | trained_classes.as_metadata(list(COLORS))
    )
    expected = _head(source)["logits/bias"]
    for names, columns, line in [
        (None, [0, 1, 2], ""),
        (
            ["green", "red", "blue"],
            [1, 2, 0],
            "are those of the weights in another order: matched by name",
        ),
        (
            ["bleu", "vert", "rouge"],
            [0, 1, 2],
            "replace those of the weights, in their order",
        ),
    ]:
        file = None
        if names:
            file = tmp_path / "names.txt"
            file.write_text("\n".join(names))
        built = trained_weights.build_classifier("lambda_resnet_tiny", path, file)
        assert built.class_names == (names or list(COLORS))
        np.testing.assert_array_equal(
            _head(built.model)["logits/bias"], expected[columns]
        )
        assert line in capsys.readouterr().out
    words = [
        f"--weights={path}",
        "--model=lambda_resnet_tiny",
        f"--out={tmp_path / 'served'}",
    ]
    assert cli.main(["export", *words]) == 0
    assert load_classifier(tmp_path / "served").class_names == list(COLORS)


def test_names_in_metadata_that_are_no_list_are_rejected():
    for text in ("cat, dog", '{"0": "cat"}', "[1, 2]"):
        with pytest.raises(
            InputError,
            match="classes of the weights must be a list of names in JSON, got",
        ):
            trained_classes.names_of({"classes": text})
    published = {"as_published": "yes", "num_classes": "1000"}
    assert (
        trained_classes.names_of(published) == pretrained_weights.imagenet_class_names()
    )
    assert trained_classes.names_of({"as_published": "yes", "num_classes": "10"}) == []
