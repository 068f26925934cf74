# SPDX-License-Identifier: Apache-2.0
"""The commands on exported models: predict, predict-many and pseudo-label."""

from collections.abc import Sequence
from typing import Annotated

from lambdanet.cli.training import MaxBadRecords
from lambdanet.errors import Unfinished, invalid
from lambdanet.signatures import Choices, Folder, Repeated, command

Split = Annotated[str, "SPLIT", "split of TFRecords, a dataset or a table"]
DataDir = Annotated[
    str | None,
    "DIR",
    "folder of TFDS's datasets (default: ~/tensorflow_datasets), or of a table's files",
]
BatchSize = Annotated[int, "N", "pictures per batch"]
ShardSize = Annotated[int, "N", "pictures per file, and per task of a worker"]
NumWorkers = Annotated[
    int | None,
    "N",
    "batches that a process predicts at the same time (default: the number of cores)",
]
Options = Annotated[
    Sequence[str],
    Repeated,
    "OPTION",
    "option of Apache Beam, such as --runner=FlinkRunner; also all words after ` -- `",
]


def predict(
    images: Annotated[Sequence[str], "IMAGE_OR_FOLDER..."],
    saved_model: Folder,
    out: Annotated[str | None, "PATH"] = None,
    top: int = 5,
) -> None:
    """Prints the top classes of image files with an exported model.

    Args:
      images: image files, and folders of them.
      saved_model: folder that `lambdanet export` wrote.
      out: folder for pictures with predictions, or a .csv or .jsonl file (default: none).
      top: number of classes to print.
    """
    from lambdanet.training.serving import predict

    results = predict.predict(saved_model, images, out, top)
    failures = sum("error" in result for result in results)
    if failures:
        raise Unfinished(f"{failures} of {len(results)} images cannot be read")


def predict_many(
    data: Annotated[Sequence[str], "DATA..."],
    saved_model: Folder,
    out: Folder,
    format: Annotated[str, Choices(lambda: ("csv", "jsonl", "tfrecord"))] = "csv",
    top: int = 5,
    split: Split = "train",
    data_dir: DataDir = None,
    batch_size: BatchSize = 64,
    shard_size: ShardSize = 1024,
    max_bad_records: MaxBadRecords = None,
    num_workers: NumWorkers = None,
    beam_options: Options = (),
) -> None:
    """Writes the top classes of many pictures into files, on Apache Beam.

    Args:
      data: pictures, folders of them, TFRecords, patterns, a table or a TFDS dataset.
      saved_model: folder that `lambdanet export` wrote.
      out: folder for the files and manifest.json.
      format: csv, jsonl or tfrecord.
      top: number of classes to write.
    """
    if out.endswith((".csv", ".jsonl")):
        raise invalid("out", "a folder", out)

    from lambdanet.training.inference import predict

    predict.predict_files(
        saved_model,
        data,
        out,
        format,
        top,
        split,
        data_dir,
        batch_size,
        shard_size,
        max_bad_records,
        num_workers,
        beam_options,
    )


def pseudo_label(
    saved_model: Folder,
    data: str,
    out: Folder,
    min_confidence: Annotated[float, "P"] = 0.3,
    per_class: int | None = None,
    label_mode: Annotated[str, "MODE", Choices(lambda: ("soft", "hard"))] = "soft",
    seed: int = 0,
    split: Split = "train",
    data_dir: DataDir = None,
    batch_size: BatchSize = 64,
    shard_size: ShardSize = 1024,
    max_bad_records: MaxBadRecords = None,
    num_workers: NumWorkers = None,
    beam_options: Options = (),
) -> None:
    """Labels pictures with an exported model, as balanced training data.

    Args:
      saved_model: folder that `lambdanet export` wrote: the teacher.
      data: folder of pictures or TFRecords, a pattern, a table, or a TFDS dataset.
      out: folder for TFRecords, manifest.json and pseudo_labels.png.
      min_confidence: smallest accepted probability of the top class.
      per_class: records per class: the most confident, with copies if there are fewer (default: the mean).
      label_mode: soft (the default: the probabilities of all classes) or hard.
      seed: random seed.
    """
    from lambdanet.training.pseudo_labels import label

    label.pseudo_label(
        saved_model,
        data,
        out,
        split,
        data_dir,
        min_confidence,
        per_class,
        label_mode,
        batch_size,
        shard_size,
        seed,
        max_bad_records,
        num_workers,
        beam_options,
    )


COMMANDS = (
    command(
        predict,
        positional="images",
        examples=(
            "lambdanet predict --saved_model=/tmp/digits_model --out=/tmp/pictures seven.png",
            "lambdanet predict --saved_model=/tmp/digits_model --out=/tmp/digits.csv /tmp/photos",
        ),
    ),
    command(
        predict_many,
        positional="data",
        remainder="beam_options",
        examples=(
            "lambdanet predict-many --saved_model=/tmp/digits_model --out=/tmp/found /tmp/photos",
        ),
    ),
    command(
        pseudo_label,
        remainder="beam_options",
        examples=(
            "lambdanet pseudo-label --saved_model=/tmp/model --data=/tmp/pictures --out=/tmp/pseudo",
        ),
    ),
)
