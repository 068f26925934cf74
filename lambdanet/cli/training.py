# SPDX-License-Identifier: Apache-2.0
"""The commands on recipes and runs: recipe, check, train, evaluate and export."""

import importlib
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

from lambdanet.core.commands import (
    File,
    Folder,
    Overwrite,
    RemoteFolder,
    Repeated,
    command,
)
from lambdanet.core.errors import InputError, check_known
from lambdanet.core.onednn import use_onednn
from lambdanet.core.text_table import align_columns
from lambdanet.core.which_keras import use_backend

if TYPE_CHECKING:
    from lambdanet.configs.recipe import Recipe

FORMATS = ("saved_model", "litert", "litert_int8", "litert_int8_full", "onnx")


def _fields() -> list[str]:
    from lambdanet.configs.recipe import field_types

    return list(field_types())


ModelName = Annotated[str, "NAME"]
RecipeName = Annotated[str, "NAME"]
Settings = Annotated[
    Sequence[str],
    Repeated,
    "KEY=VALUE",
    "change a field of the recipe; may be repeated",
]
DataDir = Annotated[
    str | None,
    "DIR_OR_URL",
    "folder of the pictures or TFRecords, hf:USER/REPO on the hub, or folder of TFDS's datasets (default: "
    "the run's, else ~/tensorflow_datasets)",
]
MaxBadRecords = Annotated[
    int | None,
    "N",
    "largest number of unreadable images, and of other files, to leave out (default: 100 images, and a tenth "
    "of each class's files)",
]
Backend = Annotated[
    str | None,
    "BACKEND",
    "tensorflow or jax (default: that of KERAS_BACKEND or ~/.keras/keras.json, else tensorflow)",
]


Window = Annotated[
    int,
    "PIXELS",
    "for masks: side of the windows in which large pictures are read (default: whole)",
]
Overlap = Annotated[int, "PIXELS", "--window", "what neighboring windows share"]


def _recipe(name: str, assignments: Iterable[str]) -> "Recipe":
    """Returns a recipe with the fields that `--set` changes."""
    from lambdanet import configs
    from lambdanet.configs.recipe import override
    from lambdanet.models.names import check_model

    recipe = override(configs.get_recipe(name), assignments)
    check_model(recipe.model)
    return recipe


def print_recipe(recipe: RecipeName | None = None, set: Settings = ()) -> None:
    """Prints a recipe with all its fields, or lists the recipes.

    Args:
      recipe: name of a recipe, or a file recipe.json (default: list the names).
    """
    from lambdanet.configs.recipe import to_json

    if recipe is None and set:
        raise InputError("--set needs the name of a recipe")
    print(_recipes() if recipe is None else to_json(_recipe(recipe, set)))


def check(
    recipe: RecipeName = "folder",
    data_dir: DataDir = None,
    out: Folder | None = None,
    overwrite: Annotated[Overwrite, "--out"] = False,
    set: Settings = (),
) -> None:
    """Reads the pictures of a recipe: classes, sizes, copies, and what would stop a run.

    Args:
      recipe: the recipe that they are for, such as segment for masks, or a file recipe.json.
      out: folder for pictures.html, the first pictures of training after augmentation (default: none).
    """
    changed = _recipe(recipe, set)
    use_backend("tensorflow")  # reads the data of both

    from lambdanet.training import check

    check.check(changed, data_dir, out, overwrite)


def train(
    recipe: RecipeName,
    model_dir: Folder,
    data_dir: DataDir = None,
    max_bad_records: MaxBadRecords = None,
    backend: Backend = None,
    distribute: Annotated[str, "CHOICE"] = "auto",
    class_map: File | None = None,
    tpu: str | None = None,
    save_every: Annotated[int, "STEPS"] = 1000,
    steps_per_execution: Annotated[int, "STEPS"] = 1,
    accept_new_data: bool = False,
    callback: Annotated[Sequence[str], Repeated, "MODULE:FUNCTION"] = (),
    deterministic: bool = False,
    set: Settings = (),
) -> None:
    """Trains a recipe; run the same command again to resume.

    Args:
      recipe: the recipe to train, such as digits, or a file recipe.json.
      model_dir: folder for the run's recipe, checkpoints and logs.
      distribute: auto (the default: all GPUs), one_device, mirrored, multi_worker (with TF_CONFIG) or tpu.
      class_map: names of the classes in the order of their labels, one per line, as timm's (default: the
        data's).
      tpu: local, the name of a TPU in Google Cloud, or grpc://HOST:PORT (default: none).
      save_every: steps between checkpoints within an epoch.
      steps_per_execution: steps per call of the compiled function, for TPUs.
      accept_new_data: resume on other pictures than those that the run began with.
      callback: function(recipe, model_dir) that returns a Keras callback; may be repeated (default: none).
      deterministic: make runs of the same recipe bitwise reproducible; slower.
    """
    changed = _recipe(recipe, set)
    use_backend(backend)
    use_onednn()

    from lambdanet.training import train
    from lambdanet.training.data.task import task_of

    result = train.train(
        changed,
        model_dir,
        data_dir,
        max_bad_records=max_bad_records,
        distribute=distribute,
        class_map=class_map,
        tpu=tpu,
        save_every=save_every,
        steps_per_execution=steps_per_execution,
        accept_new_data=accept_new_data,
        callback=callback,
        deterministic=deterministic,
    )
    line = f"{result['model_dir']}: epoch {result['epoch']}, step {result['step']}"
    metric = task_of(changed).best
    if f"val_{metric}" in result:  # missing if the history was removed
        split = changed.held_out_split or changed.eval_split
        name = metric.replace("_", " ")
        line += f", {name} on {split} {100 * result[f'val_{metric}']:.2f} %"
    if "best_epoch" in result:
        best = 100 * result[f"best_val_{metric}"]
        line += f"; the best is epoch {result['best_epoch']} with {best:.2f} %"
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


