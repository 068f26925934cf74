# SPDX-License-Identifier: Apache-2.0
"""Tables of the study on Fashion-MNIST, of docs/results/fashion.csv and experiments/fashion."""

import math

from experiments.fashion import summary
from experiments.fashion.contenders import STUDIES
from generate.pages import read_csv, table
from generate.results import MISSING

ROWS = read_csv("fashion.csv")
CHANGES = {
    "accuracy": "as they are",
    "shift_1": "shift 1",
    "shift_2": "2",
    "shift_3": "3",
    "shift_4": "4",
    "noise_0.1": "noise 0.1",
    "noise_0.2": "0.2",
    "side_20": "20 pixels",
    "side_40": "40",
    "side_56": "56",
}
OPERATORS = {
    "resnet_micro": "convolutions",
    "lambda_resnet_micro": "lambda layers",
    "lambda_resnet_micro_position": "position lambdas",
    "lambda_resnet_micro_content": "content lambdas",
    "halo_resnet_micro": "halo attention",
    "resnet_micro_local_attention": "local attention",
    "narrow lambda_resnet_micro": "lambda layers, 171,000 parameters",
}


def machine() -> str:
    """Returns how many trainings have run, how long they took, and on which machines."""
    if not ROWS:
        return MISSING
    hours = sum(float(row["seconds"]) for row in ROWS) / 3600
    machines = sorted({row["machine"] for row in ROWS})
    versions = sorted({row["version"] for row in ROWS})
    right, compared = summary.right_predictions(ROWS)
    return (
        f"{len(ROWS)} trainings, {hours:.1f} hours of {'; '.join(machines)}; lambdanet "
        f"{', '.join(versions)}. Of {compared} predictions, {right} hold."
    )


def networks() -> str:
    """Returns the table of the networks of the recipe."""
    return _study("networks", ["resnet_micro", "lambda_resnet_micro"])


def operators() -> str:
    """Returns the accuracies of the networks in a row."""
    found = [_interval(summary.mean(ROWS, "networks", name)) for name in OPERATORS]
    return table([*OPERATORS.values()], [found])


def mistakes() -> str:
    """Returns the table of published mistakes."""
    return _study("mistakes", ["lambda", "convolution"])


def robustness() -> str:
    """Returns the accuracies on changed pictures."""
    cells = []
    for study, chosen in STUDIES.items():
        for name in chosen:
            means = [summary.mean(ROWS, study, name, change) for change in CHANGES]
            numbers = [
                "-" if found is None or math.isnan(found[0]) else f"{found[0]:.1f}"
                for found in means
            ]
            cells.append([study, name, *numbers])
    return table(["study", "contender", *CHANGES.values()], cells)


def _study(study: str, references: list[str]) -> str:
    expected = summary.predictions(study)
    header = ["contender", "parameters", "accuracy (%)"]
    header += [f"minus {reference}" for reference in references]
    header += ["predicted", "prediction", "reason for the prediction"]
    cells = []
    for name in STUDIES[study]:
        rows = [
            row for row in ROWS if (row["study"], row["contender"]) == (study, name)
        ]
        prediction = expected.get(name)
        differences = [
            "-"
            if name == reference
            else _interval(summary.difference(ROWS, study, name, reference), "+.2f")
            for reference in references
        ]
        cells.append(
            [
                name,
                f"{int(rows[0]['parameters']):,}" if rows else "-",
                _interval(summary.mean(ROWS, study, name)),
                *differences,
                "-"
                if prediction is None
                else f"{prediction.lowest:g} to {prediction.highest:g}",
                summary.outcome(ROWS, study, name),
                "" if prediction is None else prediction.why,
            ]
        )
    return table(header, cells)


def _interval(found: tuple[float, float | None] | None, form: str = ".2f") -> str:
    if found is None:
        return "-"
    mean, half = found
    return f"{mean:{form}}" + ("" if half is None else f" ± {half:.2f}")
