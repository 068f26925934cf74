# SPDX-License-Identifier: Apache-2.0
"""Mutated pictures of every format give equal pixels on all routes, or errors.

Another process reads them, so that a crash of a decoder fails the test.
"""

import dataclasses
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
from fuzzing import rounds

SEED = 0
PNG_HEAD = 8  # bytes
LENGTHS = (
    0,
    1,
    2,
    7,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0xFFFFFFFE,
    0xFFFFFFFF,
)
FORMATS = {
    ">H": 0xFFFF,
    "<H": 0xFFFF,
    ">I": 0xFFFFFFFF,
    "<I": 0xFFFFFFFF,
    "<Q": 0xFFFFFFFF,
}


def _mutated(contents, others, dice):
    """Returns a file with a few changes, many of them in its header."""
    for _ in range(dice.choice([1, 1, 1, 2, 4])):
        begin = dice.randrange(min(len(contents), dice.choice([40, 120, 1 << 20])) + 1)
        end = min(len(contents), begin + dice.choice([1, 2, 8, 60]))
        other = dice.choice(others)
        cut = dice.randrange(len(other) + 1)
        form, largest = dice.choice([*FORMATS.items()])
        length = struct.pack(form, dice.choice(LENGTHS) & largest)
        flipped = bytes(byte ^ 1 << dice.randrange(8) for byte in contents[begin:end])
        contents = dice.choice(
            [
                contents[:begin] + flipped + contents[end:],
                contents[:begin] + flipped[:1] + contents[begin + 1 :],
                contents[:begin] + bytes(end - begin) + contents[end:],
                contents[:begin] + length + contents[begin + len(length) :],
                contents[:begin]
                + other[cut : cut + dice.choice([4, 30, 300])]
                + contents[begin:],
                contents[:begin] + contents[begin:end] * 3 + contents[end:],
                contents[:begin] + other[cut:],
                contents[:begin] + contents[end:],
                contents[: dice.randrange(len(contents) + 1)],
            ]
        )
    return _with_checksums(contents) if dice.random() < 0.7 else contents


def _with_checksums(contents):
    """Returns a PNG with valid checksums, so that decoders read its chunks."""
    at, parts = PNG_HEAD, [contents[:PNG_HEAD]]
    while contents.startswith(b"\x89PNG") and at + 12 <= len(contents):
        end = at + 8 + int.from_bytes(contents[at : at + 4], "big")
        if end + 4 > len(contents):
            break
        parts += [
            contents[at:end],
            struct.pack(">I", zlib.crc32(contents[at + 4 : end])),
        ]
        at = end + 4
    return b"".join(parts) + contents[at:]


def _write(folder, seed, count):
    """Writes the mutated files of a seed, and a valid one in another class."""
    from picture_table import PICTURES

    dice = random.Random(seed)
    pictures = [row.contents for row in PICTURES.values()]
    still = [contents for contents in pictures if contents.startswith(b"RIFF")]
    for name in ("mutated", "whole"):
        (folder / "train" / name).mkdir(parents=True)
    (folder / "train" / "whole" / "0.jpg").write_bytes(pictures[0])
    for number in range(count):
        one = dice.choice(still if number % 4 == 0 else pictures)
        path = folder / "train" / "mutated" / f"{number:06d}.png"
        path.write_bytes(_mutated(one, pictures, dice))


def _read(folder):
    """Reads the files on every route; prints each name and, at the end, the numbers of read files."""
    import tensorflow as tf
    from picture_table import AS_THEY_ARE, SIDE, export_pixels, pixels_of

    from lambdanet.errors import InputError
    from lambdanet.models.preprocessing import Preprocessing
    from lambdanet.training.data.bad_records import BadRecords
    from lambdanet.training.data.dataset import Dataset
    from lambdanet.training.data.image_bytes import Encoded, decode
    from lambdanet.training.data.image_files import read_image
    from lambdanet.training.serving.exported_model import load_classifier

    preprocessing = Preprocessing(SIDE, (0.0,) * 3, (1.0,) * 3)
    square = tf.function(
        preprocessing, [tf.TensorSpec([None, None, 3], tf.uint8)], autograph=False
    )
    serve = load_classifier(export_pixels(folder / "model")).signatures["serving_bytes"]
    in_graph = tf.function(
        decode, input_signature=[tf.TensorSpec([], tf.string)], autograph=False
    )

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
    def crop(contents):
        return Encoded(contents, 3).crop(
            lambda shape: tf.concat([shape[:2] // 3, shape[:2] // 2], 0)
        )

    def attempt(read, *arguments):
        """Returns a picture, or None if it is refused."""
        try:
            return read(*arguments)
        except tf.errors.OpError:
            return None
        except InputError as error:
            assert len(str(error).splitlines()) == 1
            return None

    paths = sorted((folder / "train" / "mutated").iterdir())
    shown = {}
    read_by = dict.fromkeys(["predict", "graph", "served", "input"], 0)
    for path in paths:
        print(path.name, flush=True)
        contents = tf.constant(path.read_bytes())
        found = {
            "predict": attempt(read_image, path),
            "graph": attempt(in_graph, contents),
        }
        served = attempt(
            lambda contents=contents: serve(image_bytes=contents[tf.newaxis])
        )
        window = attempt(crop, contents)
        pictures = [image for image in found.values() if image is not None]
        for image in pictures:
            np.testing.assert_array_equal(image, pictures[0])
        assert (served is None) == (found["graph"] is None)
        if served is not None:
            pixels = pixels_of(served["probabilities"].numpy())[0]
            np.testing.assert_allclose(pixels, 255 * square(pictures[0]), atol=0.05)
            height, width = pictures[0].shape[:2]
            expected = pictures[0][height // 3 :][: height // 2, width // 3 :][
                :, : width // 2
            ]
            # The colors at the sides of a JPEG window depend on pixels outside.
            inner = slice(1, -1)
            np.testing.assert_array_equal(window[:, inner], expected[:, inner])
        shown[path] = pictures[0] if pictures else None
        for route, image in {**found, "served": served}.items():
            read_by[route] += image is not None
    print("the input pipeline", flush=True)
    bad = BadRecords(len(paths))
    recipe = dataclasses.replace(AS_THEY_ARE, num_classes=2, global_batch_size=8)
    images = [
        image
        for images, labels in Dataset.open(recipe, str(folder), bad).eval()
        for image, label in zip(images.numpy(), labels, strict=True)
        if label == 0
    ]
    good = [path for path in paths if str(path) not in bad.names]
    assert len(bad.names) == len(set(bad.names)) == len(paths) - len(images)
    for path, image in zip(good, images, strict=True):
        print(path.name, flush=True)
        assert shown[path] is not None
        np.testing.assert_allclose(image, square(shown[path]), atol=1e-4)
    read_by["input"] = len(good)
    print(*read_by.values(), flush=True)


def test_mutated_pictures(tmp_path):
    count = rounds(400)
    _write(tmp_path, SEED, count)
    command = [sys.executable, __file__, str(tmp_path)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60 + count)
    lines = child.stdout.splitlines() or ["nothing"]
    log = "\n".join(child.stderr.splitlines()[-25:])
    assert child.returncode == 0, (
        f"seed {SEED}, at {lines[-1]}: status {child.returncode}\n{log}"
    )
    predict, graph, served, pipeline = map(int, lines[-1].split())
    assert count > predict == pipeline > graph == served > count / 10


if __name__ == "__main__":
    _read(Path(sys.argv[1]))
