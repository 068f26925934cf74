# SPDX-License-Identifier: Apache-2.0
"""Table of model families: memory and time of a training step on TPUs."""

import dataclasses
import functools
from collections.abc import Callable, Collection

from tqdm import tqdm

from lambdanet import text_table
from lambdanet.models import zoo
from lambdanet.tpu import chips, largest_batch, paper_speeds, steps
from lambdanet.tpu.check import DoesNotCompile
from lambdanet.tpu.paper_speeds import Check
from lambdanet.tpu.report import CAVEAT, Report

TOPOLOGIES = ("v5e:2x2", "v6e:2x2", "v3:2x2")  # memory and largest batch are of the first; the papers have v3
CHIPS = tuple(topology.partition(":")[0] for topology in TOPOLOGIES)


@dataclasses.dataclass(frozen=True)
class Setting:
    """A model of a family, and the setting of its training step.

    Attributes:
      model: the name of a model in the zoo.
      input_size: the side of the images, in pixels.
      batch: images per core.
    """

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
) -> str:
    """Returns the table with a caption, or without one as csv.

    Args:
      check: builds a step and compiles it for a topology, such as `subprocess_check.check_in_process`.
      log: called with a line per compilation.
      rows: the numbers of the rows, from 1; empty for all.
      table_format: one of `text_table.FORMATS`.

    Raises:
      InputError: the table has no such row, or the format is unknown.
    """
    text_table.check_format(table_format)
    header = ["model", "pixels", "params (M)", "FLOPs (G)", "batch of a core", f"HBM on {CHIPS[0]} (GiB)"]
    header += [f"step on {name} (ms)" for name in CHIPS] + [f"largest power of two on {CHIPS[0]}"]
    settings = paper_speeds.select_rows(SETTINGS, rows, "the table of families")
    cells = [_cells(setting, check, log) for setting in tqdm(settings, disable=None, leave=False)]
    caption = f"Training in bfloat16, per core: {CAVEAT}.\n\n" if table_format != "csv" else ""
    return caption + text_table.render(header, cells, table_format)


def _cells(setting: Setting, check: Check, log: Callable[[str], None]) -> list[str]:
    model, input_size = setting.model, setting.input_size
    info = zoo.model_info(model, input_size)
    recipe = dataclasses.replace(steps.recipe_for(model, input_size), mixed_precision=True)

    def check_batch(batch: int, topology: str = TOPOLOGIES[0]) -> Report:
        return check(functools.partial(steps.recipe_step, recipe, "train", batch), topology)

    def report(topology: str) -> Report | None:
        try:
            found = check_batch(setting.batch, topology)
        except DoesNotCompile as error:
            log(str(error))
            return None
        log(f"{found.name}, {setting.batch} on {topology}: {1e3 * found.seconds:.1f} ms")
        return found

    reports = [report(topology) for topology in TOPOLOGIES]
    largest = "-"
    if reports[0]:
        largest = str(largest_batch.largest_batch(check_batch, setting.batch, log, refine=False).batch)
    return [
        model,
        str(input_size),
        f"{info.params / 1e6:.1f}",
        f"{info.flops / 1e9:.1f}",
        str(setting.batch),
        f"{reports[0].hbm_needed / chips.GIB:.2f}" if reports[0] else "-",
        *(f"{1e3 * found.seconds:.1f}" if found else "-" for found in reports),
        largest,
    ]
