# SPDX-License-Identifier: Apache-2.0
"""The commands on trained models: explain, predict, predict-many and pseudo-label."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from lambdanet.cli.training import (
    MaxBadRecords,
    ModelName,
    Overlap,
    Window,
)
from lambdanet.core.commands import (
    Folder,
    Overwrite,
    RemoteFolder,
    Repeated,
    command,
)
from lambdanet.core.errors import Unfinished, invalid
from lambdanet.core.onednn import use_onednn
from lambdanet.core.which_keras import use_backend

Split = Annotated[
    str | None,
    "SPLIT",
    "split of TFRecords, a dataset or a table (default: train)",
]
DataDir = Annotated[
    str | None,
    "DIR_OR_URL",
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
    saved_model: RemoteFolder,
    out: Annotated[str | None, "PATH"] = None,
    top: int = 5,
    window: Window = 0,
    overlap: Overlap = 64,
    overwrite: Annotated[Overwrite, "--out"] = False,
) -> None:
    """Prints the top classes of image files with an exported model, or writes their masks.

    Args:
      images: image files, and folders of them.
      saved_model: folder that `lambdanet export` wrote.
      out: folder for pictures with predictions or for masks, or a .csv or .jsonl file (default: none).
      top: number of classes to print.
    """
    from lambdanet.training.serving import predict

    results = predict.predict(saved_model, images, out, top, window, overlap, overwrite)
    failures = sum("error" in result for result in results)
    if failures:
        raise Unfinished(f"{failures} of {len(results)} images cannot be read")


def explain(
    images: Annotated[Sequence[str], "IMAGE_OR_FOLDER..."],
    out: Folder,
    saved_model: Folder | None = None,
    model_dir: Folder | None = None,
    model: ModelName | None = None,
    weights: Annotated[str, "--model"] = "imagenet",
    layers: Annotated[Sequence[str], "LAYER,..."] = (),
    top: int = 5,
    overwrite: Overwrite = False,
) -> None:
    """Draws what the layers of a network read in image files, as pictures and pages for a browser.

    Args:
      images: image files, and folders of them.
      out: folder for NAME.png and NAME.html of each image, and for nothing else.
      saved_model: folder that `lambdanet export` wrote.
      model_dir: folder of a run of `lambdanet train`, instead of --saved_model.
      model: a model of the zoo, instead of --saved_model.
      weights: for --model: imagenet, a set of `lambdanet info`, hf:USER/REPO, a .safetensors file, or a
        folder of `lambdanet convert`.
      layers: names of lambda and attention layers to show (default: the last four).
      top: number of classes to show.
    """
    if model:
        from lambdanet.models.names import check_model

        check_model(model, "classification")
    use_backend("tensorflow")

    from lambdanet.explain import exported_network, pictures
    from lambdanet.training.serving import trained_weights

    if saved_model:
        load = partial(exported_network.load_exported_network, saved_model)
    elif model_dir:
        load = partial(trained_weights.load_run, model_dir)
    else:
        load = partial(trained_weights.build_classifier, str(model), weights)
    pictures.explain(load, images, out, layers, top, overwrite)


def predict_many(
    data: Annotated[Sequence[str], "DATA..."],
    saved_model: RemoteFolder,
    out: RemoteFolder,
    format: str = "csv",
    top: Annotated[int, "--format=csv or --format=jsonl"] = 5,
    split: Split = None,
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
    use_onednn()

    from lambdanet.training.beam import predict

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
    saved_model: RemoteFolder,
    data: str,
    out: RemoteFolder,
    min_confidence: Annotated[float, "P"] = 0.3,
    per_class: int | None = None,
    label_mode: Annotated[str, "MODE"] = "soft",
    seed: int = 0,
    split: Split = None,
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
      out: folder for TFRecords, manifest.json and predictions.
      min_confidence: smallest accepted probability of the top class.
      per_class: records per class: the most confident, with copies if there are fewer (default: the mean).
      label_mode: soft (the default: the probabilities of all classes) or hard.
      seed: random seed.
    """
    use_onednn()

    from lambdanet.training.beam import pseudo_labels

    pseudo_labels.pseudo_label(
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
        explain,
        positional="images",
        one_of=("--saved_model", "--model_dir", "--model"),
        examples=(
            "lambdanet explain --saved_model=/tmp/digits_model --out=/tmp/explained seven.png",
            "lambdanet explain --model=lambda_resnet26t --layers=c5_block2_spatial --out=/tmp/dog dog.jpg",
        ),
    ),
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
