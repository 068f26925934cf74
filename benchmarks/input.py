# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.input`: images per second from JPEG TFRecords, compared with Model Garden."""

import contextlib
import dataclasses
import io
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from benchmarks import program
from benchmarks.turns import results
from benchmarks.turns.report import number
from lambdanet import command_line, configs, text_table
from lambdanet.configs.recipe import Recipe
from lambdanet.errors import check_counts, invalid
from lambdanet.files import writable_dir, write_output
from lambdanet.training.data import records
from lambdanet.training.data.dataset import Dataset

# Of RandAugment.
LAYERS = 2
MAGNITUDE = 10.0
REFERENCES = {"ours": "model_garden", "ours+randaugment": "model_garden+randaugment"}
WARMUP_BATCHES = 2  # untimed batches at the beginning of a turn
SHUFFLE_BUFFER = 1024  # records in Model Garden's shuffle buffer

# Of the synthetic pictures.
SIZES = ((375, 500), (375, 500), (500, 375))  # the usual sizes of ImageNet's pictures
QUALITY = 90  # about 115 kB per file; ImageNet's have 110 kB
FILES = 16
PER_FILE = 1024


@dataclasses.dataclass
class Throughput:
    """The throughput of a contender.

    Attributes:
      contender: the name.
      speeds: images per second, per turn.
      work: CPU seconds per image, per turn.
    """

    contender: str
    speeds: list[float] = dataclasses.field(default_factory=list)
    work: list[float] = dataclasses.field(default_factory=list)

    def columns(self, reference: "Throughput | None") -> dict[str, Any]:
        """Returns the row of the CSV file."""
        first, median, third = np.quantile(self.speeds, (0.25, 0.5, 0.75)).tolist()
        return {
            "contender": self.contender,
            "images_per_second": round(median, 1),
            "quartile_1": round(first, 1),
            "quartile_3": round(third, 1),
            "cpu_ms_per_image": round(1000 * statistics.median(self.work), 3),
            "times_as_fast_as_model_garden": _ratio(
                self.speeds, reference.speeds if reference else None
            ),
            "cpu_time_by_model_garden": _ratio(
                self.work, reference.work if reference else None
            ),
        }


def benchmark_input(
    data_dir: str | None = None,
    image_size: int = 224,
    batch_size: int = 128,
    images: int = 2048,
    repeats: int = 7,
    pictures: int = 256,
    out: str | Path | None = None,
) -> list[dict[str, Any]]:
    """Measures the throughput of the training input from JPEG TFRecords, in lambdanet and in Model Garden.

    Both read the same files, crop at random, mirror and normalize, without and with RandAugment; Model Garden
    uses the parser of its `classification_input`. They take turns, so that a slowdown of the machine affects
    both, and the ratio is the median over the rounds. On a busy machine, compare CPU times per image instead
    of images per second.

    Args:
      data_dir: a folder of TFRecords with a split `train`; default: synthetic pictures of ImageNet's size.
      image_size: the height and width of the output, in pixels.
      batch_size: the number of images per batch.
      images: the number of images per turn.
      repeats: the number of turns per contender.
      pictures: the number of different synthetic pictures.
      out: the folder for `input.csv`; default: none.

    Returns:
      The rows of the CSV file.

    Raises:
      InputError: an argument is not as described.

    Example:
      >>> benchmark_input(images=256, repeats=3)[0]["images_per_second"]
    """
    check_counts(
        image_size=image_size, images=images, repeats=repeats, pictures=pictures
    )
    check_counts(batch_size=batch_size)
    if images < batch_size:
        raise invalid("images", f"at least the batch size of {batch_size}", images)
    to = (
        None
        if out is None
        else writable_dir(Path(out).expanduser(), {"input.csv": b"contender,"})
    )
    about = results.announce("float32")
    with _records(data_dir, pictures) as folder:
        contenders = _contenders(folder, image_size, batch_size)
        found = {name: Throughput(name) for name in contenders}
        batches = images // batch_size
        for number in range(repeats):
            names = list(contenders)
            first = number % len(names)
            for name in names[first:] + names[:first]:
                take_turn(contenders[name], batches, batch_size, found[name])
    rows = [
        result.columns(found.get(REFERENCES.get(name, "")))
        for name, result in found.items()
    ]
    print(table(rows))
    if to:
        write_output(to / "input.csv", text_table.to_csv([row | about for row in rows]))
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as a text table."""
    header = ["", "images/s", "quartiles", "CPU ms/image", "x", "CPU x"]
    lines = [
        [
            row["contender"],
            f"{row['images_per_second']:.0f}",
            f"{row['quartile_1']:.0f}-{row['quartile_3']:.0f}",
            f"{row['cpu_ms_per_image']:.2f}",
            number(row["times_as_fast_as_model_garden"], 3),
            number(row["cpu_time_by_model_garden"], 3),
        ]
        for row in rows
    ]
    return text_table.render(header, lines).rstrip()


def _contenders(
    folder: str, image_size: int, batch_size: int
) -> dict[str, tf.data.Dataset]:
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
    changed = dataclasses.replace(
        recipe, randaugment_layers=LAYERS, randaugment_magnitude=MAGNITUDE
    )
    return {
        "ours": Dataset.open(recipe, folder).train(),
        "model_garden": _model_garden(recipe, folder, randaugment=False),
        "ours+randaugment": Dataset.open(changed, folder).train(),
        "model_garden+randaugment": _model_garden(recipe, folder, randaugment=True),
    }


def _model_garden(recipe: Recipe, folder: str, randaugment: bool) -> tf.data.Dataset:
    """Returns the batches of Model Garden's reader and parser with equivalent settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from official.core import input_reader
        from official.vision.configs import common, image_classification
        from official.vision.dataloaders import classification_input
    config = image_classification.DataConfig(
        input_path=str(Path(folder) / "train-*"),
        is_training=True,
        global_batch_size=recipe.global_batch_size,
        shuffle_buffer_size=SHUFFLE_BUFFER,
        dtype="float32",
    )
    policy = common.RandAugment(num_layers=LAYERS, magnitude=MAGNITUDE)
    changes = (
        common.Augmentation(type="randaug", randaug=policy) if randaugment else None
    )
    parser = classification_input.Parser(
        [recipe.input_size] * 2, recipe.num_classes, aug_type=changes
    )
    reader = input_reader.InputReader(
        config,
        dataset_fn=tf.data.TFRecordDataset,
        decoder_fn=classification_input.Decoder().decode,
        parser_fn=parser.parse_fn(True),
    )
    return reader.read()


