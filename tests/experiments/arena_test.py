# SPDX-License-Identifier: Apache-2.0
"""The arena: its generators, equal numbers of parameters, and runs that resume."""

import csv

import keras
import numpy as np
import pytest

from experiments.arena import __main__ as arena
from experiments.arena import network, plan, summary, training
from experiments.arena.constructions import ARROWS, COLORS, RECALL_SYMBOLS, Examples
from experiments.arena.operators import NUM_HEADS, OPERATORS
from experiments.arena.settings import Setup
from experiments.arena.tasks import SPLITS, TASKS, Task
from lambdanet import command_line
from lambdanet.models import complexity

NAMES = sorted(TASKS)


@pytest.fixture(autouse=True)
def few_pictures(monkeypatch):
    monkeypatch.setattr("experiments.arena.tasks.PICTURES", dict.fromkeys(SPLITS, 40))


@pytest.mark.parametrize("name", NAMES)
def test_examples_depend_on_seed_and_split_alone(name):
    task = TASKS[name]()
    draws = {
        case: task.draw(40, *case) for case in (("train", 0), ("train", 1), ("test", 0))
    }
    inputs, answers = draws["train", 0]
    assert inputs.dtype == np.float32 and inputs.shape == (
        *inputs.shape[:1],
        *task.shape,
    )
    assert answers.shape == (inputs.shape[:1] if task.pooled else inputs.shape[:-1])
    assert set(np.unique(answers)) <= set(range(-1, task.classes)) and answers.max() > 0
    assert all(
        np.array_equal(a, b)
        for a, b in zip(draws["train", 0], task.draw(40, "train", 0), strict=True)
    )
    assert not any(
        inputs.shape == x.shape and (inputs == x).all()
        for x, _ in list(draws.values())[1:]
    )


def test_answer_of_an_arrow_is_the_color_at_its_end():
    inputs, answers = TASKS["pointer"]().draw(4, "train", 3)
    for board, row, column in np.argwhere(answers >= 0):
        down, right = ARROWS[inputs[board, row, column, COLORS:].argmax()]
        assert (
            inputs[board, row + down, column + right, :COLORS].argmax()
            == answers[board, row, column]
        )


@pytest.mark.parametrize("pairs", [4, 8, 16, 32])
def test_recalled_value_was_beside_the_key(pairs):
    task = TASKS["recall"](pairs=pairs)
    inputs, answers = (x.reshape([4, 2 * pairs, -1]) for x in task.draw(4, "train", 0))
    keys, values = np.split(inputs, [RECALL_SYMBOLS], axis=-1)
    for example in range(4):
        pairs_of = {
            k.argmax(): v.argmax()
            for k, v in zip(keys[example], values[example], strict=True)
            if v.any()
        }
        asked = np.flatnonzero(answers[example] >= 0)
        assert len(asked) == pairs == len(pairs_of)
        assert all(
            pairs_of[keys[example, n].argmax()] == answers[example, n, 0] for n in asked
        )


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("task", ["recall", "in_context"])
def test_operators_have_equal_numbers_of_parameters(operator, task):
    setup = Setup(task, operator)
    if plan.has_form(setup):
        widths = network.match_widths(setup)
        number = complexity.count_parameters(network.build_network(setup, widths))
        assert abs(number / setup.parameters - 1) <= network.TOLERANCE
        assert (
            widths.filters % NUM_HEADS == 0
            and 0.6 < widths.channels / widths.filters < 1.6
        )


@pytest.mark.parametrize(
    "operator", [name for name in OPERATORS if OPERATORS[name].causal]
)
def test_causal_operator_sees_no_later_position(operator):
    inputs = keras.Input([12, 8])
    model = keras.Model(inputs, OPERATORS[operator].causal(8)(inputs))
    x = np.random.default_rng(0).normal(size=[1, 12, 8]).astype(np.float32)
    changed = np.concatenate([x[:, :6], -x[:, 6:]], axis=1)
    y, other = (
        keras.ops.convert_to_numpy(model(each, training=False)) for each in (x, changed)
    )
    np.testing.assert_allclose(y[:, :6], other[:, :6], atol=1e-5)
    assert np.abs(y[:, 6:] - other[:, 6:]).max() > 0.01


