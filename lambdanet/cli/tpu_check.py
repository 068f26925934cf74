# SPDX-License-Identifier: Apache-2.0
"""The command `tpu-check`."""

import functools
import json
import sys
import textwrap
from typing import Any

from absl import flags

from lambdanet.command_line import (
    Command,
    Flag,
    IntegerFlag,
    ListFlag,
    RepeatedFlag,
    switch,
)
from lambdanet.errors import InputError, check_count, check_known, invalid


def _tpu_check(values: flags.FlagValues, arguments: list[str]) -> None:
    targets = [name for name in _HANDLERS if values[name].value]
    if len(targets) != 1:
        got = (
            f", got {' and '.join(f'--{name}' for name in targets)}" if targets else ""
        )
        raise InputError(
            f"`tpu-check` needs one of {', '.join(f'--{name}' for name in _HANDLERS)}{got}"
        )
    check_count("--top", values.top)
    check_known("backend", _backend(values), ("jax", "tensorflow"))
    if values.backend == "jax" and not (values.recipe or values.model):
        raise invalid("--backend", f"tensorflow with --{targets[0]}", values.backend)

    from lambdanet.tpu import chips

    chips.chip_of(values.topology)
    _HANDLERS[targets[0]](values)


def _step(values: flags.FlagValues) -> None:
    build_step = _step_builder(values)

    from lambdanet.tpu import largest_batch, report

    check = _check(values)

    def check_batch(**batch: int) -> report.Report:
        return check(functools.partial(build_step, **batch), values.topology)

    batch = {} if values.batch_size is None else {"batch_size": values.batch_size}
    if values.fit:
        start = batch.get("batch_size", 8 if values.experiment else 128)
        found = largest_batch.largest_batch(
            lambda size: check_batch(batch_size=size), start, log
        )
    else:
        found = check_batch(**batch)
    if values.json:
        _print_json(found.to_json(values.top))
    else:
        print(report.render_report(found, values.top), end="")


def _step_builder(values: flags.FlagValues) -> Any:
    """Returns the function that builds the step for a `batch_size`."""
    from lambdanet import configs
    from lambdanet.configs.recipe import override
    from lambdanet.models.names import check_model

    changes = values["set"].value or ()
    if values.experiment:
        from lambdanet.detection import experiments
        from lambdanet.detection.run import train_step

        experiments.check_name(values.experiment)
        return functools.partial(
            train_step.experiment_step, values.experiment, changes, values.mode
        )
    if values.model:
        check_model(values.model)
    recipe = (
        override(configs.get_recipe(values.recipe), changes) if values.recipe else None
    )

    from lambdanet.tpu import steps

    recipe = recipe or override(steps.recipe_for(values.model), changes)
    return functools.partial(steps.recipe_step, recipe, values.mode)


def _table(values: flags.FlagValues) -> None:
    from lambdanet import text_table
    from lambdanet.models.papers import speeds

    table_format = text_table.check_format(values.format or "text")
    check_known("table of speeds", values.table, speeds.TABLES)
    rows = _rows(values)

    from lambdanet.tpu import speed_tables

    estimates = speed_tables.estimate(values.table, _check(values), rows, log)
    if values.json:
        _print_json(speed_tables.to_json(values.table, estimates))
    else:
        print(speed_tables.render_speeds(values.table, estimates, table_format), end="")


def _families(values: flags.FlagValues) -> None:
    from lambdanet import text_table

    table_format = text_table.check_format(values.format or "text")

    from lambdanet.tpu import speed_tables

    print(
        speed_tables.render_families(_check(values), log, _rows(values), table_format),
        end="",
    )


def _check(values: flags.FlagValues) -> Any:
    from lambdanet.tpu import check
    from lambdanet.tpu.compiler import Cache

    cache = Cache.open_default() if values.cache else None
    return functools.partial(
        check.check_in_process, cache=cache, backend=_backend(values)
    )


def _backend(values: flags.FlagValues) -> str:
    """Returns the backend of Keras: JAX, but TensorFlow for the papers' tables, and for detection."""
    return values.backend or ("jax" if values.recipe or values.model else "tensorflow")


def _rows(values: flags.FlagValues) -> list[int]:
    for text in values.rows or ():
        if not text.isdigit():
            raise invalid("--rows", "numbers from 1, such as 1,5", text)
    return [int(text) for text in values.rows or ()]


def log(line: str) -> None:
    """Prints a line to stderr, above the progress bar if there is one."""
    from tqdm import tqdm

    tqdm.write(line, file=sys.stderr)


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2))


def _notes() -> str:
    from lambdanet.tpu.chips import TOPOLOGIES

    return "topologies:\n" + textwrap.fill(
        ", ".join(TOPOLOGIES),
        100,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
    )


_HANDLERS = {
    "recipe": _step,
    "model": _step,
    "experiment": _step,
    "table": _table,
    "families": _families,
}

COMMANDS = (
    Command(
        "tpu-check",
        "estimates the memory and time of a step on a TPU; no TPU is needed",
        _tpu_check,
        flags=(
            Flag("recipe", "NAME", "check the training step of this recipe"),
            Flag(
                "model",
                "NAME",
                "check a model of the zoo, with its recipe or one like imagenet_350",
            ),
            Flag("experiment", "NAME", "check the step of a detection experiment"),
            Flag(
                "table",
                "N",
                "compare the paper's speed table 12, 13 or 18 with estimates; takes an hour",
            ),
            switch(
                "families",
                "print the memory and time of a model of each family; takes hours",
            ),
            Flag(
                "topology",
                "NAME",
                "TPU topology (default: v3:2x2, the 8 cores of the paper)",
                default="v3:2x2",
            ),
            Flag("mode", "MODE", "train (the default) or infer", default="train"),
            IntegerFlag(
                "batch_size", "N", "images per core (default: 128; for --experiment: 8)"
            ),
            Flag(
                "backend",
                "BACKEND",
                "jax (the default of --recipe and --model) or tensorflow",
            ),
            switch("fit", "find the largest batch that fits in memory"),
            RepeatedFlag(
                "set",
                "KEY=VALUE",
                "change a field of the recipe or experiment; may be repeated",
                default=(),
            ),
            ListFlag(
                "rows",
                "ROW,...",
                "rows of --table or --families, from 1 (default: all)",
            ),
            IntegerFlag(
                "top",
                "N",
                "number of layers and operations to print (default: 10)",
                default=10,
            ),
            Flag(
                "format",
                "FORMAT",
                "for --table and --families: text (the default), markdown or csv",
            ),
            switch("json", "print JSON"),
            switch(
                "cache",
                "compile again, instead of reading the cache in $LAMBDANET_HOME/tpu_check",
                default=True,
            ),
        ),
        examples=(
            "lambdanet tpu-check --recipe=imagenet_350:lambda_resnet_152@256 --topology=v3:2x2",
            "lambdanet tpu-check --model=resnet_50_llll --mode=infer --batch_size=64 --topology=v5e:2x2",
            "lambdanet tpu-check --model=lambda_resnet_50 --set=input_size=160 --fit",
            "lambdanet tpu-check --model=lambda_resnet_50 --topology=v5e:2x2",
            "lambdanet tpu-check --table=12",
        ),
        notes=_notes,
    ),
)