def take_turn(
    contender: tf.data.Dataset, batches: int, batch_size: int, result: Throughput
) -> None:
    """Times batches of a new iterator, which has prefetched nothing yet."""
    iterator = iter(contender.take(WARMUP_BATCHES + batches))
    for _ in range(WARMUP_BATCHES):
        next(iterator)
    start = time.perf_counter()
    work = time.process_time()
    for _ in range(batches):
        next(iterator)
    seconds = time.perf_counter() - start
    result.work.append((time.process_time() - work) / (batches * batch_size))
    result.speeds.append(batches * batch_size / seconds)


@contextlib.contextmanager
def _records(data_dir: str | None, pictures: int) -> Iterator[str]:
    """Yields the folder of the files, a temporary one for synthetic pictures."""
    if data_dir is not None:
        yield data_dir
        return
    with tempfile.TemporaryDirectory(prefix="lambdanet-input-") as folder:
        print(f"making {pictures} pictures", flush=True)
        write_pictures(Path(folder), pictures)
        yield folder


def write_pictures(folder: Path, pictures: int) -> None:
    """Writes a split `train` of `FILES` files with `PER_FILE` records each; all files link to the first.

    Args:
      folder: an existing folder.
      pictures: the number of different pictures.
    """
    random = np.random.default_rng(0)
    files = [jpeg(random, *SIZES[index % len(SIZES)]) for index in range(pictures)]
    first, *others = (
        folder / records.shard_name("train", index, FILES) for index in range(FILES)
    )
    with tf.io.TFRecordWriter(str(first)) as writer:
        for index in range(PER_FILE):
            writer.write(records.encode_record(files[index % pictures], index % 1000))
    for path in others:
        os.link(first, path)


def jpeg(random: np.random.Generator, height: int, width: int) -> bytes:
    """Returns a random picture with the 1/f spectrum of photographs."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, np.newaxis], np.fft.rfftfreq(width))
    amplitude = 1 / np.maximum(frequency, 1 / max(height, width))

    def field() -> np.ndarray:
        phases = random.uniform(0, 2 * np.pi, amplitude.shape)
        values = np.fft.irfft2(amplitude * np.exp(1j * phases), (height, width))
        return (values - values.mean()) / values.std()

    light = 50 * field()
    red = 15 * field()
    blue = 15 * field()
    pixels = 120 + np.stack(
        [light + red, light - (red + blue) / 2, light + blue], axis=-1
    )
    file = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(
        file, "JPEG", quality=QUALITY
    )
    return file.getvalue()


def _ratio(values: list[float], others: list[float] | None) -> float | None:
    """Returns the median ratio over the rounds."""
    if not others:
        return None
    return round(
        statistics.median(a / b for a, b in zip(values, others, strict=True)), 3
    )


COMMAND = program("benchmarks.input", benchmark_input)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
