# SPDX-License-Identifier: Apache-2.0
"""Mutated recipe.json texts and --set assignments: each gives a recipe or a one-line error."""

import random

import pytest
from fuzzing import rounds

from lambdanet import configs
from lambdanet.configs import recipe as recipes
from lambdanet.configs.recipe import Recipe, from_json, override, to_json
from lambdanet.core.errors import InputError

RECIPES = [configs.get_recipe(name) for name in configs.list_recipes()]
FIELDS = list(recipes.field_types())
PIECES = [
    "",
    "-1",
    "1e999",
    "nan",
    "1_0",
    "0x" + "f" * 5000,
    "9" * 400,
    "true",
    "null",
    "()",
    "{[]: 1}",
    "{1: 2}",
    "{'a': 1j}",
    "b'a'",
    "...",
    "'\\ud800'",
    "\udcff",
    "\n",
    "\u2028",
    "\ufeff",
    "{'a': {'b': [1, (2, None)]}}",
    "[" * 40 + "]" * 40,
    "{'a':" * 90 + "1" + "}" * 90,
    str(2**63),
    "{'a': 0x" + "f" * 5000 + "}",
    "-" * 40 + "1",
    "1if 1else 2",
    "f'{1}'",
    "x=y",
]


def _mutated(text, random):
    """A text with a few pieces inserted, removed, repeated or exchanged."""
    for _ in range(random.choice([1, 1, 2, 5])):
        begin = random.randrange(len(text) + 1)
        end = min(len(text), begin + random.choice([0, 0, 1, 2, 20]))
        pieces = [
            random.choice(PIECES),
            chr(random.randrange(0x3000)),
            text[begin : begin + 30] * 2,
        ]
        text = text[:begin] + random.choice(pieces) + text[end:]
    return text


def _holds(make):
    """Returns whether a recipe was made, which then survives JSON; otherwise there is a one-line error."""
    try:
        recipe = make()
    except InputError as error:
        assert str(error) and len(str(error).splitlines()) == 1, error
        return False
    assert isinstance(recipe, Recipe) and from_json(to_json(recipe)) == recipe
    return True


def test_recipes_read_from_mutated_texts():
    dice = random.Random(0)
    texts = (_mutated(to_json(dice.choice(RECIPES)), dice) for _ in range(rounds(1500)))
    made = [_holds(lambda text=text: from_json(text)) for text in texts]
    assert 0 < sum(made) < len(made)


@pytest.mark.filterwarnings("default")  # of Python, on texts such as 1if 1else 2
def test_recipes_made_from_mutated_assignments():
    dice, made = random.Random(2), []
    for _ in range(rounds(4000)):
        recipe, field = dice.choice(RECIPES), dice.choice(FIELDS)
        value = dice.choice([str(getattr(recipe, field)), dice.choice(PIECES)])
        assignments = [
            f"{field}={value if dice.random() < 0.4 else _mutated(value, dice)}"
        ]
        if dice.random() < 0.1:
            assignments.append(_mutated(assignments[0], dice))
        made.append(
            _holds(lambda recipe=recipe, words=assignments: override(recipe, words))
        )
    assert 0 < sum(made) < len(made)
