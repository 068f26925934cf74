# SPDX-License-Identifier: Apache-2.0
"""The commands on recipes and runs: recipe, train, evaluate and export."""

import dataclasses
import importlib
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from absl import flags

from lambdanet.command_line import (
    Arguments,
    Command,
    Flag,
    IntegerFlag,
    RepeatedFlag,
    switch,
)
from lambdanet.errors import InputError, check_known
from lambdanet.text_table import align_columns
from lambdanet.which_keras import use_backend

if TYPE_CHECKING:
    from lambdanet.configs.recipe import Recipe


def _recipe(name: str, assignments: Iterable[str]) -> "Recipe":
    """Returns a recipe with the fields that `--set` changes."""
    from lambdanet import configs
    from lambdanet.configs.recipe import override
    from lambdanet.models.names import check_model

    recipe = override(configs.get_recipe(name), assignments)
    check_model(recipe.model)
    return recipe


def _fields() -> list[str]:
    from lambdanet.configs.recipe import field_types

    return list(field_types())


def _print_recipe(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet.configs.recipe import to_json

    print(
        to_json(_recipe(arguments[0], values["set"].value)) if arguments else _recipes()
    )


def _train(values: flags.FlagValues, arguments: list[str]) -> None:
    recipe = _recipe(values.recipe, values["set"].value)
    use_backend(values.backend, _BACKENDS)

    from lambdanet.training import train

    options = {
        flag.name: values[flag.name].value for flag in (MAX_BAD_RECORDS, *_TRAIN_FLAGS)
    }
    result = train.train(recipe, values.model_dir, values.data_dir, **options)
    line = f"{result['model_dir']}: epoch {result['epoch']}, step {result['step']}"
    if "val_accuracy" in result:  # missing if the history was removed
        split = recipe.held_out_split or recipe.eval_split
        line += f", accuracy on {split} {100 * result['val_accuracy']:.2f} %"
    if "best_epoch" in result:
        line += f"; the best is epoch {result['best_epoch']} with {100 * result['best_val_accuracy']:.2f} %"
    print(line)


def _train_notes() -> str:
    from lambdanet.configs.recipe import describe_fields

    fields = [("field", "type", "default", "meaning")]
    for name, kind, default, meaning in describe_fields():
        fields.append(
            (
                name,
                kind,
                "the recipe's" if default is None else default or "empty",
                meaning,
            )
        )
    recipes = f"recipes (NAME, or NAME:ROW such as imagenet_350:lambda_resnet_50@160):\n{_recipes()}"
    return f"{recipes}\n\nfields for --set (recipes override some of the defaults):\n{align_columns(fields)}"


def _recipes() -> str:
    """Returns the name and summary of each module of recipes, and its rows, one word per model."""
    from lambdanet import configs

    modules: dict[str, dict[str, list[str]]] = {}
    for name in configs.list_recipes():
        module, _, row = name.partition(":")
        model, at, size = row.partition("@")
        modules.setdefault(module, {}).setdefault(model, []).append(at + size)
    lines = []
    for module, models in modules.items():
        summary = importlib.import_module(f"{configs.__name__}.{module}").__doc__ or ""
        lines.append(f"  {module}: {summary.splitlines()[0]}")
        rows = ", ".join(
            f"{model}{','.join(sizes)}" for model, sizes in models.items() if model
        )
        lines += textwrap.wrap(
            rows, 100, initial_indent="      ", subsequent_indent="      "
        )
    return "\n".join(lines)


def _evaluate(values: flags.FlagValues, arguments: list[str]) -> None:
    use_backend(values.backend, _BACKENDS)

    from lambdanet.training import evaluate

    evaluate.evaluate(
        values.model_dir,
        values.data_dir,
        values.split,
        values.max_bad_records,
        values.out,
    )


def _export(values: flags.FlagValues, arguments: list[str]) -> None:
    if bool(values.model_dir) == bool(values.model and values.weights):
        raise InputError("`export` needs either --model_dir, or --model and --weights")
    check_known("format", values.format, _FORMATS)
    if values.model:
        from lambdanet.models.names import check_model

        check_model(values.model)
    use_backend("tensorflow", _BACKENDS)  # reads the checkpoints of both

    is_saved_model = values.format == _FORMATS[0]
    # Which needs the dependencies of training.
    module = "export" if is_saved_model else "export_runtimes"
    exporter = importlib.import_module(f"lambdanet.training.serving.{module}")
    options = {} if is_saved_model else {"format": values.format}
    if values.model_dir:
        exporter.export(values.model_dir, values.out, values.data_dir, **options)
    else:
        exporter.export_weights(
            values.model, values.weights, values.out, values.class_names, **options
        )


_FORMATS = ("saved_model", "litert", "litert_int8", "onnx")
_BACKENDS = ("tensorflow", "jax")
_BACKEND = Flag(
    "backend",
    "BACKEND",
    "tensorflow or jax (default: that of KERAS_BACKEND or ~/.keras/keras.json, else tensorflow)",
)
_MODEL_DIR = Flag(
    "model_dir", "DIR", "folder of a run of `lambdanet train`", required=True
)
_DATA_DIR = Flag(
    "data_dir",
    "DIR",
    "folder of the pictures or TFRecords, or of TFDS's datasets (default: the run's, else "
    "~/tensorflow_datasets)",
)
MAX_BAD_RECORDS = IntegerFlag(
    "max_bad_records",
    "N",
    "largest number of unreadable images, and of other files, to leave out (default: 100 images, and a tenth "
    "of each class's files)",
)
_TRAIN_FLAGS = (
    Flag(
        "distribute",
        "CHOICE",
        "auto (the default: all GPUs), one_device, mirrored, multi_worker (with TF_CONFIG) or tpu",
        default="auto",
    ),
    Flag(
        "class_map",
        "FILE",
        "names of the classes in the order of their labels, one per line, as timm's (default: the data's)",
    ),
    Flag(
        "tpu",
        "TPU",
        "local, the name of a TPU in Google Cloud, or grpc://HOST:PORT (default: none)",
    ),
    IntegerFlag(
        "save_every",
        "STEPS",
        "steps between checkpoints within an epoch (default: 1000)",
        default=1000,
    ),
    IntegerFlag(
        "steps_per_execution",
        "STEPS",
        "steps per call of the compiled function, for TPUs (default: 1)",
        default=1,
    ),
    RepeatedFlag(
        "callback",
        "MODULE:FUNCTION",
        "function(recipe, model_dir) that returns a Keras callback; may be repeated (default: none)",
        default=(),
    ),
    switch(
        "deterministic",
        "make runs of the same recipe bitwise reproducible; slower",
        default=False,
    ),
)

_SET = RepeatedFlag(
    "set", "KEY=VALUE", "change a field of the recipe; may be repeated", default=()
)

COMMANDS = (
    Command(
        "recipe",
        "prints a recipe with all its fields, or lists the recipes",
        _print_recipe,
        flags=(_SET,),
        arguments=Arguments(
            "[NAME]",
            "name of a recipe, or a file recipe.json (default: list the names)",
            0,
            1,
        ),
        examples=(
            "lambdanet recipe imagenet_350:lambda_resnet_50@160",
            "lambdanet recipe digits --set=epochs=5",
        ),
    ),
    Command(
        "train",
        "trains a recipe; run the same command again to resume",
        _train,
        fields=_fields,
        flags=(
            Flag(
                "recipe",
                "NAME",
                "the recipe to train, such as digits, or a file recipe.json",
                required=True,
            ),
            Flag(
                "model_dir",
                "DIR",
                "folder for the run's recipe, checkpoints and logs",
                required=True,
            ),
            _DATA_DIR,
            MAX_BAD_RECORDS,
            _BACKEND,
            *_TRAIN_FLAGS,
            _SET,
        ),
        examples=(
            "lambdanet train --recipe=digits --model_dir=/tmp/digits",
            "lambdanet train --recipe=digits --model_dir=/tmp/short --set=epochs=5 --set=learning_rate=0.05",
            "lambdanet train --recipe=folder --data_dir=/tmp/pictures --model_dir=/tmp/mine",
            "lambdanet train --recipe=finetune:lambda_resnet26t --data_dir=/tmp/pets --model_dir=/tmp/tuned",
            "lambdanet train --recipe=imagenet_90:resnet_50 --model_dir=/tmp/run --tpu=local --backend=jax",
        ),
        notes=_train_notes,
    ),
    Command(
        "evaluate",
        "measures the accuracy of a trained model on a split of its dataset",
        _evaluate,
        flags=(
            _MODEL_DIR,
            _DATA_DIR,
            MAX_BAD_RECORDS,
            _BACKEND,
            Flag(
                "split",
                "SPLIT",
                "split of the dataset (default: the recipe's eval_split)",
            ),
            Flag(
                "out",
                "DIR",
                "folder for classes.csv, wrong.csv and confusion.png (default: none)",
            ),
        ),
        examples=(
            "lambdanet evaluate --model_dir=/tmp/digits --out=/tmp/digits_evaluation",
            "lambdanet evaluate --model_dir=/tmp/digits --split='train[:10%]'",
        ),
    ),
    Command(
        "export",
        "writes a trained model as a SavedModel that takes raw pictures, or for LiteRT or ONNX",
        _export,
        flags=(
            dataclasses.replace(_MODEL_DIR, required=False),
            Flag(
                "out",
                "DIR",
                "folder for the SavedModel, model.tflite or model.onnx",
                required=True,
            ),
            _DATA_DIR,
            Flag(
                "format",
                "FORMAT",
                "saved_model (the default), litert, litert_int8 (a quarter of the size) or onnx",
                default=_FORMATS[0],
            ),
            Flag("model", "NAME", "a model of the zoo, instead of --model_dir"),
            Flag(
                "weights",
                "WEIGHTS",
                "for --model: imagenet, a tag of `lambdanet info`, hf:USER/REPO, a .safetensors file, or a "
                "folder of `lambdanet convert`",
            ),
            Flag(
                "class_names",
                "FILE",
                "for --model: the class names, one per line (default: ImageNet's)",
            ),
        ),
        examples=(
            "lambdanet export --model_dir=/tmp/digits --out=/tmp/digits_model",
            "lambdanet export --model_dir=/tmp/digits --out=/tmp/digits_litert --format=litert_int8",
            "lambdanet export --model=lambda_resnet50ts --weights=imagenet --out=/tmp/imagenet_model",
            "lambdanet export --model=lambda_resnet26t --weights=imagenet --out=/tmp/onnx --format=onnx",
        ),
    ),
)
