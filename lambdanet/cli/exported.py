# SPDX-License-Identifier: Apache-2.0
"""The commands on exported models: predict and pseudo-label."""

from absl import flags

from lambdanet.cli.training import MAX_BAD_RECORDS
from lambdanet.command_line import (
    Arguments,
    Command,
    Flag,
    FloatFlag,
    IntegerFlag,
    RepeatedFlag,
    given_flags,
)
from lambdanet.errors import InputError, Unfinished, invalid


def _predict(values: flags.FlagValues, arguments: list[str]) -> None:
    if values.format:
        _predict_files(values, arguments)
        return
    for flag in (*_DATA_FLAGS, *_BEAM_FLAGS):
        if values[flag.name].present:
            raise InputError(
                f"--{flag.name} is for predictions in files; it needs --format"
            )
    from lambdanet.training.serving import predict

    results = predict.predict(values.saved_model, arguments, values.out, values.top)
    failures = sum("error" in result for result in results)
    if failures:
        raise Unfinished(f"{failures} of {len(results)} images cannot be read")


def _predict_files(values: flags.FlagValues, arguments: list[str]) -> None:
    if not values.out:
        raise InputError("--format needs --out, a folder")
    if values.out.endswith((".csv", ".jsonl")):
        raise invalid("out", "a folder with --format", values.out)
    from lambdanet.training.inference import predict

    given = given_flags(values, _DATA_FLAGS)
    options = {"top": values.top, "beam_options": _beam_options(values), **given}
    predict.predict_files(
        values.saved_model, arguments, values.out, values.format, **options
    )


def _pseudo_label(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet.training.pseudo_labels import label

    given = given_flags(values, _PSEUDO_FLAGS + _DATA_FLAGS)
    label.pseudo_label(**given, beam_options=_beam_options(values))


def _beam_options(values: flags.FlagValues) -> list[str]:
    named = [
        f"--{name}={value}"
        for name, value in given_flags(values, _BEAM_FLAGS[:-1]).items()
    ]
    return named + (values.beam_options or [])


_DATA_FLAGS = (
    Flag("split", "SPLIT", "split of TFRecords, a dataset or a table (default: train)"),
    Flag(
        "data_dir",
        "DIR",
        "folder of TFDS's datasets (default: ~/tensorflow_datasets), or of a table's files",
    ),
    IntegerFlag("batch_size", "N", "pictures per batch (default: 64)"),
    IntegerFlag(
        "shard_size", "N", "pictures per file, and per task of a worker (default: 1024)"
    ),
    MAX_BAD_RECORDS,
)

# Those of Beam, with its names.
_BEAM_FLAGS = (
    Flag(
        "runner",
        "RUNNER",
        "runner of Apache Beam, such as DataflowRunner (default: DirectRunner)",
    ),
    IntegerFlag(
        "direct_num_workers",
        "N",
        "processes of DirectRunner (default: the number of cores)",
    ),
    Flag(
        "direct_running_mode",
        "MODE",
        "multi_processing (the default), multi_threading or in_memory",
    ),
    RepeatedFlag(
        "beam_options",
        "OPTION",
        "another option of Apache Beam; also all words after ` -- `",
    ),
)

_PSEUDO_FLAGS = (
    Flag(
        "saved_model",
        "DIR",
        "folder that `lambdanet export` wrote: the teacher",
        required=True,
    ),
    Flag(
        "data",
        "DATA",
        "folder of pictures or TFRecords, a pattern, a table, or a TFDS dataset",
        required=True,
    ),
    Flag(
        "out",
        "DIR",
        "folder for TFRecords, manifest.json and pseudo_labels.png",
        required=True,
    ),
    FloatFlag(
        "min_confidence",
        "P",
        "smallest accepted probability of the top class (default: 0.3)",
    ),
    IntegerFlag(
        "per_class",
        "N",
        "records per class: the most confident, with copies if there are fewer (default: the mean)",
    ),
    Flag(
        "label_mode",
        "MODE",
        "soft (the default: the probabilities of all classes) or hard",
    ),
    IntegerFlag("seed", "N", "random seed (default: 0)"),
)

COMMANDS = (
    Command(
        "predict",
        "prints the top classes of image files with an exported model",
        _predict,
        flags=(
            Flag(
                "saved_model",
                "DIR",
                "folder that `lambdanet export` wrote",
                required=True,
            ),
            Flag(
                "out",
                "PATH",
                "folder for pictures with predictions, or a .csv or .jsonl file (default: none)",
            ),
            IntegerFlag(
                "top", "N", "number of classes to print (default: 5)", default=5
            ),
            Flag(
                "format",
                "FORMAT",
                "csv, jsonl or tfrecord: writes files to the folder --out, on Apache Beam",
            ),
            *_DATA_FLAGS,
            *_BEAM_FLAGS,
        ),
        arguments=Arguments(
            "IMAGE_OR_FOLDER...",
            "image files, and folders of them; with --format, also TFRecords, a table, a dataset",
            1,
            float("inf"),
        ),
        remainder="beam_options",
        examples=(
            "lambdanet predict --saved_model=/tmp/digits_model --out=/tmp/pictures seven.png",
            "lambdanet predict --saved_model=/tmp/digits_model --out=/tmp/digits.csv /tmp/photos",
            "lambdanet predict --saved_model=/tmp/digits_model --out=/tmp/found --format=csv /tmp/photos",
        ),
    ),
    Command(
        "pseudo-label",
        "labels pictures with an exported model, as balanced training data",
        _pseudo_label,
        flags=_PSEUDO_FLAGS + _DATA_FLAGS + _BEAM_FLAGS,
        remainder="beam_options",
        examples=(
            "lambdanet pseudo-label --saved_model=/tmp/model --data=/tmp/pictures --out=/tmp/pseudo",
        ),
    ),
)
