# SPDX-License-Identifier: Apache-2.0
"""The commands of a model's life: train, evaluate, export, predict."""

import dataclasses
import textwrap

from absl import flags

from lambdanet.command_line import Command, Flag, aligned
from lambdanet.errors import InputError, Unfinished, unknown


def _train(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet import configs
    from lambdanet.configs.recipe import override
    from lambdanet.models.names import check_model

    recipe = override(configs.get_recipe(values.recipe), values["set"].value or ())
    check_model(recipe.model)

    from lambdanet.training import train

    how = {flag.name: values[flag.name].value for flag in (_MAX_BAD_RECORDS, *_HOW_TO_TRAIN)}
    result = train.train(recipe, values.model_dir, values.data_dir, **how)
    line = f"{result['model_dir']}: epoch {result['epoch']}, step {result['step']}"
    if "val_accuracy" in result:  # not where the history was removed
        split = recipe.held_out_split or recipe.eval_split
        line += f", accuracy on {split} {100 * result['val_accuracy']:.2f} %"
    if "best_epoch" in result:
        line += f"; the best is epoch {result['best_epoch']} with {100 * result['best_val_accuracy']:.2f} %"
    print(line)


def _train_notes() -> str:
    from lambdanet import configs
    from lambdanet.configs.recipe import describe_fields

    fields = [("field", "type", "default", "meaning")]
    for name, kind, default, meaning in describe_fields():
        fields.append((name, kind, "of the recipe" if default is None else default or "empty", meaning))
    modules: dict[str, list[str]] = {}
    for name in configs.list_recipes():
        modules.setdefault(name.partition(":")[0], []).append(name)
    recipes = "\n".join(
        textwrap.fill(", ".join(names), 100, initial_indent="  ", subsequent_indent="    ")
        for names in modules.values()
    )
    title = "fields for --set (recipes have values of their own for many):"
    return f"recipes:\n{recipes}\n\n{title}\n{aligned(fields)}"


def _evaluate(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet.training import evaluate

    evaluate.evaluate(values.model_dir, values.data_dir, values.split, values.max_bad_records, values.out)


def _export(values: flags.FlagValues, arguments: list[str]) -> None:
    if bool(values.model_dir) == bool(values.model and values.weights):
        raise InputError("`export` needs --model_dir, or --model and --weights; give one of the two")
    if values.format not in _FORMATS:
        raise unknown("format", values.format, _FORMATS)
    if values.format != _FORMATS[0]:
        if not values.model_dir:
            raise InputError(f"format is {values.format!r}; accepted with --model: {_FORMATS[0]}")

        from lambdanet.training.serving import export_runtimes

        export_runtimes.export(values.model_dir, values.out, values.data_dir, values.format)
        return

    if values.model:
        from lambdanet.models.names import check_model

        check_model(values.model)

    from lambdanet.training.serving import export

    if values.model_dir:
        export.export(values.model_dir, values.out, values.data_dir)
    else:
        export.export_weights(values.model, values.weights, values.out, values.class_names)


def _predict(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet.training.serving import predict

    results = predict.predict(values.saved_model, arguments, values.out, values.top)
    failures = sum("error" in result for result in results)
    if failures:
        raise Unfinished(f"{failures} of {len(results)} images cannot be read")


def _pseudo_label(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet.training.pseudo_labels import label

    given = {flag.name: values[flag.name].value for flag in _PSEUDO_FLAGS}
    label.pseudo_label(**{name: value for name, value in given.items() if value is not None})


_FORMATS = ("saved_model", "litert", "litert_int8", "onnx")
_MODEL_DIR = Flag("model_dir", "DIR", "folder of the run, as `lambdanet train` made it", required=True)
_DATA_DIR = Flag(
    "data_dir",
    "DIR",
    "the pictures of dataset folder, or where TFDS keeps its datasets (default: that of the run, else "
    "~/tensorflow_datasets)",
)
_MAX_BAD_RECORDS = Flag(
    "max_bad_records",
    "N",
    "the largest number of unreadable images, and of files that are no pictures, to name and leave out "
    "(default: 100 images, and a tenth of the files of each class)",
    define=flags.DEFINE_integer,
)
_HOW_TO_TRAIN = (
    Flag(
        "distribute",
        "CHOICE",
        "auto (the default: all GPUs), one_device, mirrored, multi_worker (with TF_CONFIG), or tpu",
        default="auto",
    ),
    Flag(
        "data_service",
        "ADDRESS",
        "grpc://HOST:PORT of a tf.data service that prepares the training data (default: this machine does)",
    ),
    Flag("tpu", "TPU", "local, the name of a TPU in Google Cloud, or grpc://HOST:PORT (default: none)"),
    Flag(
        "save_every",
        "STEPS",
        "steps between two checkpoints within an epoch (default: 1000)",
        define=flags.DEFINE_integer,
        default=1000,
    ),
    Flag(
        "steps_per_execution",
        "STEPS",
        "steps that TensorFlow runs per call from Python, for TPUs (default: 1)",
        define=flags.DEFINE_integer,
        default=1,
    ),
    Flag(
        "deterministic",
        "",
        "the same recipe gives the same weights to the bit; slower",
        define=flags.DEFINE_boolean,
        default=False,
    ),
)

_PSEUDO_FLAGS = (
    Flag("teacher", "DIR", "folder that `lambdanet export` has written", required=True),
    Flag("data", "DATA", "folder of pictures or TFRecords, or a dataset of TFDS", required=True),
    Flag("out", "DIR", "folder for TFRecords, manifest.json and pseudo_labels.png", required=True),
    Flag("split", "SPLIT", "split of the TFRecords or the dataset (default: train)"),
    Flag("data_dir", "DIR", "where TFDS keeps its datasets (default: ~/tensorflow_datasets)"),
    Flag(
        "min_confidence",
        "P",
        "least probability of the likeliest class (default: 0.3)",
        define=flags.DEFINE_float,
    ),
    Flag(
        "per_class",
        "N",
        "pictures of each class: the surest, or copies where there are fewer (default: the mean)",
        define=flags.DEFINE_integer,
    ),
    Flag("labels", "KIND", "soft (the default: the probabilities of all classes) or hard"),
    Flag("batch_size", "N", "pictures at a time (default: 64)", define=flags.DEFINE_integer),
    Flag(
        "shard_size",
        "N",
        "pictures per part, and per file written (default: 1024)",
        define=flags.DEFINE_integer,
    ),
    Flag("seed", "N", "seed of the order and of the copies (default: 0)", define=flags.DEFINE_integer),
    _MAX_BAD_RECORDS,
)

COMMANDS = (
    Command(
        "train",
        "trains a recipe; the same command again goes on where it stopped",
        _train,
        flags=(
            Flag("recipe", "NAME", "what to train, such as digits", required=True),
            Flag("model_dir", "DIR", "folder for recipe, checkpoints and logs of the run", required=True),
            _DATA_DIR,
            _MAX_BAD_RECORDS,
            *_HOW_TO_TRAIN,
            Flag(
                "set",
                "KEY=VALUE",
                "changes a field of the recipe; may be repeated",
                define=flags.DEFINE_multi_string,
                default=(),
            ),
        ),
        examples=(
            "lambdanet train --recipe=digits --model_dir=/tmp/digits",
            "lambdanet train --recipe=digits --model_dir=/tmp/short --set=epochs=5 --set=learning_rate=0.05",
            "lambdanet train --recipe=folder --data_dir=/tmp/pictures --model_dir=/tmp/mine",
            "lambdanet train --recipe=imagenet_90:resnet_50 --model_dir=/tmp/run --tpu=local",
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
            _MAX_BAD_RECORDS,
            Flag("split", "SPLIT", "a split of the dataset (default: the recipe's eval_split)"),
            Flag("out", "DIR", "folder for classes.csv and confusion.png (default: none)"),
        ),
        examples=(
            "lambdanet evaluate --model_dir=/tmp/digits --out=/tmp/digits_evaluation",
            "lambdanet evaluate --model_dir=/tmp/digits --split=train[:10%]",
        ),
    ),
    Command(
        "export",
        "writes a trained model as a SavedModel that takes pictures as they are",
        _export,
        flags=(
            dataclasses.replace(_MODEL_DIR, required=False),
            Flag("out", "DIR", "folder for the SavedModel, model.tflite or model.onnx", required=True),
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
                "for --model: imagenet, or a folder that `lambdanet convert` has written",
            ),
            Flag(
                "class_names", "FILE", "for --model: a name for each class, one a line (default: ImageNet's)"
            ),
        ),
        examples=(
            "lambdanet export --model_dir=/tmp/digits --out=/tmp/digits_model",
            "lambdanet export --model_dir=/tmp/digits --out=/tmp/digits_litert --format=litert_int8",
            "lambdanet export --model=lambda_resnet50ts --weights=imagenet --out=/tmp/imagenet_model",
        ),
    ),
    Command(
        "predict",
        "prints the likeliest classes of image files, or of those in folders, by an exported model",
        _predict,
        flags=(
            Flag("saved_model", "DIR", "folder that `lambdanet export` has written", required=True),
            Flag(
                "out",
                "PATH",
                "folder for pictures with the predictions on them, or a file .csv or .jsonl (default: none)",
            ),
            Flag(
                "top", "N", "number of classes to print (default: 5)", define=flags.DEFINE_integer, default=5
            ),
        ),
        arguments="IMAGE...",
        num_arguments=(1, float("inf")),
        examples=(
            "lambdanet predict --saved_model=/tmp/digits_model --out=/tmp/pictures seven.png",
            "lambdanet predict --saved_model=/tmp/digits_model --out=/tmp/digits.csv /tmp/photos",
        ),
    ),
    Command(
        "pseudo-label",
        "labels pictures with an exported model, the same number of each class, to train on",
        _pseudo_label,
        flags=_PSEUDO_FLAGS,
        examples=("lambdanet pseudo-label --teacher=/tmp/model --data=/tmp/pictures --out=/tmp/pseudo",),
    ),
)
