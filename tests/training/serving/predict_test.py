# SPDX-License-Identifier: Apache-2.0
"""Tests of `predict` with a model of known outputs: printed, drawn and tabulated; and of wrong inputs."""

import math
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from helpers import noise, program, write_picture
from PIL import Image
from prediction_files import read_predictions
from refusals import refused

from lambdanet import cli
from lambdanet.training.serving import drawing
from lambdanet.training.serving.predict import predict

RED = (250, 40, 0)


def expected_probabilities(color):
    """Returns the softmax of the normalized color."""
    powers = [math.exp(2 * (channel / 255 - 0.5) / 0.5) for channel in color]
    return [power / sum(powers) for power in powers]


def test_predictions_are_printed_in_descending_order(color_teacher, tmp_path, capsys):
    reddish = write_picture(tmp_path / "reddish.png", RED)
    wide = np.broadcast_to((10, 60, 200), (7, 300, 3))
    bluish = write_picture(tmp_path / "blu\nish.bmp", wide)
    first, second = predict(color_teacher, [reddish, bluish], top=2)

    red, green, _ = expected_probabilities(RED)
    _, less_green, blue = expected_probabilities((10, 60, 200))
    assert [name for name, _ in first["top"]] == ["red", "green"]
    assert [name for name, _ in second["top"]] == ["blue", "green"]
    found = [probability for _, probability in (*first["top"], *second["top"])]
    # Means and exponentials in float32.
    assert found == pytest.approx([red, green, blue, less_green], rel=1e-5)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        str(reddish),
        f"  red     {100 * red:4.1f} %",
        f"  green   {100 * green:4.1f} %",
        str(bluish).replace("\n", "\\n"),
        f"  blue    {100 * blue:4.1f} %",
        f"  green   {100 * less_green:4.1f} %",
    ]
    assert printed.err == ""


def test_each_image_gets_its_own_picture(color_teacher, tmp_path):
    images = [
        write_picture(tmp_path / "a/x.png", RED),
        write_picture(tmp_path / "b/x.png", (0, 255, 0)),
        write_picture(tmp_path / "b/x\n.jpg", (0, 0, 255)),
        write_picture(tmp_path / "out/x_prediction.png", (1, 2, 3)),
    ]
    before = images[3].read_bytes()
    results = predict(color_teacher, images, out=tmp_path / "out")
    drawn = [result["picture"] for result in results]
    assert [os.path.basename(path) for path in drawn] == [
        "x_prediction_2.png",
        "x_prediction_3.png",
        "x\n_prediction.png",
        "x_prediction_prediction.png",
    ]
    assert images[3].read_bytes() == before
    # The image is in the left panel.
    colors = [
        Image.open(path).getpixel((drawing.MARGIN + 160, drawing.MARGIN + 160))
        for path in drawn
    ]
    assert colors[:2] == [RED, (0, 255, 0)]
    with refused("x_prediction_2.png' exists; --overwrite replaces it"):
        predict(color_teacher, images, out=tmp_path / "out")
    again = predict(color_teacher, images, out=tmp_path / "out", overwrite=True)
    assert again == results
    assert len(os.listdir(tmp_path / "out")) == 5


@pytest.mark.parametrize("name", ["x.txt", "x.csv.gz", "x.png"])
def test_other_endings_of_out_are_refused(color_teacher, tmp_path, name):
    image = write_picture(tmp_path / "image.png", RED)
    with refused(f"out must be a folder, or .* in .csv or .jsonl, got '.*{name}'"):
        predict(color_teacher, image, out=tmp_path / name)
    assert os.listdir(tmp_path) == ["image.png"]
    (tmp_path / name).mkdir()  # an existing folder may have any name
    assert predict(color_teacher, image, out=tmp_path / name)[0]["picture"]


def test_drawn_pixels_and_bars():
    image = noise(8, 8, 3)
    picture = np.asarray(
        drawing.draw_prediction(image, "x.png", [("a", 0.75), ("b", 0.25), ("c", 0.0)])
    )
    left = picture[drawing.MARGIN :, drawing.MARGIN :][:320, :320]
    np.testing.assert_array_equal(left, image.repeat(40, 0).repeat(40, 1))
    first, others = (
        (picture == np.frombuffer(bytes.fromhex(color[1:]), np.uint8))
        .all(-1)
        .any(0)
        .sum()
        for color in (drawing.FIRST, drawing.OTHERS)
    )
    assert abs(first - 0.75 * drawing.CHART) <= 1
    assert abs(others - 0.25 * drawing.CHART) <= 1


@pytest.mark.parametrize("size", [(3000, 2), (2, 3000)])
def test_drawing_stays_inside_the_margins(size):
    image = np.zeros([*size, 3], np.uint8)
    top = [("long name " * 30, 0.5)] + [(f"class {index}", 0.01) for index in range(40)]
    picture = np.asarray(drawing.draw_prediction(image, "file " * 50, top))
    for border in (picture[:20], picture[-20:], picture[:, :20], picture[:, -20:]):
        assert (border == 255).all()


