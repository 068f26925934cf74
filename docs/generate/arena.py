# SPDX-License-Identifier: Apache-2.0
"""Tables of the arena of operators, of docs/results/arena.csv and experiments/arena."""

import statistics

from rounding import three_digits

from experiments.arena import plan, summary
from experiments.arena.operators import OPERATORS
from experiments.arena.settings import Setup
from experiments.arena.tasks import TASKS
from generate.pages import RESULTS, read_csv, table
from generate.results import MISSING

ROWS = plan.read_rows(RESULTS / "arena.csv")
HEADLINE = plan.headline()


def headline() -> str:
    """Returns the mean accuracy of each operator on the tasks that separate operators."""
    tasks = summary.separating(ROWS)
    cells = [
        [
            OPERATORS[name].title,
            *(_percent(summary.mean(Setup(task, name), ROWS)) for task in tasks),
        ]
        for name in OPERATORS
    ]
    cells.append(["chance", *(_percent(1 / TASKS[task]().classes) for task in tasks)])
    return (
        table(["accuracy (%)", *(summary.title(task) for task in tasks)], cells)
        if tasks
        else MISSING
    )


def without_separation() -> str:
    """Returns the tasks on which all operators are about equal."""
    same = [
        task for task in summary.searched(ROWS) if task not in summary.separating(ROWS)
    ]
    return (
        f"Tasks that separate nothing: {'; '.join(map(summary.title, same)) or 'none'}."
    )


def tasks() -> str:
    """Returns a table per task: prediction, accuracy, difference to the lambda layer, and steps."""
    expected, parts = summary.predictions(), []
    for task in summary.searched(ROWS):
        title = summary.title(task)
        cells = [
            _line(setup, expected.get(setup))
            for setup in HEADLINE
            if setup.task_name == task
        ]
        header = [
            "operator",
            "predicted",
            "accuracy (%)",
            "prediction",
            "minus lambda, both",
        ]
        header += [
            "steps to 90 %",
            "learning rate",
            "seeds",
            "reason for the prediction",
        ]
        parts.append(f"### {title[0].upper()}{title[1:]}\n\n{table(header, cells)}")
    return "\n".join(parts) or MISSING


def _line(setup: Setup, expected: summary.Prediction | None) -> list[str]:
    mean, rate = summary.mean(setup, ROWS), plan.best_learning_rate(setup, ROWS)
    done = plan.seeds_done(setup, ROWS)
    steps = [float(row["steps_to_90"]) for row in done if row["steps_to_90"]]
    outcome = "not run" if mean is None else "-"
    if expected and mean is not None:
        outcome = "right" if expected.lowest <= mean <= expected.highest else "wrong"
    return [
        OPERATORS[setup.operator].title,
        f"{100 * expected.lowest:.0f} to {100 * expected.highest:.0f}"
        if expected
        else "-",
        _interval(summary.interval([*summary.accuracies(setup, ROWS).values()]))
        if done
        else "-",
        outcome,
        _interval(summary.difference(setup, ROWS)),
        f"{statistics.median(steps):.0f}" if steps and len(steps) == len(done) else "-",
        str(rate or "-"),
        str(len(done)),
        expected.why if expected else "",
    ]


def costs() -> str:
    """Returns parameters, FLOPs, time and memory of the networks of each task in `headline`."""
    memory = {
        (row["task"], row["operator"]): row["mib"]
        for row in read_csv("arena_memory.csv")
    }
    cells, shown = [], summary.separating(ROWS)
    for setup in HEADLINE:
        rows = [row for cell, row in ROWS.items() if cell.setup == setup]
        if rows and setup.task_name in shown:
            flops = three_digits(float(rows[0]["flops"]) / 1e6)
            step_ms = statistics.median(float(row["step_ms"]) for row in rows)
            mib = three_digits(memory.get((setup.task_name, setup.operator), "-"))
            numbers = [
                f"{int(rows[0]['parameters']):,}",
                flops,
                three_digits(step_ms),
                mib,
            ]
            cells.append(
                [
                    summary.title(setup.task_name),
                    OPERATORS[setup.operator].title,
                    *numbers,
                ]
            )
    return (
        table(["task", "operator", "parameters", "MFLOPs", "step (ms)", "MiB"], cells)
        or MISSING
    )


def initialization() -> str:
    """Returns the accuracy of the lambda layer over standard deviations of its position embeddings."""
    series, cells = (
        [factor for factor in plan.FACTORS if factor.name == "position_stddev"],
        [],
    )
    for factor in series:
        alone = [
            Setup(factor.task, operator)
            for operator in ("lambda_content", "lambda_position")
        ]
        found = [
            summary.accuracies(setup, ROWS).values()
            for setup in (*factor.setups(), *alone)
        ]
        if all(found):
            intervals = [_interval(summary.interval([*each])) for each in found]
            cells.append([summary.title(factor.task), *intervals])
    values = [f"both, stddev {value}" for value in series[0].values]
    return (
        table(["accuracy (%)", *values, "content alone", "position alone"], cells)
        if cells
        else MISSING
    )


def factors() -> str:
    """Returns the accuracy over the values of each factor, and whether its order is the paper's."""
    cells = []
    for factor in plan.FACTORS:
        means = [summary.mean(setup, ROWS) for setup in factor.setups()]
        if sum(mean is not None for mean in means) > 1:
            pairs = zip(factor.values, map(_percent, means), strict=True)
            series = ", ".join(f"{value}: {mean}" for value, mean in pairs)
            titles = [summary.title(factor.task), OPERATORS[factor.operator].title]
            cells.append(
                [
                    f"`{factor.name}`",
                    *titles,
                    series,
                    factor.paper,
                    _agreement(factor, means),
                ]
            )
    header = ["factor", "task", "operator", "accuracy (%)", "paper", "agrees"]
    return table(header, cells) if cells else MISSING


def _agreement(factor: plan.Factor, means: list[float | None]) -> str:
    first, last = means[0], means[-1]
    if not factor.paper or first is None or last is None:
        return "-"
    return "equal" if abs(last - first) < 0.01 else "yes" if last > first else "no"


def missing() -> str:
    """Returns the part of the plan that has not run."""
    cells = [row for row in plan.summarize(ROWS) if row[3] != "0"]
    return (
        table(["task", "setting", "trainings run", "left", "hours left"], cells)
        if cells
        else "Nothing."
    )


def machine() -> str:
    """Returns a sentence on the machine and the time of all rows."""
    rows = ROWS.values()
    hours = sum(float(row["seconds"]) for row in rows) / 3600
    machines = ", ".join(sorted({row["machine"] for row in rows}))
    versions = ", ".join(sorted({row["version"] for row in rows}))
    planned = len(ROWS) + sum(int(row[3]) for row in plan.summarize(ROWS))
    share = f"{len(rows):,} of {planned:,} trainings of the plan have run"
    return (
        f"{share}, in {hours:.1f} processor hours on {machines}; lambdanet {versions}."
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _interval(found: tuple[float, float | None] | None) -> str:
    if found is None:
        return "-"
    mean, half = found
    return f"{100 * mean:.1f}" + ("" if half is None else f" ± {100 * half:.1f}")
