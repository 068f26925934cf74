# SPDX-License-Identifier: Apache-2.0
"""Recipes: accepted values of fields, parsing of `--set`, and JSON round trips."""

import dataclasses
import json
import re
import warnings

import pytest
from refusals import refused

from lambdanet import configs
from lambdanet.configs import recipe as recipes
from lambdanet.configs.recipe import Recipe, from_json, override, to_json

DIGITS = configs.get_recipe("digits")
PLAIN_VALUES = "a number, text, True, False, None or a list of them"


def test_an_unknown_recipe_names_the_nearest():
    with refused("did you mean imagenet_350:[^:]* or imagenet_350:"):
        configs.get_recipe("imagenet_350")


@pytest.mark.parametrize(
    ("assignment", "field", "value"),
    [
        ("epochs=3", "epochs", 3),
        ("learning_rate=2e-3", "learning_rate", 0.002),
        ("mixed_precision=true", "mixed_precision", "bfloat16"),
        ("mixed_precision=float16", "mixed_precision", "float16"),
        ("train_split=train[:10%]", "train_split", "train[:10%]"),
        ("mean=0.1, 0.2,0.3", "mean", (0.1, 0.2, 0.3)),
        (
            "model_options={'scope': 7, 'sizes': [1, 2]}",
            "model_options",
            {"scope": 7, "sizes": (1, 2)},
        ),
    ],
)
def test_override_reads_a_value_by_the_type_of_its_field(assignment, field, value):
    got = getattr(override(DIGITS, [assignment]), field)
    assert got == value and type(got) is type(value)


def test_every_field_is_described_in_one_line():
    described = {field.name: field for field in recipes.describe_fields()}
    assert list(described) == list(recipes.field_types())
    for field in described.values():
        assert 10 < len(field.help) < 80 and field.help.isprintable()
    assert described["dropout_rate"][1:3] == ("float", "0.0")
    assert described["mean"][1:3] == ("tuple", None)


def test_a_described_default_is_what_set_reads():
    plain = dataclasses.replace(DIGITS, warmup_epochs=0)
    defaults = {field.name: field.default for field in dataclasses.fields(Recipe)}
    defaults["loss"] = "cross_entropy"  # of the task
    for field in recipes.describe_fields():
        if field.default is not None:
            got = getattr(
                override(plain, [f"{field.name}={field.default}"]), field.name
            )
            assert got == ({} if field.kind == "dict" else defaults[field.name])