def small(**changes):
    """A task with a single answer, in the center of a map."""

    def draw(number, split, seed):
        inputs = np.random.default_rng([SPLITS.index(split), seed]).normal(
            size=[number, 4, 4, 2]
        )
        return Examples(inputs.astype(np.float32), (inputs[..., 0] > 0).astype(int))

    return Task("small", draw, (4, 4, 2), 2, 1, 1500, 2)._replace(**changes)


def test_run_resumes_and_repeats_itself(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(TASKS, "small", small)
    monkeypatch.setattr(plan, "PHASES", (("small",),))
    monkeypatch.setattr(plan, "FACTORS", ())
    monkeypatch.setattr(plan, "OPERATORS", {"convolution": OPERATORS["convolution"]})
    monkeypatch.setattr(plan, "SEEDS", range(2))
    monkeypatch.setattr(training, "STEPS", 8)
    out = tmp_path / "arena.csv"
    assert command_line.main(arena.COMMAND, [f"--out={out}", "--cells=2"]) == 0
    with out.open("a") as file:
        # Of a process that was killed.
        file.write(f"small,convolution,,0,{plan.LEARNING_RATES[2]},1")
    assert command_line.main(arena.COMMAND, [f"--out={out}"]) == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    rates = [str(rate) for rate in plan.LEARNING_RATES]
    assert [row["learning_rate"] for row in rows[:4]] == rates and len(rows) == 5
    assert rows[4]["seed"] == "1" and rows[4]["learning_rate"] in rates
    first = training.train(plan.Cell.of(rows[0]))
    assert {
        name: str(first[name]) for name in ("validation_curve", "test_accuracy")
    }.items() <= rows[0].items()
    assert (
        max(float(row["test_accuracy"]) for row in rows) > 0.8
        and int(rows[0]["flops"]) > 0
    )
    capsys.readouterr()
    assert command_line.main(arena.COMMAND, [f"--out={out}", "--plan_only"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[-3:] == ["5", "0", "0.0"]


def test_interval_is_paired_over_shared_seeds():
    assert summary.interval([0.5]) == (0.5, None)
    assert np.isnan(summary.interval([0.5, np.nan, 0.7])).all()
    mean, half = summary.interval([0.1, 0.2, 0.3, 0.4, 0.5])
    assert mean == pytest.approx(0.3) and half == pytest.approx(
        2.776 * 0.1581 / 5**0.5, rel=1e-3
    )
    rows = {}
    for operator, shift in (("convolution", 0.0), (summary.REFERENCE, 0.5)):
        cells = [
            plan.Cell(Setup("pointer", operator), 0, rate)
            for rate in plan.LEARNING_RATES
        ]
        cells += [
            plan.Cell(Setup("pointer", operator), seed, 1e-3) for seed in range(1, 3)
        ]
        for cell in cells:
            accuracy = shift + 0.1 * cell.seed + 0.1 * (cell.learning_rate == 1e-3)
            names = ("validation_accuracy", "test_accuracy")
            rows[cell] = dict.fromkeys(names, str(accuracy)) | {
                "steps_to_90": "",
                "seed": str(cell.seed),
            }
    setup = Setup("pointer", "convolution")
    assert plan.best_learning_rate(setup, rows) == 1e-3
    assert summary.accuracies(setup, rows) == pytest.approx({0: 0.1, 1: 0.2, 2: 0.3})
    assert summary.difference(setup, rows) == pytest.approx((-0.5, 0), abs=1e-6)
    assert plan.cells_left(setup, rows) == 2 and summary.separating(rows) == ["pointer"]
