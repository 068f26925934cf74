# SPDX-License-Identifier: Apache-2.0
"""Recipes: what a field accepts, how `--set` reads it, and what survives the way through JSON."""

import dataclasses
import json
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambdanet import configs
from lambdanet.configs import recipe as recipes
from lambdanet.configs.recipe import Recipe, from_json, override, to_json
from lambdanet.errors import InputError

DIGITS = configs.get_recipe("digits")


def test_every_recipe_is_found_by_its_name():
    assert "digits" in configs.list_recipes()
    for name in configs.list_recipes():
        assert isinstance(configs.get_recipe(name), Recipe)


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(InputError, match="unknown recipe 'digts'; did you mean digits"):
        configs.get_recipe("digts")


@pytest.mark.parametrize(
    ("assignment", "field", "value"),
    [
        ("epochs=3", "epochs", 3),
        ("learning_rate=1", "learning_rate", 1.0),
        ("learning_rate=2e-3", "learning_rate", 0.002),
        ("mixed_precision=true", "mixed_precision", True),
        ("mixed_precision=False", "mixed_precision", False),
        ("train_split=train[:10%]", "train_split", "train[:10%]"),
        ("model=a=b", "model", "a=b"),
        ("mean=0.1, 0.2,0.3", "mean", (0.1, 0.2, 0.3)),
        ("mean=[1, 2, 3]", "mean", (1.0, 2.0, 3.0)),
        ("model_options={'scope': 7, 'sizes': [1, 2]}", "model_options", {"scope": 7, "sizes": (1, 2)}),
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
    for field in recipes.describe_fields():
        if field.default is not None:
            got = getattr(override(plain, [f"{field.name}={field.default}"]), field.name)
            assert got == ({} if field.kind == "dict" else defaults[field.name])


def test_override_takes_the_last_of_two_and_changes_nothing_else():
    changed = override(DIGITS, ["epochs=3", "seed=5", "epochs=4"])
    assert recipes.differences(DIGITS, changed) == {"epochs": (DIGITS.epochs, 4), "seed": (DIGITS.seed, 5)}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("epochs", "'epochs'; accepted: key=value"),
        ("epoch=3", "unknown recipe field 'epoch'; did you mean epochs"),
        ("epochs=3.5", "epochs received '3.5'; accepted: an integer"),
        ("epochs=", "epochs received ''; accepted: an integer"),
        ("learning_rate=fast", "learning_rate received 'fast'; accepted: a number"),
        ("mixed_precision=maybe", "mixed_precision received 'maybe'; accepted: true or false"),
        ("mean=dark", "mean received 'dark'; accepted: numbers"),
        ("model_options=scope", "model_options received 'scope'; accepted: a dictionary"),
        ("model_options={1: 2}", "model_options received {1: 2}; accepted: a dictionary"),
        ("epochs=0", "epochs is 0; accepted: an integer from 1"),
        ("global_batch_size=-4", "global_batch_size is -4; accepted"),
        ("learning_rate=nan", "learning_rate is nan; accepted"),
        ("learning_rate=inf", "learning_rate is inf; accepted"),
        ("label_smoothing=1", "label_smoothing is 1.0; accepted"),
        ("momentum=-0.1", "momentum is -0.1; accepted"),
        ("crop_fraction=1.5", "crop_fraction is 1.5; accepted"),
        ("std=0,1,1", "std is (0.0, 1.0, 1.0); accepted"),
        ("mean=0.5", "mean has 1 channels and std 3"),
        ("warmup_epochs=1000", "warmup_epochs is 1000.0; accepted: at most epochs"),
        ("seed=-1", "seed is -1; accepted"),
        ("optimizer=sdg", "unknown optimizer 'sdg'; did you mean sgd"),
        ("schedule=cosin", "unknown schedule 'cosin'; did you mean cosine"),
        ("augmentation=afine", "unknown augmentation 'afine'; did you mean affine"),
        ("model=", "model is ''; accepted"),
        ("optimizer_options={'rho': 0.9}", "unknown option of optimizer sgd 'rho'; accepted: nesterov"),
        ("randaugment_layers=-1", "randaugment_layers is -1; accepted"),
        ("decay_rate=0", "decay_rate is 0.0; accepted"),
        ("patience=3", "patience is 3 and held_out_split is empty; accepted"),
        ("pseudo_labels=somewhere", "pseudo_labels is 'somewhere' and pseudo_share 0.0; accepted"),
        ("pseudo_share=0.999", "pseudo_share is 0.999; accepted: one that leaves an image"),
        ("pseudo_share=1", "pseudo_share is 1.0; accepted"),
        ("cosine_floor=1", "cosine_floor is 1.0; accepted"),
        ("seed=9223372036854775808", "seed received 9223372036854775808; accepted: an integer below 2**63"),
        ("model_options={'a': 1e999}", "model_options['a'] received inf; accepted: a number, text"),
        (
            "model_options={'a': 0x" + "f" * 5000 + "}",
            "model_options['a'] received int that is too large to print; accepted: a number",
        ),
        ("model_options={[]: 1}", "model_options received '{[]: 1}'; accepted: a dictionary"),
        ("optimizer=" + "9" * 5000, "unknown optimizer '" + "9" * 199 + "...; accepted: adam"),
        ("epochs=" + "9" * 5000, "epochs received '" + "9" * 199 + "...; accepted: an integer"),
    ],
)
def test_override_refuses_with_the_value_and_what_is_accepted(assignment, message):
    with pytest.raises(InputError) as caught:
        override(DIGITS, [assignment])
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_override_keeps_warnings_of_python_off_the_screen(recwarn):
    warnings.simplefilter("always")
    with pytest.raises(InputError, match="model_options received '1if 1else 2'; accepted: a dictionary"):
        override(DIGITS, ["model_options=1if 1else 2"])
    assert not recwarn.list


@pytest.mark.parametrize(
    "values", [{"epochs": "3"}, {"epochs": True}, {"mixed_precision": 1}, {"model": None}]
)
def test_python_values_of_the_wrong_type_are_refused(values):
    with pytest.raises(InputError, match="received"):
        dataclasses.replace(DIGITS, **values)


def test_model_options_must_survive_json():
    with pytest.raises(InputError, match=r"model_options\['scope'\] received <object"):
        dataclasses.replace(DIGITS, model_options={"scope": object()})


@settings(deadline=None)
@given(
    learning_rate=st.floats(min_value=1e-30, max_value=1e30),
    mean=st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3),
    options=st.dictionaries(
        st.text(max_size=5), st.lists(st.integers(-(2**63), 2**63 - 1) | st.none() | st.booleans())
    ),
)
def test_json_gives_the_same_recipe_back(learning_rate, mean, options):
    recipe = dataclasses.replace(DIGITS, learning_rate=learning_rate, mean=mean, model_options=options)
    assert from_json(to_json(recipe)) == recipe


def test_json_of_an_earlier_version_takes_the_defaults():
    values = json.loads(to_json(DIGITS))
    del values["ema_decay"]
    assert from_json(json.dumps(values)) == DIGITS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a recipe in JSON"),
        ("[1]", "list instead of an object"),
        ("{}", "not a recipe: it lacks model, num_classes"),
        ('{"model": 3, "modle": 4}', "unknown recipe field 'modle'"),
    ],
)
def test_json_that_is_no_recipe_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        from_json(text)
