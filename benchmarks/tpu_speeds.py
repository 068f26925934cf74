# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.tpu_speeds`: the TPU compiler's estimates for the paper's tables and the families."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from tqdm import tqdm

from benchmarks import program
from benchmarks.papers.sizes import parse_model
from benchmarks.papers.speeds import CORES, IMAGES, TABLES, SpeedRow, SpeedTable
from lambdanet.cli.tpu_check import log
from lambdanet.core import command_line, text_table
from lambdanet.core.errors import check_known, invalid
from lambdanet.models import zoo
from lambdanet.tpu_estimates import steps
from lambdanet.tpu_estimates.check import DoesNotCompile, DoesNotFit, check_in_process
from lambdanet.tpu_estimates.chips import GIB
from lambdanet.tpu_estimates.compiler import Cache
from lambdanet.tpu_estimates.report import CAVEAT, Report

TOPOLOGY = "v3:2x2"  # the 8 cores of the paper
# Of the model families.
CHIPS = {"v5e": "v5e:2x2", "v6e": "v6e:2x2", "v3": TOPOLOGY, "tpu7x": "tpu7x:2x2x1"}
Check = Callable[[Callable[[], steps.TpuStep], str], Report]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The estimate for a row of a table.

    Attributes:
      row: the paper's row.
      report: the compiler's report, if the model compiles and its time is known.
      note: the error otherwise, or why the time is unknown.
    """

    row: SpeedRow
    report: Report | None
    note: str = ""

    @property
    def images_per_second(self) -> float:
        """The throughput of all cores."""
        return self.report.examples_per_second * CORES if self.report else 0.0


def estimate(
    number: str,
    check: Check,
    rows: Collection[int] = (),
    log: Callable[[str], None] = lambda line: None,
) -> list[Estimate]:
    """Compiles the models of a table, halving the batch until it fits, as the paper did.

    Args:
      number: one of `TABLES`.
      check: builds a step and compiles it for a topology, such as `check_in_process`.
      rows: the numbers of the rows, from 1; empty for all.
      log: called with a line per row.

    Raises:
      InputError: the table has no such row.
    """
    table = TABLES[number]
    estimates = []
    for row in tqdm(
        select_rows(table.rows, rows, f"table {number}"), disable=None, leave=False
    ):
        estimates.append(_estimate(table, row, check))
        speed = estimates[-1].images_per_second
        figure = (
            f"{_format(table, table.figure(speed))} {table.unit}"
            if speed
            else estimates[-1].note
        )
        log(f"{row.label}: {figure}")
    return estimates


def select_rows(rows: Sequence[Any], numbers: Collection[int], table: str) -> list[Any]:
    """Returns the rows with these numbers, from 1; all for no numbers; raises `InputError` for others."""
    for number in numbers:
        if not 1 <= number <= len(rows):
            raise invalid("rows", f"from 1 to {len(rows)} for {table}", number)
    return [
        row for number, row in enumerate(rows, 1) if not numbers or number in numbers
    ]


def render_speeds(
    number: str, estimates: list[Estimate], table_format: str = "text"
) -> str:
    """Returns a table as text: speeds, times relative to the first row, and the rank correlation.

    Args:
      number: one of `TABLES`.
      estimates: the result of `estimate`.
      table_format: one of `text_table.FORMATS`.
    """
    table = TABLES[number]
    header = ["row", "pixels", "batch", f"{table.unit}, paper", f"{table.unit}, ours"]
    header += ["time to first, paper", "time to first, ours", "model", "note"]
    first = estimates[0]
    body = []
    for found in estimates:
        speed = found.images_per_second
        row = found.row
        times = table.seconds(row.printed) / table.seconds(first.row.printed)
        ours = first.images_per_second / speed if speed else 0.0
        body.append(
            [
                row.label,
                str(row.input_size),
                str(found.report.batch * CORES) if found.report else "-",
                _format(table, row.printed),
                _format(table, table.figure(speed)) if speed else "-",
                f"{times:.2f}",
                f"{ours:.2f}" if ours else "-",
                row.model,
                found.note,
            ]
        )
    text = text_table.render(header, body, table_format)
    if table_format == "csv":
        return text
    precision = "bfloat16" if table.mixed_precision else "float32"
    return (
        f"Table {number}: {table.title}, {precision}, on 8 cores of TPU v3\n"
        f"Ours is {CAVEAT}.\n\n{text}\n{_correlation(table, estimates)}\n"
    )


def rank_correlation(table: SpeedTable, estimates: list[Estimate]) -> float | None:
    """Returns Spearman's rank correlation of the paper's speeds and ours; None for fewer than three rows."""
    compiled = [found for found in estimates if found.report]
    if len(compiled) < 3:
        return None
    from scipy import stats

    paper = [found.row.printed for found in compiled]
    ours = [table.figure(found.images_per_second) for found in compiled]
    return float(stats.spearmanr(paper, ours).statistic)


def _correlation(table: SpeedTable, estimates: list[Estimate]) -> str:
    value = rank_correlation(table, estimates)
    if value is None:
        return "Fewer than three rows have no rank correlation."
    return f"Spearman's rank correlation of the paper's speeds and ours: {value:.3f}"


def _estimate(table: SpeedTable, row: SpeedRow, check: Check) -> Estimate:
    batch = IMAGES // CORES
    model, options = parse_model(row.model)
    recipe = dataclasses.replace(
        steps.recipe_for(model, row.input_size),
        mixed_precision=table.mixed_precision,
        model_options=options,
    )
    while True:
        try:
            build = functools.partial(steps.recipe_step, recipe, table.mode, batch)
            report = check(build, TOPOLOGY)
            return Estimate(row, report if report.seconds else None, report.note)
        except DoesNotFit as error:
            if batch == 1:
                return Estimate(row, None, str(error))
            batch //= 2
        except DoesNotCompile as error:
            return Estimate(row, None, str(error))


def _format(table: SpeedTable, figure: float) -> str:
    return f"{figure:.3f}" if table.unit == "s" else f"{figure:.0f}"


class Setting(NamedTuple):
    """A model of a family in the zoo, the side of its images in pixels, and the images per core."""

    model: str
    input_size: int
    batch: int


SETTINGS = (
    Setting("resnet_50", 224, 128),
    Setting("resnet_50_ccll", 224, 128),
    Setting("resnet_50_llll", 224, 128),
    Setting("resnet_rs_50_no_se", 160, 128),
    Setting("resnet_rs_50", 160, 128),
    Setting("lambda_resnet_50", 160, 128),
    Setting("resnet_rs_152_no_se", 256, 128),
    Setting("lambda_resnet_152", 256, 128),
    Setting("mobilenet_v2", 224, 128),
    Setting("mobilenet_v2_lambda", 224, 128),
    Setting("halonet_h1", 256, 64),
    Setting("halonet_h4", 384, 16),
    Setting("lambda_resnet50ts", 256, 128),
)


def render_families(
    check: Check,
    log: Callable[[str], None] = lambda line: None,
    rows: Collection[int] = (),
    table_format: str = "text",
    names: Collection[str] = (),
) -> str:
    """Returns the table with a caption, or without one as csv.

    Args:
      check: builds a step and compiles it for a topology, such as `check_in_process`.
      log: called with a line per compilation.
      rows: the numbers of the rows, from 1; empty for all.
      table_format: one of `text_table.FORMATS`.
      names: some of `CHIPS`, of which the first has the memory; empty for all.

    Raises:
      InputError: the table has no such row, or the format or a chip is unknown.
    """
    text_table.check_format(table_format)
    names = list(names or CHIPS)
    for name in names:
        check_known("chip", name, CHIPS)
    header = [
        "model",
        "pixels",
        "params (M)",
        "FLOPs (G)",
        "batch of a core",
        f"HBM on {names[0]} (GiB)",
        *(f"step on {name} (ms)" for name in names),
    ]
    settings = select_rows(SETTINGS, rows, "the table of families")
    cells = [
        _cells(setting, names, check, log)
        for setting in tqdm(settings, disable=None, leave=False)
    ]
    caption = (
        f"Training in bfloat16, per core: {CAVEAT}.\n\n"
        if table_format != "csv"
        else ""
    )
    return caption + text_table.render(header, cells, table_format)


def _cells(
    setting: Setting, names: list[str], check: Check, log: Callable[[str], None]
) -> list[str]:
    model = setting.model
    input_size = setting.input_size
    info = zoo.model_info(model, input_size)
    recipe = dataclasses.replace(
        steps.recipe_for(model, input_size), mixed_precision=True
    )
    build = functools.partial(steps.recipe_step, recipe, "train", setting.batch)

    def report(topology: str) -> Report | None:
        try:
            found = check(build, topology)
        except DoesNotCompile as error:
            log(str(error))
            return None
        time = found.note or f"{1e3 * found.seconds:.1f} ms"
        log(f"{found.name}, {setting.batch} on {topology}: {time}")
        return found

    reports = [report(CHIPS[name]) for name in names]
    return [
        model,
        str(input_size),
        f"{info.params / 1e6:.1f}",
        f"{info.flops / 1e9:.1f}",
        str(setting.batch),
        f"{reports[0].hbm_needed / GIB:.2f}" if reports[0] else "-",
        *(
            f"{1e3 * found.seconds:.1f}" if found and found.seconds else "-"
            for found in reports
        ),
    ]


def print_speeds(
    table: str | None = None,
    rows: Sequence[int] = (),
    format: str = "text",
    chips: Sequence[str] = (),
) -> None:
    """Estimates the speeds of models on TPUs, with the TPU compiler; takes hours.

    Args:
      table: the paper's table 4, 12, 13 or 18, beside whose speeds the estimates are printed; default: the
        memory and time of a model of each family.
      rows: the rows of the table, from 1; default: all.
      format: text, markdown or csv.
      chips: some of v5e, v6e, v3 and tpu7x, for the families; default: all.

    Raises:
      InputError: the table, a row, the format or a chip is unknown, or jax or libtpu is missing.
    """
    text_table.check_format(format)
    if table and chips:
        raise invalid("chips", "left out with a table", list(chips))
    check = functools.partial(check_in_process, cache=Cache(), backend="jax")
    if table is None:
        text = render_families(check, log, rows, format, chips)
    else:
        check_known("table of speeds", table, TABLES)
        text = render_speeds(table, estimate(table, check, rows, log), format)
    print(text, end="")


COMMAND = program(
    "benchmarks.tpu_speeds",
    print_speeds,
    examples=("python -m benchmarks.tpu_speeds --table=12",),
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
