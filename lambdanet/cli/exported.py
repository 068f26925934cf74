# SPDX-License-Identifier: Apache-2.0
"""The commands on exported models: predict, predict-many and pseudo-label."""

from collections.abc import Sequence
from typing import Annotated, Any

from lambdanet.errors import Unfinished
from lambdanet.signatures import Folder, Repeated, command

Options = Annotated[Sequence[str], Repeated, "OPTION"]


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
    format: str = "csv",
    top: int = 5,
    split: str | None = None,
    data_dir: Folder | None = None,
    batch_size: int | None = None,
    shard_size: int | None = None,
    max_bad_records: int | None = None,
    runner: str | None = None,
    direct_num_workers: int | None = None,
    direct_running_mode: Annotated[str | None, "MODE"] = None,
    beam_options: Options = (),
) -> None:
    """Writes the top classes of many pictures into files, on Apache Beam; again, it goes on.

    Args:
      data: pictures, folders of them, TFRecords, patterns, a table or a TFDS dataset.
      saved_model: folder that `lambdanet export` wrote.
      out: folder for the files and manifest.json.
      format: csv, jsonl or tfrecord.
      top: number of classes to write.
      split: split of TFRecords, a dataset or a table (default: train).
      data_dir: folder of TFDS's datasets (default: ~/tensorflow_datasets), or of a table's files.
      batch_size: pictures per batch (default: 64).
      shard_size: pictures per file, and per task of a worker (default: 1024).
      max_bad_records: largest number of unreadable images, and of other files, to leave out (default: 100
        images, and a tenth of each class's files).
      runner: runner of Apache Beam, such as DataflowRunner (default: DirectRunner).
      direct_num_workers: processes of DirectRunner (default: the number of cores).
      direct_running_mode: multi_processing (the default), multi_threading or in_memory.
      beam_options: another option of Apache Beam; also all words after ` -- `.
    """
    from lambdanet.training.inference import predict

    options = _given(
        split=split,
        data_dir=data_dir,
        batch_size=batch_size,
        shard_size=shard_size,
        max_bad_records=max_bad_records,
    )
    predict.predict_files(
        saved_model,
        data,
        out,
        format,
        top=top,
        beam_options=_beam_options(
            beam_options,
            runner=runner,
            direct_num_workers=direct_num_workers,
            direct_running_mode=direct_running_mode,
        ),
        **options,
    )


def pseudo_label(
    saved_model: Folder,
    data: str,
    out: Folder,
    min_confidence: Annotated[float | None, "P"] = None,
    per_class: int | None = None,
    label_mode: Annotated[str | None, "MODE"] = None,
    seed: int | None = None,
    split: str | None = None,
    data_dir: Folder | None = None,
    batch_size: int | None = None,
    shard_size: int | None = None,
    max_bad_records: int | None = None,
    runner: str | None = None,
    direct_num_workers: int | None = None,
    direct_running_mode: Annotated[str | None, "MODE"] = None,
    beam_options: Options = (),
) -> None:
    """Labels pictures with an exported model, as balanced training data.

    Args:
      saved_model: folder that `lambdanet export` wrote: the teacher.
      data: folder of pictures or TFRecords, a pattern, a table, or a TFDS dataset.
      out: folder for TFRecords, manifest.json and pseudo_labels.png.
      min_confidence: smallest accepted probability of the top class (default: 0.3).
      per_class: records per class: the most confident, with copies if there are fewer (default: the mean).
      label_mode: soft (the default: the probabilities of all classes) or hard.
      seed: random seed (default: 0).
      split: split of TFRecords, a dataset or a table (default: train).
      data_dir: folder of TFDS's datasets (default: ~/tensorflow_datasets), or of a table's files.
      batch_size: pictures per batch (default: 64).
      shard_size: pictures per file, and per task of a worker (default: 1024).
      max_bad_records: largest number of unreadable images, and of other files, to leave out (default: 100
        images, and a tenth of each class's files).
      runner: runner of Apache Beam, such as DataflowRunner (default: DirectRunner).
      direct_num_workers: processes of DirectRunner (default: the number of cores).
      direct_running_mode: multi_processing (the default), multi_threading or in_memory.
      beam_options: another option of Apache Beam; also all words after ` -- `.
    """
    from lambdanet.training.pseudo_labels import label

    label.pseudo_label(
        saved_model,
        data,
        out,
        beam_options=_beam_options(
            beam_options,
            runner=runner,
            direct_num_workers=direct_num_workers,
            direct_running_mode=direct_running_mode,
        ),
        **_given(
            min_confidence=min_confidence,
            per_class=per_class,
            label_mode=label_mode,
            seed=seed,
            split=split,
            data_dir=data_dir,
            batch_size=batch_size,
            shard_size=shard_size,
            max_bad_records=max_bad_records,
        ),
    )


def _given(**options: Any) -> dict[str, Any]:
    """Returns the options that are on the command line."""
    return {name: value for name, value in options.items() if value is not None}


def _beam_options(others: Sequence[str], **named: Any) -> list[str]:
    """Returns the options of Beam as words, such as --runner=DirectRunner."""
    words = [f"--{name}={value}" for name, value in _given(**named).items()]
    return [*words, *others]


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
