# SPDX-License-Identifier: Apache-2.0
"""`python -m experiments.fashion`: trains the networks of a study, and appends a row per training."""

import csv
import sys
from pathlib import Path

from benchmarks import program
from benchmarks.turns import results
from experiments.fashion import training
from experiments.fashion.contenders import DATASETS, FASHION, STUDIES
from experiments.fashion.training import Run
from experiments.rows import append_row
from lambdanet import backend as K
from lambdanet import command_line
from lambdanet.errors import check_counts, check_known
from lambdanet.try_device.__main__ import device_name

RESULTS = Path(__file__).parents[2] / "docs" / "results"
DATA = "/usr/share/datasets/fashion-mnist"  # of Debian's package dataset-fashion-mnist
FILES = {FASHION: RESULTS / "fashion.csv", "cifar10": RESULTS / "cifar10.csv"}


def run_fashion(
    studies: list[str] | None = None,
    contenders: list[str] | None = None,
    dataset: str = FASHION,
    data_dir: str | None = None,
    out: str | None = None,
    weights: str | None = None,
    seeds: int = 5,
) -> None:
    """Runs the trainings of both studies that have no row yet, seed by seed, and appends one for each.

    Args:
      studies: networks, mistakes; default: both.
      contenders: some of their contenders; default: all.
      dataset: fashion_mnist or cifar10.
      data_dir: the folder of the pictures; default: that of Debian's package, or for cifar10 that of TFDS.
      out: the file of results; default: docs/results/fashion.csv, or for cifar10 cifar10.csv.
      weights: a folder for the weights of the trained networks; default: they are not kept.
      seeds: the number of trainings of each contender.

    Raises:
      InputError: a name is unknown, a number is not positive, or the data cannot be read.
    """
    chosen = tuple(STUDIES) if studies is None else tuple(studies)
    for study in chosen:
        check_known("study", study, STUDIES)
    known = {name: None for study in chosen for name in STUDIES[study]}
    for name in contenders or ():
        check_known("contender", name, known)
    check_counts(seeds=seeds)
    check_known("dataset", dataset, DATASETS)
    path = Path(out or FILES[dataset])
    if data_dir is None and dataset == FASHION:
        data_dir = DATA
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = None if weights is None else Path(weights)
    about = results.announce("float32")
    processor = device_name() if K.accelerators() else about["cpu"]
    machine = f"{processor}, {about['backend']}"
    done = read_runs(path)
    left = [
        Run(study, contender, seed)
        for study in chosen
        for seed in range(seeds)
        for contender in STUDIES[study]
        if contender in (contenders or known)
    ]
    left = [key for key in left if key not in done]
    for key in left:
        row = training.run(key, data_dir, dataset, machine, folder)
        append_row(path, row)
        line = "{study}, {contender}, seed {seed}: {accuracy} in {seconds} s"
        print(line.format_map(row), flush=True)


def read_runs(path: Path) -> set[Run]:
    """Returns the trainings that have a row; none without the file, and none for a line cut off."""
    if not path.exists():
        return set()
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    rows = csv.DictReader(line for line in lines if line.endswith("\n"))
    return {Run(row["study"], row["contender"], int(row["seed"])) for row in rows}


COMMAND = program("experiments.fashion", run_fashion)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
