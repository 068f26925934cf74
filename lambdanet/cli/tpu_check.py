# SPDX-License-Identifier: Apache-2.0
"""The command that asks the TPU compiler what a step would need and take: tpu-check."""

import json
import sys
import textwrap
from typing import Any

from absl import flags

from lambdanet.command_line import Command, Flag
from lambdanet.errors import InputError, unknown


def _tpu_check(values: flags.FlagValues, arguments: list[str]) -> None:
    subjects = [name for name in _SUBJECTS if values[name].value]
    if len(subjects) != 1:
        given = f", got {' and '.join(f'--{name}' for name in subjects)}" if subjects else ""
        raise InputError(f"`tpu-check` needs one of {', '.join(f'--{name}' for name in _SUBJECTS)}{given}")
    if values.top < 1:
        raise InputError(f"--top must be an integer from 1 on, got {values.top}")

    from lambdanet.training.tpu import chips

    chips.chip_of(values.topology)
    _RUNS[subjects[0]](values)


def _step(values: flags.FlagValues) -> None:
    import functools

    of_batch = _of_batch(values)

    from lambdanet.training.tpu import largest_batch, report

    check = _check(values)

    def of(**batch: int) -> report.Report:
        return check(functools.partial(of_batch, **batch), values.topology)

    batch = {} if values.batch is None else {"batch": values.batch}
    if values.fit:
        start = batch or {"batch": 8 if values.experiment else 128}
        found = largest_batch.largest_batch(lambda batch: of(batch=batch), start["batch"], _tell)
    else:
        found = of(**batch)
    if values.json:
        _print_json(found.to_json(values.top))
    else:
        print(report.render(found, values.top), end="")


def _of_batch(values: flags.FlagValues) -> Any:
    """Returns the function of a batch that builds the step, with everything else about it given."""
    import functools

    from lambdanet import configs
    from lambdanet.configs.recipe import override
    from lambdanet.models.names import check_model

    changes = values["set"].value or ()
    if values.experiment:
        from lambdanet.detection.run import tpu_step

        return functools.partial(tpu_step.of_experiment, values.experiment, changes, values.mode)
    if values.model:
        check_model(values.model)
    recipe = override(configs.get_recipe(values.recipe), changes) if values.recipe else None

    from lambdanet.training.tpu import steps

    recipe = recipe or override(steps.recipe_of(values.model), changes)
    return functools.partial(steps.of_recipe, recipe, values.mode)


def _table(values: flags.FlagValues) -> None:
    from lambdanet import text_table
    from lambdanet.models.papers import speeds

    form = values.format or "text"
    text_table.check_format(form)
    if values.table not in speeds.TABLES:
        raise unknown("table of speeds", values.table, speeds.TABLES)
    rows = _rows(values)

    from lambdanet.training.tpu import paper_speeds

    found = paper_speeds.lines(values.table, _check(values), rows, _tell)
    if values.json:
        _print_json(paper_speeds.to_json(values.table, found))
    else:
        print(paper_speeds.render(values.table, found, form), end="")


def _readme(values: flags.FlagValues) -> None:
    from lambdanet.training.tpu import readme_table

    readme_table.write(values.readme, _check(values), _tell, _rows(values))
    print(f"{values.readme}: the table between its markers is new")


def _check(values: flags.FlagValues) -> Any:
    import functools

    from lambdanet.training.tpu import subprocess_check
    from lambdanet.training.tpu.cache import Cache

    return functools.partial(subprocess_check.check, cache=Cache.standard() if values.cache else None)


def _rows(values: flags.FlagValues) -> list[int]:
    for text in values.rows or ():
        if not text.isdigit():
            raise InputError(f"--rows must be numbers from 1 on, such as 1,5, got {text!r}")
    return [int(text) for text in values.rows or ()]


def _tell(line: str) -> None:
    from tqdm import tqdm

    tqdm.write(line, file=sys.stderr)  # above the progress bar, if there is one


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2))


def _notes() -> str:
    from lambdanet.training.tpu.chips import TOPOLOGIES

    return "topologies:\n" + textwrap.fill(
        ", ".join(TOPOLOGIES), 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )


_RUNS = {
    "recipe": _step,
    "model": _step,
    "experiment": _step,
    "table": _table,
    "readme": _readme,
}
_SUBJECTS = tuple(_RUNS)

COMMANDS = (
    Command(
        "tpu-check",
        "compiles a step for a TPU, without one: does it fit, how long would it take, and where",
        _tpu_check,
        flags=(
            Flag("recipe", "NAME", "the step that `lambdanet train` runs for this recipe"),
            Flag(
                "model", "NAME", "a model of the zoo, in the recipe that trains it or one like imagenet_350"
            ),
            Flag("experiment", "NAME", "the step of a detection experiment"),
            Flag("table", "N", "12, 13 or 18: the paper's speeds beside estimates, all rows; takes an hour"),
            Flag("readme", "FILE", "writes the table of families into a README, between its markers"),
            Flag(
                "topology",
                "NAME",
                "topology of the TPU (default: v3:2x2, the 8 cores of the paper)",
                default="v3:2x2",
            ),
            Flag("mode", "MODE", "train (the default) or infer", default="train"),
            Flag(
                "batch",
                "N",
                "images per core (default: 128, or that of the experiment)",
                define=flags.DEFINE_integer,
            ),
            Flag("fit", "", "find the largest batch that fits in memory", define=flags.DEFINE_boolean),
            Flag(
                "set",
                "KEY=VALUE",
                "changes a field of the recipe or experiment; may be repeated",
                define=flags.DEFINE_multi_string,
                default=(),
            ),
            Flag(
                "rows",
                "ROW,...",
                "rows of --table or --readme, from 1 (default: all)",
                define=flags.DEFINE_list,
            ),
            Flag(
                "top",
                "N",
                "number of layers and operations to print (default: 10)",
                define=flags.DEFINE_integer,
                default=10,
            ),
            Flag("format", "FORMAT", "format of --table: text (the default), markdown or csv"),
            Flag("json", "", "print JSON", define=flags.DEFINE_boolean),
            Flag(
                "cache",
                "",
                "keep the compiler's answers in $LAMBDANET_HOME/tpu_check (the default; --nocache does not)",
                define=flags.DEFINE_boolean,
                default=True,
            ),
        ),
        examples=(
            "lambdanet tpu-check --recipe=imagenet_350:lambda_resnet_152@256 --topology=v3:2x2",
            "lambdanet tpu-check --model=resnet_50_llll --mode=infer --batch=64 --topology=v5e:2x2",
            "lambdanet tpu-check --model=lambda_resnet_50 --set=input_size=160 --fit",
            "lambdanet tpu-check --table=12",
        ),
        notes=_notes,
    ),
)
