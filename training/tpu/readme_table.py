# SPDX-License-Identifier: Apache-2.0
"""The table of families in the README: what a representative of each needs and takes on TPUs."""

import dataclasses
import functools
import os
from collections.abc import Callable, Collection
from pathlib import Path

from tqdm import tqdm

from lambdanet import text_table
from lambdanet.errors import InputError
from lambdanet.models import zoo
from lambdanet.training.tpu import chips, largest_batch, paper_speeds, steps
from lambdanet.training.tpu.check import DoesNotCompile
from lambdanet.training.tpu.paper_speeds import Check
from lambdanet.training.tpu.report import CAVEAT, Report

BEGIN, END = "<!-- tpu-check: begin -->", "<!-- tpu-check: end -->"
TOPOLOGIES = ("v3:2x2", "v5e:2x2")  # the memory and the largest batch are those of the first


@dataclasses.dataclass(frozen=True)
class Row:
    """A representative of a family.

    Attributes:
      model: a name of the zoo.
      input_size: the images' side, in pixels.
      batch: images on each core.
    """

    model: str
    input_size: int
    batch: int


ROWS = (
    Row("resnet_50", 224, 128),
    Row("resnet_50_ccll", 224, 128),
    Row("resnet_50_llll", 224, 128),
    Row("resnet_rs_50_no_se", 160, 128),
    Row("resnet_rs_50", 160, 128),
    Row("lambda_resnet_50", 160, 128),
    Row("resnet_rs_152_no_se", 256, 128),
    Row("lambda_resnet_152", 256, 128),
    Row("mobilenet_v2", 224, 128),
    Row("mobilenet_v2_lambda", 224, 128),
    Row("halonet_h1", 256, 64),
    Row("halonet_h4", 384, 16),
    Row("lambda_resnet50ts", 256, 128),
)


def write(
    readme: str | Path,
    check: Check,
    told: Callable[[str], None] = lambda line: None,
    rows: Collection[int] = (),
) -> None:
    """Puts the table between the markers of a README.

    Args:
      readme: the file.
      check: compiles what a function returns for a topology, such as `isolated.check`.
      told: is given a line on each compilation.
      rows: which of `ROWS`, from 1; empty for all.

    Raises:
      InputError: no such file, one without both markers, or no such row.
    """
    path = Path(readme)
    if not path.is_file():
        raise InputError(f"--readme received {str(readme)!r}, which is no file")
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise InputError(f"--readme received {str(readme)!r}, which lacks the lines {BEGIN} and {END}")
    text = f"{before}{BEGIN}\n{render(check, told, rows)}{END}{after}"
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def render(check: Check, told: Callable[[str], None] = lambda line: None, rows: Collection[int] = ()) -> str:
    """Returns the table as Markdown, with a line on what its figures are."""
    names = [topology.partition(":")[0] for topology in TOPOLOGIES]
    header = ["model", "pixels", "params (M)", "FLOPs (G)", "batch of a core", f"HBM on {names[0]} (GiB)"]
    header += [f"step on {name} (ms)" for name in names] + [f"largest power of two on {names[0]}"]
    chosen = paper_speeds.chosen(ROWS, rows, "the table of families")
    cells = [_cells(row, check, told) for row in tqdm(chosen, disable=None, leave=False)]
    command = f"lambdanet tpu-check --readme=README.md --rows={','.join(map(str, rows))}"
    return (
        f"Training in bfloat16, per core: {CAVEAT}. Written by `{command if rows else 'make tpu-table'}`.\n\n"
        f"{text_table.render(header, cells, 'markdown')}"
    )


def _cells(row: Row, check: Check, told: Callable[[str], None]) -> list[str]:
    info = zoo.model_info(row.model, row.input_size)
    recipe = dataclasses.replace(steps.recipe_of(row.model, row.input_size), mixed_precision=True)

    def at(batch: int, topology: str) -> Report:
        return check(functools.partial(steps.of_recipe, recipe, "train", batch), topology)

    def report(batch: int, topology: str) -> Report | None:
        try:
            found = at(batch, topology)
        except DoesNotCompile as error:
            told(str(error))
            return None
        told(f"{found.name}, {batch} on {topology}: {1e3 * found.seconds:.1f} ms")
        return found

    reports = [report(row.batch, topology) for topology in TOPOLOGIES]
    largest = "-"
    if reports[0]:
        found = largest_batch.largest_batch(
            lambda batch: at(batch, TOPOLOGIES[0]), row.batch, told, refine=False
        )
        largest = str(found.batch)
    return [
        f"`{row.model}`",
        str(row.input_size),
        f"{info.params / 1e6:.1f}",
        f"{info.flops / 1e9:.1f}",
        str(row.batch),
        f"{reports[0].hbm_needed / chips.GIB:.2f}" if reports[0] else "-",
        *(f"{1e3 * found.seconds:.1f}" if found else "-" for found in reports),
        largest,
    ]
