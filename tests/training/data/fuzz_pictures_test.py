# SPDX-License-Identifier: Apache-2.0
"""Pictures of every format, and mutated ones, give equal pixels on all routes, or errors.

Another process reads the mutated ones, so that a crash of a decoder fails the test.
"""

import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from fuzzing import rounds
from picture_table import AS_THEY_ARE, PICTURES, SIDE, export_pixels, pixels_of
from training_runs import open_dataset

from lambdanet.core.errors import InputError
from lambdanet.models.preprocessing import Preprocessing
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.data.image_bytes import Encoded
from lambdanet.training.data.image_files import read_image
from lambdanet.training.serving.exported_model import load_classifier

SEED = 0
PNG_HEAD = 8  # bytes
LENGTHS = [0, 1, 7, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF]


def _mutated(contents, others, dice):
    """Returns a file with a few changes, many of them in its header."""
    for _ in range(dice.choice([1, 1, 1, 2, 4])):
        begin = dice.randrange(min(len(contents), dice.choice([40, 120, 1 << 20])) + 1)
        end = min(len(contents), begin + dice.choice([1, 2, 8, 60]))
        other = dice.choice(others)
        cut = dice.randrange(len(other) + 1)
        length = dice.choice(LENGTHS).to_bytes(4, dice.choice(["big", "little"]))
        length = length[dice.choice([0, 2]) :]
        flipped = bytes(byte ^ 1 << dice.randrange(8) for byte in contents[begin:end])
        before, changed, behind = contents[:begin], contents[begin:end], contents[end:]
        contents = dice.choice(
            [
                before + flipped + behind,
                before + bytes(end - begin) + behind,
                before + length + contents[begin + len(length) :],
                before
                + other[cut : cut + dice.choice([4, 30, 300])]
                + changed
                + behind,
                before + changed * 3 + behind,
                before + behind,
                before,
            ]
        )
    return _with_checksums(contents) if dice.random() < 0.7 else contents


def _with_checksums(contents):
    """Returns a PNG with valid checksums, so that decoders read its chunks."""
    at = PNG_HEAD
    parts = [contents[:at]]
    while contents.startswith(b"\x89PNG") and at + 12 <= len(contents):
        end = at + 8 + int.from_bytes(contents[at : at + 4], "big")
        if end + 4 > len(contents):
            break
        checksum = zlib.crc32(contents[at + 4 : end])
        parts.append(contents[at:end] + struct.pack(">I", checksum))
        at = end + 4
    return b"".join(parts) + contents[at:]


def _write(folder, files):
    """Writes files of pictures, and a valid one in another class."""
    for name in ("mutated", "whole"):
        (folder / "train" / name).mkdir(parents=True)
    (folder / "train/whole/0.jpg").write_bytes(PICTURES["JPEG RGB"].contents)
    for number, contents in enumerate(files):
        path = folder / f"train/mutated/{number:06d}.png"
        path.write_bytes(contents)


def _mutated_files(seed, count):
    dice = random.Random(seed)
    pictures = [row.contents for row in PICTURES.values()]
    still = [contents for contents in pictures if contents.startswith(b"RIFF")]
    converted = [row.contents for row in PICTURES.values() if not row.plain]
    groups = [still, converted, pictures, pictures]
    for number in range(count):
        one = dice.choice(groups[number % len(groups)])
        yield _mutated(one, pictures, dice)


def _read(folder):
    """Reads the files on every route; prints each name, and returns the numbers of read and served files."""
    preprocessing = Preprocessing(SIDE, (0.0,) * 3, (1.0,) * 3)
    square = tf.function(
        preprocessing, [tf.TensorSpec([None, None, 3], tf.uint8)], autograph=False
    )
    serve = load_classifier(export_pixels(folder / "model")).signatures["serving_bytes"]

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
    def in_graph(contents):
        """Returns a picture, and a window of it that is decoded alone."""
        image = Encoded(contents, 3)
        window = image.crop(
            lambda shape: tf.concat([shape[:2] // 3, shape[:2] // 2], 0)
        )
        return image.pixels(), window

    def attempt(read, *arguments, **named):
        """Returns what is read, or None if it is refused."""
        try:
            return read(*arguments, **named)
        except tf.errors.OpError:
            return None
        except InputError as error:
            assert len(str(error).splitlines()) == 1
            return None

    paths = sorted((folder / "train/mutated").iterdir())
    shown = {}
    num_served = 0
    for path in paths:
        print(path.name, flush=True)
        contents = tf.constant(path.read_bytes())
        picture = attempt(read_image, path)
        decoded = attempt(in_graph, contents)
        served = attempt(serve, image_bytes=contents[tf.newaxis])
        assert (served is None) == (decoded is None)
        if picture is not None:
            shown[str(path)] = square(picture)
        if decoded is None:
            continue
        whole, window = decoded
        np.testing.assert_array_equal(whole, picture)
        pixels = pixels_of(served["probabilities"].numpy())[0]
        np.testing.assert_allclose(pixels, 255 * shown[str(path)], atol=0.05)
        top, left = (side // 3 for side in picture.shape[:2])
        height, width = (side // 2 for side in picture.shape[:2])
        expected = picture[top : top + height, left : left + width]
        # The colors at the sides of a JPEG window depend on pixels outside.
        np.testing.assert_array_equal(window[:, 1:-1], expected[:, 1:-1])
        num_served += 1
    print("the input pipeline", flush=True)
    bad = BadRecords(len(paths))
    dataset = open_dataset(AS_THEY_ARE, folder, bad, num_classes=2, global_batch_size=8)
    images = [
        image
        for images, labels in dataset.eval()
        for image, label in zip(images.numpy(), labels, strict=True)
        if label == 0
    ]
    assert sorted([*bad.names, *shown]) == list(map(str, paths))
    for image, expected in zip(images, shown.values(), strict=True):
        np.testing.assert_allclose(image, expected, atol=1e-4)
    return len(shown), num_served


def test_pictures_of_the_table(tmp_path):
    """Served, and as windows, they are what `read_image` reads, as are those of the input pipeline."""
    rows = PICTURES.values()
    _write(tmp_path, [row.contents for row in rows])
    num_read = sum(row.expected is not None for row in rows)
    assert _read(tmp_path) == (num_read, sum(row.plain for row in rows))


@pytest.mark.slow
def test_mutated_pictures(tmp_path):
    count = rounds(150)
    _write(tmp_path, _mutated_files(SEED, count))
    command = [sys.executable, __file__, str(tmp_path)]
    child = subprocess.run(command, capture_output=True, text=True)
    lines = child.stdout.splitlines() or ["nothing"]
    log = "\n".join(child.stderr.splitlines()[-25:])
    assert child.returncode == 0, (
        f"seed {SEED}, at {lines[-1]}: status {child.returncode}\n{log}"
    )
    num_read, num_served = map(int, lines[-1].split())
    assert count > num_read > num_served > 0


if __name__ == "__main__":
    print(*_read(Path(sys.argv[1])))
