# SPDX-License-Identifier: Apache-2.0
"""`lambdanet benchmark input`: images a second from JPEG TFRecords, beside Model Garden on the same files."""

import contextlib
import csv
import dataclasses
import io
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from lambdanet import configs
from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError, check_counts
from lambdanet.files import write_output
from lambdanet.training.benchmark import input_data, machine
from lambdanet.training.data import pipeline, records

LAYERS, MAGNITUDE = 2, 10.0  # of RandAugment
REFERENCES = {"ours": "model_garden", "ours+randaugment": "model_garden+randaugment"}
WARM = 2  # batches at the beginning of a turn that are not timed
BUFFER = 1024  # records among which Model Garden draws


@dataclasses.dataclass
class Result:
    """What was measured of a contender: for each turn images a second, and seconds of all cores an image."""

    contender: str
    speeds: list[float] = dataclasses.field(default_factory=list)
    work: list[float] = dataclasses.field(default_factory=list)

    def columns(self, reference: "Result | None") -> dict[str, Any]:
        """Returns the row of the csv file."""
        first, median, third = _quartiles(self.speeds)
        work = statistics.median(self.work)
        return {
            "contender": self.contender,
            "images_per_second": round(median, 1),
            "quartile_1": round(first, 1),
            "quartile_3": round(third, 1),
            "cpu_ms_per_image": round(1000 * work, 3),
            "times_as_fast_as_model_garden": _ratio(self.speeds, reference.speeds if reference else None),
            "cpu_time_by_model_garden": _ratio(self.work, reference.work if reference else None),
        }


