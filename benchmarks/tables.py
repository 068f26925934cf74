# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.tables`: compares the sizes in the papers' tables with lambdanet's models."""

import dataclasses
import sys
from collections.abc import Sequence
from decimal import Decimal

from benchmarks import program
from benchmarks.papers.sizes import TABLES, Row, Table
from lambdanet.backend import compat
from lambdanet.core import command_line, text_table
from lambdanet.core.errors import check_known
from lambdanet.models import complexity, zoo

UNITS = {"M": 10**6, "G": 10**9, "GiB": 2**30}
EQUAL = "equal"
WITHIN_ROUNDING = "within rounding"
DIFFERS = "differs"


@dataclasses.dataclass(frozen=True)
class Figure:
    """A quantity of a row.

    Attributes:
      quantity: "parameters", "FLOPs" or "memory".
      unit: the unit of the printed figure, one of `UNITS`.
      printed: the paper's figure; empty if it prints none.
      ours: the figure of the built model; None if there is no model, or it is not counted.
    """

    quantity: str
    unit: str
    printed: str
    ours: int | None

    @property
    def verdict(self) -> str:
        """The result of `compare`; empty if there is only one figure."""
        if not self.printed or self.ours is None:
            return ""
        return compare(self.printed, self.ours / UNITS[self.unit])

    @property
    def cells(self) -> tuple[str, str]:
        """Both figures as text, ours with three decimals."""
        ours = "-" if self.ours is None else f"{self.ours / UNITS[self.unit]:.3f}"
        return self.printed or "-", ours


@dataclasses.dataclass(frozen=True)
class ComparedRow:
    """A row of a table with its figures."""

    row: Row
    figures: tuple[Figure, ...]

    @property
    def verdict(self) -> str:
        """`EQUAL`, or each quantity that is not; empty if there is nothing to compare."""
        verdicts = {
            figure.quantity: figure.verdict for figure in self.figures if figure.verdict
        }
        unequal = [
            f"{quantity}: {verdict}"
            for quantity, verdict in verdicts.items()
            if verdict != EQUAL
        ]
        return ", ".join(unequal) or (EQUAL if verdicts else "")

    @property
    def model(self) -> str:
        """The model and its options as text, such as "resnet_50_llll key_dim=8"."""
        return " ".join(
            [
                self.row.model,
                *(f"{name}={value}" for name, value in self.row.options.items()),
            ]
        )


def compare(printed: str, ours: float) -> str:
    """Compares a printed figure with ours.

    Args:
      printed: the figure, such as "15.0"; trailing zeros of an integer do not count as exact digits.
      ours: our figure, in the same unit.

    Returns:
      `EQUAL` if ours rounds to the printed figure; `WITHIN_ROUNDING` if it is less than one unit of the last
      printed digit away, as after truncation or double rounding; or `DIFFERS`.

    Example:
      >>> compare("15.0", 14.9956), compare("14.9", 14.9956), compare("14.8", 15.03)
      ('equal', 'within rounding', 'differs')
    """
    digits = printed.partition(".")[2]
    zeros = 0 if "." in printed else len(printed) - len(printed.rstrip("0"))
    unit = Decimal(10) ** (zeros - len(digits))
    distance = round(abs(Decimal(printed) - Decimal(ours)), 9)
    if distance <= unit / 2:
        return EQUAL
    return WITHIN_ROUNDING if distance < unit else DIFFERS


def compare_rows(number: str) -> list[ComparedRow]:
    """Builds the models of one of `TABLES` and returns its rows with their figures."""
    return [_compare_row(TABLES[number], row) for row in TABLES[number].rows]


def render_comparison(number: str, table_format: str, with_header: bool) -> str:
    """Returns a table as text: printed figures, ours, and the verdict.

    Args:
      number: one of `TABLES`.
      table_format: one of `text_table.FORMATS`; "csv" has the same columns for every table.
      with_header: whether "csv" begins with a header; not for a table that follows another.
    """
    computed = compare_rows(number)
    with_memory = table_format == "csv" or any(line.row.memory for line in computed)
    num_figures = 3 if with_memory else 2  # the last one is the memory
    header = [
        f"{figure.quantity} ({figure.unit}), {whose}"
        for figure in computed[0].figures[:num_figures]
        for whose in ("paper", "ours")
    ]
    header = ["row", *header, "verdict", "model", "pixels", "note"]
    rows = []
    for line in computed:
        cells = [cell for figure in line.figures[:num_figures] for cell in figure.cells]
        rows.append(
            [
                line.row.label,
                *cells,
                line.verdict or "-",
                line.model or "-",
                str(line.row.input_size),
                line.row.note,
            ]
        )
    if table_format == "csv":
        text = text_table.render(
            ["table", *header], [[number, *row] for row in rows], table_format
        )
        return text if with_header else text.partition("\n")[2]
    return f"Table {number}: {TABLES[number].title}\n\n{text_table.render(header, rows, table_format)}"


def _compare_row(table: Table, row: Row) -> ComparedRow:
    params = flops = memory = None
    if row.memory or not table.count_lambdas:
        with compat.without_values():
            model = zoo.create_model(
                row.model, input_size=row.input_size, **row.options
            )
        params = complexity.count_parameters(model)
        flops = complexity.count_flops(model, table.count_lambdas)
        memory = complexity.count_pair_memory(model) if row.memory else None
    elif row.model:
        info = zoo.model_info(row.model, row.input_size, **row.options)
        params = info.params
        flops = info.flops
    return ComparedRow(
        row,
        (
            Figure("parameters", "M", row.params, params),
            Figure("FLOPs", table.flops_unit, row.flops, flops),
            Figure("memory", "GiB", row.memory, memory),
        ),
    )


def print_tables(tables: Sequence[str] = (), format: str = "text") -> None:
    """Compares the sizes in the papers' tables with the models of lambdanet.

    Args:
      tables: tables of LambdaNetworks (numbers) and HaloNet (letters), such as 12; default: all.
      format: text, markdown or csv.

    Raises:
      InputError: a table or the format is unknown.
    """
    text_table.check_format(format)
    numbers = [number.upper() for number in tables]
    for number in numbers:
        check_known("table", number, TABLES)
    for place, number in enumerate(numbers or TABLES):
        if place and format != "csv":
            print()
        text = render_comparison(number, format, with_header=not place)
        print(text, end="")


COMMAND = program(
    "benchmarks.tables",
    print_tables,
    positional="tables",
    examples=(
        "python -m benchmarks.tables 12",
        "python -m benchmarks.tables --format=csv",
    ),
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
