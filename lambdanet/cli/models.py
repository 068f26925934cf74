# SPDX-License-Identifier: Apache-2.0
"""The commands on models: list, info and convert."""

from typing import Annotated

from lambdanet.core.commands import File, Folder, command
from lambdanet.core.errors import InputError
from lambdanet.core.text_table import align_columns


def list_models(
    pattern: str | None = None,
    sizes: bool = False,
    pretrained: bool = False,
    format: str = "text",
) -> None:
    """Lists all models, or those that match a pattern.

    Args:
      pattern: the models whose names match it, such as 'halonet_h*'.
      sizes: add parameters and FLOPs.
      pretrained: only models with published weights, and their top-1 accuracies.
      format: text, markdown or csv.
    """
    from lambdanet.models import names as zoo_names

    patterns = [] if pattern is None else [pattern]
    names = zoo_names.list_models(*patterns, pretrained=pretrained)
    if not names:
        what = "no model with published weights" if pretrained else "no model"
        which = "every name" if pattern is None else repr(pattern)
        raise InputError(f"{what} matches {which}; `lambdanet list` shows all of them")
    print(zoo_names.render_table(names, sizes, format, pretrained), end="")


def print_info(model: str | None = None, environment: bool = False) -> None:
    """Prints the size, cost and source of a model, or the environment.

    Args:
      model: a model of `lambdanet list`.
      environment: versions, Keras, backend and devices, for reports of faults.
    """
    if environment == bool(model):
        raise InputError("`info` needs MODEL or --environment")
    if model is None:
        from lambdanet.cli.environment import environment_rows

        print(align_columns(environment_rows()))
        return
    from lambdanet.models.names import check_model

    check_model(model)

    from lambdanet.models import zoo
    from lambdanet.models.weights import weight_files

    info = zoo.model_info(model)
    architecture = zoo.MODELS[model]
    size = "x".join([str(info.input_size)] * architecture.rank)
    sets = [published.tag for published in info.weights]
    sets += [f"{name}, in the package" for name in weight_files.packaged_sets(model)]
    rows = {
        "parameters": f"{info.params:,}",
        "FLOPs": f"{info.flops:,} for an image of {size} pixels",
        "maps": ", ".join(
            f"{stage.channels} channels at stride {stage.stride}"
            for stage in info.stages
        ),
        "embedding": f"{info.embedding_size} channels",
        "source": info.source,
        "options": ", ".join(sorted(architecture.option_names())) or "none",
        "recipes": ", ".join(info.recipes) or "none",
        "weights": "; ".join(sets) or "none",
    }
    print(f"{info.name}\n{align_columns(list(rows.items()))}")
    for published in info.weights:
        print(
            f"weights {published.tag}\n{align_columns(list(published.summary().items()))}"
        )


def convert(
    model: str,
    checkpoint: File | None = None,
    out: Folder | None = None,
    revision: Annotated[str | None, "COMMIT"] = None,
    as_published: bool = False,
    class_map: File | None = None,
) -> None:
    """Converts trained weights of a timm network to Keras.

    Args:
      model: a model of `lambdanet list --pretrained`.
      checkpoint: a safetensors or PyTorch file (default: the published one, from the Hugging Face hub).
      out: folder for weights, metadata and model card (default: the cache, for weights="imagenet").
      revision: commit of the hub's repository (default: the tested one).
      as_published: take FILE for the published weights where their sha256 is not known here.
      class_map: names of the classes in the order of the logits, one per line, to keep with the weights.
    """
    from lambdanet.configs.registry import pretrained_weights

    pretrained_weights.get(model)

    from lambdanet.training import convert

    path = convert.convert(model, checkpoint, out, revision, as_published, class_map)
    print(f"converted {model}: {path}")


COMMANDS = (
    command(
        list_models,
        "list",
        positional="pattern",
        examples=("lambdanet list", "lambdanet list 'lambda_resnet_*' --sizes"),
    ),
    command(
        print_info,
        "info",
        positional="model",
        examples=("lambdanet info lambda_resnet_152", "lambdanet info --environment"),
    ),
    command(
        convert,
        positional="model",
        examples=(
            "lambdanet convert lambda_resnet50ts --out=/tmp/lambda_resnet50ts",
            "lambdanet convert lambda_resnet50ts --checkpoint=model.safetensors",
        ),
    ),
)