def benchmark_input(
    data_dir: str | None = None,
    image_size: int = 224,
    batch: int = 128,
    images: int = 2048,
    repeats: int = 7,
    pictures: int = 256,
    out: str | Path | None = None,
) -> list[dict[str, Any]]:
    """Measures how many images a second come from JPEG TFRecords, here and from Model Garden.

    Both, theirs with the parser of `classification_input`, read the same files, crop at random, mirror and
    normalise, without and with RandAugment. They take turns, so that a machine that becomes slower does so
    for both, and the ratio is the median of those of the rounds. On a machine with other work, the processor
    time of an image tells more than the images a second.

    Args:
      data_dir: a folder with a split `train` as `records` has it; None: pictures made here, as large as
        ImageNet's.
      image_size: height and width of the result, in pixels.
      batch: images in a batch.
      images: of a turn.
      repeats: turns of each contender.
      pictures: how many different ones are made.
      out: folder for `input.csv`; None: none is written.

    Returns:
      The rows of the csv file.

    Raises:
      InputError: for arguments that are not as described.

    Example:
      >>> benchmark_input(images=256, repeats=3)[0]["images_per_second"]
    """
    check_counts(image_size=image_size, batch=batch, images=images, repeats=repeats, pictures=pictures)
    if images < batch:
        raise InputError(f"images is {images}; accepted: at least batch, which is {batch}")
    about = machine.describe(machine.cores())
    load = f"load {about['load_before']}; tensorflow {about['tensorflow']}"
    print(f"{about['cpu']}, {about['cores']} cores, {load}")
    with _records(data_dir, pictures) as folder:
        contenders = _contenders(folder, image_size, batch)
        results = {name: Result(name) for name in contenders}
        batches = images // batch
        for number in range(repeats):
            names = list(contenders)
            first = number % len(names)
            for name in names[first:] + names[:first]:
                _take_turn(contenders[name], batches, batch, results[name])
    rows = [result.columns(results.get(REFERENCES.get(name, ""))) for name, result in results.items()]
    print(table(rows))
    if out is not None:
        text = io.StringIO()
        writer = csv.DictWriter(text, [*rows[0], *about], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, **about} for row in rows)
        write_output(Path(out).expanduser() / "input.csv", text.getvalue().encode())
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as text."""
    head = f"{'':<26}{'images/s':>9}  {'quartiles':^15}  {'CPU ms/image':>12}  speed and CPU time by theirs"
    lines = [head]
    for row in rows:
        ratios = ""
        if row["times_as_fast_as_model_garden"] is not None:
            ratios = f"{row['times_as_fast_as_model_garden']:.2f} x  {row['cpu_time_by_model_garden']:.2f}"
        quartiles = f"{row['quartile_1']:.0f} ... {row['quartile_3']:.0f}"
        lines.append(
            f"{row['contender']:<26}{row['images_per_second']:>9.0f}  {quartiles:^15}  "
            f"{row['cpu_ms_per_image']:>12.2f}  {ratios}".rstrip()
        )
    return "\n".join(lines)


def _contenders(folder: str, image_size: int, batch_size: int) -> dict[str, tf.data.Dataset]:
    recipe = dataclasses.replace(
        configs.get_recipe("imagenet_90:resnet_50"),
        dataset=records.NAME,
        train_split="train",
        num_classes=1000,
        input_size=image_size,
        global_batch_size=batch_size,
        epochs=10_000,
        mixed_precision=False,
    )
    changed = dataclasses.replace(recipe, randaugment_layers=LAYERS, randaugment_magnitude=MAGNITUDE)
    return {
        "ours": pipeline.load(recipe, "train", folder),
        "model_garden": _model_garden(recipe, folder, randaugment=False),
        "ours+randaugment": pipeline.load(changed, "train", folder),
        "model_garden+randaugment": _model_garden(recipe, folder, randaugment=True),
    }


def _model_garden(recipe: Recipe, folder: str, randaugment: bool) -> tf.data.Dataset:
    """Returns the batches of Model Garden's reader with its parser of images, set to do the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from official.core import input_reader
        from official.vision.configs import common, image_classification
        from official.vision.dataloaders import classification_input
    config = image_classification.DataConfig(
        input_path=str(Path(folder) / "train-*"),
        is_training=True,
        global_batch_size=recipe.global_batch_size,
        shuffle_buffer_size=BUFFER,
        dtype="float32",
    )
    changes = common.Augmentation(
        type="randaug", randaug=common.RandAugment(num_layers=LAYERS, magnitude=MAGNITUDE)
    )
    parser = classification_input.Parser(
        [recipe.input_size] * 2, recipe.num_classes, aug_type=changes if randaugment else None
    )
    reader = input_reader.InputReader(
        config,
        dataset_fn=tf.data.TFRecordDataset,
        decoder_fn=classification_input.Decoder().decode,
        parser_fn=parser.parse_fn(True),
    )
    return reader.read()


def _take_turn(contender: tf.data.Dataset, batches: int, batch_size: int, result: Result) -> None:
    """Times batches of a fresh iterator, so that nothing of another one's is left to do, or done before."""
    iterator = iter(contender.take(WARM + batches))
    for _ in range(WARM):
        next(iterator)
    start, work = time.perf_counter(), time.process_time()
    for _ in range(batches):
        next(iterator)
    seconds = time.perf_counter() - start
    result.work.append((time.process_time() - work) / (batches * batch_size))
    result.speeds.append(batches * batch_size / seconds)


@contextlib.contextmanager
def _records(data_dir: str | None, pictures: int) -> Iterator[str]:
    """Yields the folder of the files; of those that are made here, it goes in the end."""
    if data_dir is not None:
        yield data_dir
        return
    with tempfile.TemporaryDirectory(prefix="lambdanet-input-") as folder:
        print(f"making {pictures} pictures", flush=True)
        input_data.write(Path(folder), pictures)
        yield folder


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, median, third


def _ratio(values: list[float], others: list[float] | None) -> float | None:
    """Returns the median of the ratios of the rounds."""
    if not others:
        return None
    return round(statistics.median(a / b for a, b in zip(values, others, strict=True)), 3)
