# SPDX-License-Identifier: Apache-2.0
"""The commands on exported models: predict and pseudo-label."""

from absl import flags

from lambdanet.cli.training import MAX_BAD_RECORDS
from lambdanet.command_line import Arguments, Command, Flag, FloatFlag, IntegerFlag, given_flags
from lambdanet.errors import Unfinished


def _predict(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet.training.serving import predict

    results = predict.predict(values.saved_model, arguments, values.out, values.top)
    failures = sum("error" in result for result in results)
    if failures:
        raise Unfinished(f"{failures} of {len(results)} images cannot be read")


def _pseudo_label(values: flags.FlagValues, arguments: list[str]) -> None:
    from lambdanet.training.pseudo_labels import label

    label.pseudo_label(**given_flags(values, _PSEUDO_FLAGS))


_PSEUDO_FLAGS = (
    Flag("saved_model", "DIR", "folder that `lambdanet export` wrote: the teacher", required=True),
    Flag("data", "DATA", "folder of pictures or TFRecords, or a TFDS dataset", required=True),
    Flag("out", "DIR", "folder for TFRecords, manifest.json and pseudo_labels.png", required=True),
    Flag("split", "SPLIT", "split of the TFRecords or dataset (default: train)"),
    Flag("data_dir", "DIR", "folder of TFDS's datasets (default: ~/tensorflow_datasets)"),
    FloatFlag("min_confidence", "P", "smallest accepted probability of the top class (default: 0.3)"),
    IntegerFlag(
        "per_class",
        "N",
        "records per class: the most confident, with copies if there are fewer (default: the mean)",
    ),
    Flag("label_mode", "MODE", "soft (the default: the probabilities of all classes) or hard"),
    IntegerFlag("batch_size", "N", "pictures per batch (default: 64)"),
    IntegerFlag("shard_size", "N", "pictures per file (default: 1024)"),
    IntegerFlag("seed", "N", "random seed (default: 0)"),
    MAX_BAD_RECORDS,
)

COMMANDS = (
    Command(
        "predict",
        "prints the top classes of image files with an exported model",
        _predict,
        flags=(
            Flag("saved_model", "DIR", "folder that `lambdanet export` wrote", required=True),
            Flag(
                "out",
                "PATH",
                "folder for pictures with predictions, or a .csv or .jsonl file (default: none)",
            ),
            IntegerFlag("top", "N", "number of classes to print (default: 5)", default=5),
        ),
        arguments=Arguments("IMAGE_OR_FOLDER...", "image files, and folders of them", 1, float("inf")),
        examples=(
            "lambdanet predict --saved_model=/tmp/digits_model --out=/tmp/pictures seven.png",
            "lambdanet predict --saved_model=/tmp/digits_model --out=/tmp/digits.csv /tmp/photos",
        ),
    ),
    Command(
        "pseudo-label",
        "labels pictures with an exported model, as balanced training data",
        _pseudo_label,
        flags=_PSEUDO_FLAGS,
        examples=("lambdanet pseudo-label --saved_model=/tmp/model --data=/tmp/pictures --out=/tmp/pseudo",),
    ),
)