def truncated(path):
    write_picture(path, noise(64, 64, 3))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damaged(path):
    write_picture(path, noise(64, 64, 3))
    content = bytearray(path.read_bytes())
    content[3000:3010] = bytes(10)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("half.jpg", truncated, "a complete JPEG, PNG or other image file"),
        ("damaged.png", damaged, "a complete JPEG, PNG or other image file"),
        ("missing.png", lambda path: None, "an existing file"),
    ],
)
def test_unreadable_image_is_skipped(
    color_teacher, tmp_path, capsys, name, spoil, message
):
    first = write_picture(tmp_path / "good.png", RED)
    last = write_picture(tmp_path / "last.png", RED)
    spoil(tmp_path / name)
    message = f"image must be {message}.*, got '.*{name}'"
    results = predict(
        color_teacher, [first, tmp_path / name, last], out=tmp_path / "out"
    )
    found = [os.path.basename(result["image"]) for result in results]
    assert found == ["good.png", name, "last.png"]
    assert sorted(results[1]) == ["error", "image"]
    printed = capsys.readouterr()
    assert printed.out.count("drawn in") == 2
    assert printed.err.count("\n") == 1
    assert re.search(message, printed.err)
    with refused(message):
        predict(color_teacher, [tmp_path / name])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_table_of_a_folder(color_teacher, tmp_path, capsys, ending):
    colors = {
        "a.png": RED,
        "b\nc.webp": (10, 200, 60),
        "sub/d.tiff": (1, 2, 200),
    }
    for name, color in colors.items():
        write_picture(tmp_path / "in" / name, color)
    truncated(tmp_path / "in/half.png")
    (tmp_path / "in/notes.txt").touch()
    out = tmp_path / f"new/table.{ending}"
    results = predict(color_teacher, tmp_path / "in", out=out, top=2)
    printed = capsys.readouterr()
    assert "of 3 images" in printed.out
    assert "notes.txt" in printed.err and "half.png" in printed.err
    read = [result["image"] for result in results if "top" in result]
    assert [os.path.relpath(path, tmp_path / "in") for path in read] == list(colors)
    expected = {
        result["image"]: [
            (name, pytest.approx(probability, rel=1e-5))
            for name, probability in result["top"]
        ]
        for result in results
        if "top" in result
    }
    found = read_predictions(out)
    if ending == "jsonl":
        assert isinstance(found.pop(str(tmp_path / "in/half.png")), str)
    assert found == expected


def foreign(path):
    module = tf.Module()
    module.double = tf.function(lambda x: 2 * x, input_signature=[tf.TensorSpec([])])
    tf.saved_model.save(module, path)


def not_protobuf(path):
    os.makedirs(path)
    Path(path, "saved_model.pb").write_bytes(b"spoiled")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (os.makedirs, "holds no SavedModel"),
        (foreign, "has no output 'probabilities'"),
        (not_protobuf, "cannot be loaded"),
    ],
)
def test_other_saved_models_are_rejected(tmp_path, make, message):
    path = str(tmp_path / "model")
    make(path)
    picture = write_picture(tmp_path / "good.png", RED)
    with refused(f"written by `lambdanet export`, got '.*/model'; it {message}"):
        predict(path, picture, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 0}, "top must be a positive integer, got 0"),
        ({"images": []}, "images must be image files or folders of them, got "),
        ({"images": "DIR/pipe.png"}, "image must be a regular file, got '.*pipe.png'"),
        ({"images": "DIR/empty"}, "image must be a file, or a folder with"),
        ({"out": "DIR/good.png/out"}, "good.png/out' cannot be written"),
        (
            {"images": "DIR", "out": "DIR/sub"},
            "out must be a path outside of the data in '.*', got '.*/sub'",
        ),
    ],
)
def test_wrong_arguments_are_refused(color_teacher, tmp_path, capsys, options, message):
    picture = write_picture(tmp_path / "good.png", RED)
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "empty").mkdir()
    given = {}
    for name, value in options.items():
        is_text = isinstance(value, str)
        given[name] = value.replace("DIR", str(tmp_path)) if is_text else value
    with refused(message):
        predict(color_teacher, **{"images": picture, **given})
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_command_runs_without_keras_and_models(color_teacher, tmp_path):
    """And prints one line for a truncated image, without TensorFlow's own messages."""
    write_picture(tmp_path / "red.png", RED)
    truncated(tmp_path / "half.png")
    command = program("predict_without_keras.py", color_teacher, "red.png", "half.png")
    command["env"].pop("TF_CPP_MIN_LOG_LEVEL")
    done = subprocess.run(**command, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("  red  ")
    # Nothing after the good image.
    assert lines[4:] == ["[0, 2]"]
    message = "lambdanet: error: image must be a complete JPEG, PNG or other image file"
    assert done.stderr.startswith(f"{message}, got ")
    assert done.stderr.count("\n") == 1


def test_command_exits_with_1_for_an_unreadable_image(color_teacher, tmp_path, capsys):
    truncated(tmp_path / "half.png")
    write_picture(tmp_path / "good.png", RED)
    assert cli.main(["predict", f"--saved_model={color_teacher}", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith(str(tmp_path / "good.png"))
    assert (
        printed.err.splitlines()[-1] == "lambdanet: error: 1 of 2 images cannot be read"
    )
