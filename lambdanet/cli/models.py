# SPDX-License-Identifier: Apache-2.0
"""The commands on models: list, info, table and convert."""

from absl import flags

from lambdanet.command_line import Arguments, Command, Flag, switch
from lambdanet.errors import InputError, check_known
from lambdanet.text_table import align_columns


def _list(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet.models import names as zoo_names

    names = zoo_names.list_models(*arguments, pretrained=values.pretrained)
    if not names:
        what = "no model with published weights" if values.pretrained else "no model"
        pattern = repr(arguments[0]) if arguments else "every name"
        raise InputError(
            f"{what} matches {pattern}; `lambdanet list` shows all of them"
        )
    print(
        zoo_names.render_table(
            names, values.sizes, values.format or "text", values.pretrained
        ),
        end="",
    )


def _info(values: flags.FlagValues, arguments: list[str]) -> None:
    if values.environment == bool(arguments):
        raise InputError("`info` needs MODEL or --environment")
    if values.environment:
        from lambdanet.cli.environment import environment_rows

        print(align_columns(environment_rows()))
        return
    from lambdanet.models.names import check_model

    check_model(arguments[0])

    from lambdanet.models import zoo

    info = zoo.model_info(arguments[0])
    rows = {
        "parameters": f"{info.params:,}",
        "FLOPs": f"{info.flops:,} for an image of {info.input_size}x{info.input_size} pixels",
        "maps": ", ".join(
            f"{stage.channels} channels at stride {stage.stride}"
            for stage in info.stages
        ),
        "embedding": f"{info.embedding_size} channels",
        "source": info.source,
        "options": ", ".join(sorted(zoo.MODELS[info.name].option_names())) or "none",
        "recipes": ", ".join(info.recipes) or "none",
        "weights": ", ".join(published.tag for published in info.weights) or "none",
    }
    print(f"{info.name}\n{align_columns(list(rows.items()))}")
    for published in info.weights:
        print(
            f"weights {published.tag}\n{align_columns(list(published.summary().items()))}"
        )


def _table(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet import text_table
    from lambdanet.models.papers.sizes import TABLES

    numbers = list(TABLES) if values.all else [number.upper() for number in arguments]
    if not numbers:
        raise InputError(
            f"`table` needs TABLE... or --all; the tables are {', '.join(TABLES)}"
        )
    for number in numbers:
        check_known("table", number, TABLES)
    table_format = text_table.check_format(values.format or "text")

    from lambdanet.models.papers import comparison

    for index, number in enumerate(numbers):
        separator = "\n" if index and table_format != "csv" else ""
        print(
            separator
            + comparison.render_comparison(number, table_format, with_header=not index),
            end="",
            flush=True,
        )


def _table_notes() -> str:
    from lambdanet.models.papers.sizes import TABLES

    rows = [(number, table.title) for number, table in TABLES.items()]
    return f"tables of LambdaNetworks (numbers) and HaloNet (letters):\n{align_columns(rows)}"


def _convert(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet.configs.registry import pretrained_weights

    pretrained_weights.get(arguments[0])

    from lambdanet.training import convert

    path = convert.convert(
        arguments[0],
        values.checkpoint,
        values.out,
        values.revision,
        values.as_published,
        values.class_map,
    )
    print(f"converted {arguments[0]}: {path}")


COMMANDS = (
    Command(
        "list",
        "lists all models, or those that match a pattern",
        _list,
        flags=(
            switch("sizes", "add parameters and FLOPs"),
            switch(
                "pretrained",
                "only models with published weights, and their top-1 accuracies",
            ),
            Flag("format", "FORMAT", "text (the default), markdown or csv"),
        ),
        arguments=Arguments(
            "[PATTERN]", "the models whose names match it, such as 'halonet_h*'", 0, 1
        ),
        examples=("lambdanet list", "lambdanet list 'lambda_resnet_*' --sizes"),
    ),
    Command(
        "info",
        "prints the size, cost and source of a model, or the environment",
        _info,
        flags=(
            switch(
                "environment",
                "versions, Keras, backend and devices, for reports of faults",
                False,
            ),
        ),
        arguments=Arguments("[MODEL]", "a model of `lambdanet list`", 0, 1),
        examples=("lambdanet info lambda_resnet_152", "lambdanet info --environment"),
    ),
    Command(
        "table",
        "compares the sizes in the papers' tables with the models of lambdanet",
        _table,
        flags=(
            switch("all", "all tables of both papers; takes half a minute"),
            Flag("format", "FORMAT", "text (the default), markdown or csv"),
        ),
        arguments=Arguments(
            "[TABLE...]", "numbers of tables, see below", 0, float("inf")
        ),
        notes=_table_notes,
        examples=("lambdanet table 12", "lambdanet table --all --format=csv"),
    ),
    Command(
        "convert",
        "converts trained weights of a timm network to Keras",
        _convert,
        flags=(
            Flag(
                "checkpoint",
                "FILE",
                "a safetensors or PyTorch file (default: the published one, from the Hugging Face hub)",
            ),
            Flag(
                "out",
                "DIR",
                'folder for weights, metadata and model card (default: the cache, for weights="imagenet")',
            ),
            Flag(
                "revision",
                "COMMIT",
                "commit of the hub's repository (default: the tested one)",
            ),
            switch(
                "as_published",
                "take FILE for the published weights where their sha256 is not known here",
                False,
            ),
            Flag(
                "class_map",
                "FILE",
                "names of the classes in the order of the logits, one per line, to keep with the weights",
            ),
        ),
        arguments=Arguments("MODEL", "a model of `lambdanet list --pretrained`", 1, 1),
        examples=(
            "lambdanet convert lambda_resnet50ts --out=/tmp/lambda_resnet50ts",
            "lambdanet convert lambda_resnet50ts --checkpoint=model.safetensors",
        ),
    ),
)