def test_override_takes_the_last_assignment():
    changed = override(DIGITS, ["epochs=3", "seed=5", "epochs=4"])
    assert recipes.differences(DIGITS, changed) == {
        "epochs": (DIGITS.epochs, 4),
        "seed": (DIGITS.seed, 5),
    }


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("epochs", "--set must be key=value, such as epochs=10, got 'epochs'"),
        ("epoch=3", "unknown recipe field 'epoch'; did you mean epochs"),
        ("epochs=3.5", "epochs must be an integer below 2**63, such as 10, got '3.5'"),
        (
            "learning_rate=fast",
            "learning_rate must be a number, such as 0.1, got 'fast'",
        ),
        (
            "mixed_precision=maybe",
            "mixed_precision must be bfloat16, float16 or false, got 'maybe'",
        ),
        (
            "mean=dark",
            "mean must be numbers separated by commas, such as 0.5,0.5,0.5, got 'dark'",
        ),
        (
            "model_options=scope",
            "model_options must be a dictionary, such as {'scope': 7}, got 'scope'",
        ),
        ("epochs=0", "epochs must be a positive integer, got 0"),
        ("learning_rate=nan", "learning_rate must be a number above 0, got nan"),
        (
            "label_smoothing=1",
            "label_smoothing must be a number from 0 to below 1, got 1.0",
        ),
        (
            "crop_fraction=1.5",
            "crop_fraction must be a number above 0 and at most 1, got 1.5",
        ),
        (
            "std=0,1,1",
            "std must be one number above 0 per channel, got (0.0, 1.0, 1.0)",
        ),
        (
            "mean=0.5",
            "std must be as long as mean, which is (0.5,), got (0.376, 0.376, 0.376)",
        ),
        (
            "warmup_epochs=1000",
            "warmup_epochs must be at most epochs, which is 40, got 1000.0; for a short run, ",
        ),
        ("seed=-1", "seed must be an integer from 0 to below 2**31, got -1"),
        ("optimizer=sdg", "unknown optimizer 'sdg'; did you mean sgd"),
        ("model=", "model must be a text that is not empty, got ''"),
        (
            "randaugment_layers=-1",
            "randaugment_layers must be an integer of at least 0, got -1",
        ),
        (
            "labels=x.csv",
            "labels must be empty unless the dataset is folder, got 'x.csv'",
        ),
        (
            "randaugment_std=0.5",
            "randaugment_std must be 0 without the randaugment_policy timm, got 0.5",
        ),
        (
            "randaugment_policy=timm; randaugment_magnitude=15",
            "randaugment_magnitude must be at most 10 ",
        ),
        ("freeze=c2", "freeze must be empty without"),
        ("lora_rank=8", "lora_rank must be 0 without start_from, got 8"),
        (
            "start_from=x; freeze=c2; lora_rank=8",
            "freeze must be empty with lora_rank, which freezes all but",
        ),
        ("patience=3", "patience must be 0 without a held_out_split, got 3"),
        (
            "pseudo_labels=x",
            "pseudo_share must be at least one image of a batch of 64 with pseudo_labels",
        ),
        (
            "pseudo_share=0.999",
            "pseudo_share must be less than a batch of 64 images, got 0.999",
        ),
        (
            "windows_per_image=2",
            "windows_per_image must be 1 without the task segmentation, got 2",
        ),
        (
            "foreground_share=0.5",
            "foreground_share must be 0 without the task segmentation, got 0.5",
        ),
        (
            "model_options={'a': 1e999}",
            f"model_options['a'] must be {PLAIN_VALUES}, got inf",
        ),
        ("epochs=" + "9" * 5000, "below 2**63, such as 10, got '" + "9" * 199 + "..."),
    ],
)
def test_override_errors(assignment, message):
    with refused(re.escape(message)):
        override(DIGITS, assignment.split("; "))


def test_override_keeps_warnings_of_python_off_the_screen(recwarn):
    warnings.simplefilter("always")
    with refused("model_options must be a dictionary, .* got '1if 1else 2'"):
        override(DIGITS, ["model_options=1if 1else 2"])
    assert not recwarn.list


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("epochs", "3", "got '3'"),
        ("epochs", True, "got True"),
        ("mixed_precision", 1, "got 1"),
        ("model_options", {"scope": object()}, "of them, got <object"),
    ],
)
def test_python_values_of_the_wrong_type_are_rejected(field, value, message):
    with refused(rf"{field}\S* must be .*{message}"):
        dataclasses.replace(DIGITS, **{field: value})


def test_a_file_of_an_editor_may_begin_with_a_mark(tmp_path):
    (tmp_path / "mine.json").write_text(to_json(DIGITS), encoding="utf-8-sig")
    assert configs.get_recipe(str(tmp_path / "mine.json")) == DIGITS


def test_json_of_an_earlier_version_takes_the_defaults():
    values = json.loads(to_json(DIGITS))
    del values["ema_decay"]
    values |= {"unfreeze_epoch": 0, "sizes": []}  # fields of before
    assert from_json(json.dumps(values)) == DIGITS
    values["mixed_precision"] = True
    assert from_json(json.dumps(values)).mixed_precision == "bfloat16"


def test_sizes_of_before_are_read_and_named():
    values = json.loads(to_json(DIGITS)) | {"sizes": [96.0]}
    assert from_json(json.dumps(values)).training_size == 96
    with refused("recipe field must be training_size, got 'sizes'"):
        override(DIGITS, ["sizes=96"])


@pytest.mark.parametrize(
    ("field", "value"), [("unfreeze_epoch", 5), ("sizes", [96.0, 128.0])]
)
def test_json_that_only_an_earlier_version_trains(field, value):
    values = json.loads(to_json(DIGITS)) | {field: value}
    with refused(f"{field} must be .*; commit b7701a4 is the last version"):
        from_json(json.dumps(values))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a recipe in JSON"),
        ("[1]", "list instead of an object"),
        ("{}", "not a recipe: it lacks model, num_classes"),
        ('{"model": 3, "modle": 4}', "unknown recipe field 'modle'"),
    ],
)
def test_json_that_is_not_a_recipe(text, message):
    with refused(message):
        from_json(text)
