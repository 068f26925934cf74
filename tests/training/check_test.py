# SPDX-License-Identifier: Apache-2.0
"""The look at data before a run: what is counted by hand, what is a problem, and its page."""

import numpy as np
import pytest
from helpers import noise, write_picture
from training_runs import open_dataset

from lambdanet import cli, configs
from lambdanet.training.serving.drawing import add_legend, as_url, draw_mask, fit


@pytest.fixture
def assert_found(tmp_path, capsys):
    """Returns a function that checks the folder with flags, and asserts the lines and the status."""

    def check(flags, lines, problems):
        words = f"check --data_dir={tmp_path} --set=global_batch_size=1 {flags}"
        assert cli.main(words.split()) == problems
        said = capsys.readouterr().out
        for line in lines.splitlines():
            assert line.replace("DIR", str(tmp_path)) in said
        assert said.count("\n") <= 48

    return check


FOLDER = """\
8 pictures: 9 x 8 pixels to 20 x 10, median 20 x 8
  cat    3 (60.0%)  3 (100.0%)
  dog    2 (40.0%)  0 (0.0%)
validation has no dog
3 files have the bytes of others, such as DIR/train/cat/0.png, DIR/train/cat/same.png, DIR/v
3 pictures have two labels or are in two splits
50 pictures cannot be read, such as DIR/train/dog/damaged_0.png, DIR/
"""


def test_classes_sizes_and_copies_of_folders(tmp_path, assert_found):
    for row, folder in enumerate(("train/cat", "train/dog", "validation/cat")):
        for number in range(2):
            path = tmp_path / folder / f"{number}.png"
            write_picture(path, noise(8 + row, (20, 9)[number], 3))
    contents = (tmp_path / "train/cat/0.png").read_bytes()
    for split in ("train", "validation"):
        (tmp_path / split / "cat/same.png").write_bytes(contents)
    for number in range(50):
        damaged = tmp_path / f"train/dog/damaged_{number}.png"
        damaged.write_bytes(contents[: 60 + number])
    assert_found("", FOLDER, problems=1)
    assert_found("--set=eval_split=test", "unknown split in", problems=1)


MASKS = """\
  water  30 (33.3%)  30 (33.3%)
train has no ship
left out: 1 files, such as 'DIR/train/masks/7.png', are not PNG, TIFF or BMP masks of a picture
JPEG is not read, as its compression changes the numbers, got 'none'
mask of 'DIR/train/images/0.png' must be the file 'DIR/train/masks/0.png', got 'none'
1 pictures cannot be read, such as DIR/train/images/0.png
"""


def test_pixels_of_masks_and_their_page(tmp_path, assert_found):
    mask = np.uint8([1] * 30 + [0] * 60 + [255] * 10).reshape(10, 10)
    for path in ("train/{}/0.png", "train/{}/1.png", "validation/{}/0.png"):
        write_picture(tmp_path / path.format("images"), noise(10, 10, 3))
        write_picture(tmp_path / path.format("masks"), mask)
    (tmp_path / "classes.txt").write_text("land\nwater\nship\n")
    flags = f"--recipe=segment --out={tmp_path}/out"
    assert_found(flags, "  water  60 (33.3%)   30 (33.3%)", problems=0)
    recipe = configs.get_recipe("segment")
    page = (tmp_path / "out/pictures.html").read_text()
    for image, mask in open_dataset(recipe, tmp_path, global_batch_size=1).first_pairs(
        2
    ):
        picture = fit(draw_mask(image.numpy(), mask.numpy() % 255))
        shown = add_legend(picture, [0, 1], ["land", "water"])
        assert as_url(shown) in page
        # In rows of 13 pixels; the first class has no color.
        assert shown.getpixel((5, 325)) == (255, 255, 255)
        assert shown.getpixel((5, 338)) == (0, 74, 255)
    (tmp_path / "train/masks/0.png").rename(tmp_path / "train/masks/7.png")
    assert_found("--recipe=segment", MASKS, problems=1)


def test_overlay_has_hues_of_classes_alone():
    overlay = draw_mask(np.uint8([[[255, 0, 0]]]), np.uint8([[1]]))
    # Half of gray, 0.299 * 255 = 76, and half of (0, 74, 255) of the legend.
    assert overlay.getpixel((0, 0)) == (38, 75, 165)


def test_several_labels_are_counted_where_they_are_known(tmp_path, assert_found):
    table = "file,split,cat,dog\n0.png,train,1,1\n1.png,train,1,0\n2.png,train,0,\n"
    (tmp_path / "t.csv").write_text(f"{table}3.png,test,0,1\n")
    for number in range(4):
        write_picture(tmp_path / f"{number}.png", (number, 0, 0))
    flags = f"--set=labels={tmp_path}/t.csv --set=task=multilabel --set=eval_split=test"
    lines = "  cat    2 (66.7%)  0 (0.0%)\n  dog    1 (33.3%)  1 (100.0%)"
    assert_found(flags, lines, problems=0)
