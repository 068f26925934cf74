# SPDX-License-Identifier: Apache-2.0
"""The command `tpu-check`."""

import functools
import sys
import textwrap
from collections.abc import Sequence
from json import dumps
from typing import Annotated, Any

from lambdanet.cli.training import ModelName, RecipeName, Settings
from lambdanet.core.commands import Name, command
from lambdanet.core.errors import InputError, check_count, check_known, invalid


def tpu_check(
    recipe: RecipeName | None = None,
    model: ModelName | None = None,
    experiment: Name | None = None,
    topology: Annotated[str, "NAME"] = "v3:2x2",
    mode: str = "train",
    batch_size: int | None = None,
    model_parallel: int = 1,
    backend: str | None = None,
    fit: bool = False,
    set: Settings = (),
    top: int = 10,
    json: bool = False,
    cache: bool = True,
    list_topologies: bool = False,
) -> None:
    """Estimates the memory and time of a step on a TPU; no TPU is needed.

    Args:
      recipe: check the training step of this recipe.
      model: check a model of the zoo, with its recipe or one like imagenet_350; or module:function, which
        returns a compiled model of Keras and an example batch, and a layout for --model_parallel.
      experiment: check the step of a detection experiment.
      topology: TPU topology (default: v3:2x2, the 8 cores of the paper).
      mode: train (the default) or infer.
      batch_size: images per core (default: 128; for --experiment: 8; for module:function: the example's).
      model_parallel: cores that divide the variables of a layout and compute on the same batch (default: 1).
      backend: jax (the default of --recipe and --model) or tensorflow.
      fit: find the largest batch that fits in memory.
      set: change a field of the recipe or experiment; may be repeated.
      top: number of layers and operations to print.
      json: print JSON.
      cache: compile again, instead of reading the cache in $LAMBDANET_HOME/tpu_check (default: read it).
      list_topologies: print the topologies that the compiler knows, with the figures of their chips.
    """
    if list_topologies:
        print(_known_topologies(), end="")
        return
    check_count("--top", top)
    backend = backend or ("tensorflow" if experiment else "jax")
    check_known("backend", backend, ("jax", "tensorflow"))
    if backend == "jax" and experiment:
        raise invalid("--backend", "tensorflow with --experiment", backend)
    is_function = model is not None and ":" in model
    if is_function and backend != "jax":
        raise invalid("--backend", "jax with --model=module:function", backend)
    if is_function and set:
        raise invalid("--set", "none with --model=module:function", ", ".join(set))
    if model_parallel != 1 and not is_function:
        accepted = "1, except with --model=module:function that returns a layout"
        raise invalid("--model_parallel", accepted, model_parallel)

    from lambdanet.tpu_estimates import chips

    chips.chip_of(topology)
    if is_function:
        from lambdanet.tpu_estimates import steps

        build_step = functools.partial(
            steps.step_of_function, model or "", mode, model_parallel=model_parallel
        )
    else:
        build_step = _step_builder(
            recipe or "", model or "", experiment or "", set, mode
        )

    from lambdanet.tpu_estimates import check, largest_batch, report
    from lambdanet.tpu_estimates.compiler import Cache

    opened = Cache() if cache else None

    def check_batch(**batch: int) -> report.Report:
        build = functools.partial(build_step, **batch)
        return check.check_in_process(build, topology, opened, backend)

    if fit:
        if batch_size is None:
            batch_size = 8 if experiment else 128
        found = largest_batch.largest_batch(
            lambda size: check_batch(batch_size=size), batch_size, log
        )
    elif batch_size is None:
        found = check_batch()
    else:
        found = check_batch(batch_size=batch_size)
    if json:
        print(dumps(found.to_json(top), indent=2))
    else:
        print(report.render_report(found, top), end="")


def _known_topologies() -> str:
    """Returns a table of the topologies that the installed compiler knows."""
    from lambdanet.core import text_table
    from lambdanet.tpu_estimates import chips, compiler

    rows = []
    for topology in chips.TOPOLOGIES:
        try:
            cores = len(compiler.devices_of(topology))
        except InputError:  # older and newer compilers know others
            continue
        chip = chips.chip_of(topology)
        figures = [chip.peak / 1e12, chip.hbm / chips.GIB, chip.links / 1e9]
        numbers = [f"{figure:g}" for figure in figures]
        rows.append([topology, str(cores), *numbers, chip.name, chip.source])
    header = ["topology", "cores", "TFLOP/s", "HBM (GiB)", "links (GB/s)"]
    return text_table.render([*header, "of a", "source of the figures"], rows)


def _step_builder(
    recipe_name: str,
    model: str,
    experiment: str,
    changes: Sequence[str],
    mode: str,
) -> Any:
    """Returns the function that builds the step for a `batch_size`."""
    from lambdanet import configs
    from lambdanet.configs.recipe import override
    from lambdanet.models.names import check_model

    if experiment:
        from lambdanet.detection import experiments
        from lambdanet.detection.run import train_step

        experiments.check_name(experiment)
        return functools.partial(train_step.experiment_step, experiment, changes, mode)
    if model:
        check_model(model)
    else:
        recipe = override(configs.get_recipe(recipe_name), changes)

    from lambdanet.tpu_estimates import steps

    if model:
        recipe = override(steps.recipe_for(model), changes)
    return functools.partial(steps.recipe_step, recipe, mode)


def log(line: str) -> None:
    """Prints a line to stderr, above the progress bar if there is one."""
    from tqdm import tqdm

    tqdm.write(line, file=sys.stderr)


def _notes() -> str:
    from lambdanet.tpu_estimates.chips import TOPOLOGIES

    return "topologies:\n" + textwrap.fill(
        ", ".join(TOPOLOGIES),
        100,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
    )


COMMANDS = (
    command(
        tpu_check,
        one_of=("--recipe", "--model", "--experiment", "--list_topologies"),
        examples=(
            "lambdanet tpu-check --recipe=imagenet_350:lambda_resnet_152@256 --topology=v3:2x2",
            "lambdanet tpu-check --model=resnet_50_llll --mode=infer --batch_size=64 --topology=v5e:2x2",
            "lambdanet tpu-check --model=lambda_resnet_50 --set=input_size=160 --fit",
            "lambdanet tpu-check --model=lambda_resnet_50 --topology=tpu7x:2x2x1",
            "lambdanet tpu-check --model=my_models:build --topology=v6e:2x2",
        ),
        notes=_notes,
    ),
)