def evaluate(
    model_dir: Folder,
    data_dir: DataDir = None,
    max_bad_records: MaxBadRecords = None,
    backend: Backend = None,
    split: str | None = None,
    out: Folder | None = None,
    window: Window = 0,
    overlap: Overlap = 64,
    flip: bool = False,
    overwrite: Annotated[Overwrite, "--out"] = False,
) -> None:
    """Measures the accuracy of a trained model on a split of its dataset.

    Args:
      model_dir: folder of a run of `lambdanet train`.
      split: split of the dataset (default: the recipe's eval_split).
      out: folder for tables and drawings, such as classes.csv (default: none).
      flip: average the logits of each picture and its mirror image.
    """
    use_backend(backend)
    use_onednn()

    from lambdanet.training import evaluate

    evaluate.evaluate(
        model_dir,
        data_dir,
        split,
        max_bad_records,
        out,
        window,
        overlap,
        flip,
        overwrite,
    )


def export(
    out: RemoteFolder,
    model_dir: Folder | None = None,
    data_dir: Annotated[DataDir, "--model_dir"] = None,
    format: str = "saved_model",
    model: Annotated[ModelName | None, "--weights"] = None,
    weights: Annotated[str | None, "--model"] = None,
    class_names: Annotated[File | None, "--model"] = None,
    opset: Annotated[int | None, "--format=onnx"] = None,
    calibration: Annotated[
        Folder | None, "--model", "--format=litert_int8_full"
    ] = None,
    any_size: Annotated[
        bool, "--format=litert or --format=litert_int8 or --format=onnx"
    ] = False,
    batch_size: Annotated[
        int | None,
        "--format=litert or --format=litert_int8 or --format=litert_int8_full or --format=onnx",
    ] = None,
    calibrate: Annotated[bool, "--model_dir"] = False,
    overwrite: Overwrite = False,
) -> None:
    """Writes a trained model as a SavedModel that takes raw pictures, or for LiteRT or ONNX.

    Args:
      out: folder for the SavedModel, model.tflite or model.onnx.
      model_dir: folder of a run of `lambdanet train`.
      format: saved_model (the default), litert, litert_int8 (a quarter of the size), litert_int8_full (with
        8-bit activations too, calibrated on pictures of training) or onnx.
      model: a model of the zoo, instead of --model_dir.
      weights: for --model: imagenet, a set of `lambdanet info`, hf:USER/REPO, a .safetensors file, or a
        folder of `lambdanet convert`.
      class_names: for --model: the class names, one per line (default: ImageNet's).
      opset: for --format=onnx: the version of its operators, from 14 to 18 (default: 17).
      calibration: for --model and --format=litert_int8_full: folder of pictures such as the model is for.
      any_size: for litert, litert_int8 and onnx: take pictures of any size, if the network does.
      batch_size: for litert, litert_int8, litert_int8_full and onnx: take this number of pictures at a time,
        with fixed shapes throughout, as compilers for NPUs need (default: any number).
      calibrate: divide the logits by a temperature that is fitted on the run's held-out or evaluation split.
    """
    check_known("format", format, FORMATS)
    if model:
        from lambdanet.models.names import check_model

        check_model(model)
    use_backend("tensorflow")  # reads the checkpoints of both

    from lambdanet.training.serving import export as exporter

    options = exporter.Options(format, opset, any_size, batch_size)
    if model_dir:
        exporter.export(model_dir, out, data_dir, options, calibrate, overwrite)
    else:
        exporter.export_weights(
            str(model),
            str(weights),
            out,
            class_names,
            options,
            calibration,
            overwrite,
        )


COMMANDS = (
    command(
        print_recipe,
        "recipe",
        positional="recipe",
        examples=(
            "lambdanet recipe imagenet_350:lambda_resnet_50@160",
            "lambdanet recipe digits --set=epochs=5",
        ),
    ),
    command(
        check,
        fields=_fields,
        examples=(
            "lambdanet check --data_dir=/tmp/pictures",
            "lambdanet check --recipe=segment --data_dir=/tmp/masks --out=/tmp/masks_check",
        ),
    ),
    command(
        train,
        fields=_fields,
        examples=(
            "lambdanet train --recipe=digits --model_dir=/tmp/digits",
            "lambdanet train --recipe=digits --model_dir=/tmp/short --set=epochs=5 --set=learning_rate=0.05",
            "lambdanet train --recipe=folder --data_dir=/tmp/pictures --model_dir=/tmp/mine",
            "lambdanet train --recipe=finetune:lambda_resnet26t --data_dir=/tmp/pets --model_dir=/tmp/tuned",
            "lambdanet train --recipe=imagenet_90:resnet_50 --model_dir=/tmp/run --tpu=local --backend=jax",
        ),
        notes=_train_notes,
    ),
    command(
        evaluate,
        examples=(
            "lambdanet evaluate --model_dir=/tmp/digits --out=/tmp/digits_evaluation",
            "lambdanet evaluate --model_dir=/tmp/digits --split='train[:10%]'",
        ),
    ),
    command(
        export,
        one_of=("--model_dir", "--model"),
        examples=(
            "lambdanet export --model_dir=/tmp/digits --out=/tmp/digits_model",
            "lambdanet export --model_dir=/tmp/digits --out=/tmp/digits_litert --format=litert_int8",
            "lambdanet export --model=lambda_resnet50ts --weights=imagenet --out=/tmp/imagenet_model",
            "lambdanet export --model=lambda_resnet26t --weights=imagenet --out=/tmp/onnx --format=onnx",
        ),
    ),
)
