# SPDX-License-Identifier: Apache-2.0
"""Trains small networks to find small buoys in large pictures, with and without windows around them.

    python docs/results/windows.py FOLDER

draws 12 pictures of 1024x1024 pixels into FOLDER, and prints the table in docs/how-to/masks.md.
"""

import csv
import dataclasses
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from lambdanet.configs import get_recipe
from lambdanet.configs.recipe import override
from lambdanet.core import text_table
from lambdanet.models import zoo
from lambdanet.training.evaluate import evaluate
from lambdanet.training.train import train

SIDE = 1024
SETTINGS = (
    "model=unet_2d",
    "input_size=64",
    "color_jitter=0",
    "global_batch_size=8",
    "windows_per_image=16",
    "epochs=10",
    "warmup_epochs=1",
    "learning_rate=0.003",
)


def narrow() -> None:
    """Gives the U-Net four levels of 16 to 128 channels."""
    row = zoo.MODELS["unet_2d"]
    changes = {"filters": (16, 32, 64, 128), "down": row.down[:4], "up": row.up[:3]}
    zoo.MODELS["unet_2d"] = dataclasses.replace(row, **changes)


def draw(folder: Path) -> None:
    """Draws waves with six orange discs, the buoys, and ten brighter squares."""
    generator = np.random.default_rng(0)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for number in range(12):
        waves = 30 * np.sin((rows + 2 * columns) / generator.integers(9, 30))
        noise = generator.normal(0, 20, [SIDE, SIDE, 3])
        picture = np.array([60, 90, 140]) + waves[..., np.newaxis] + noise
        mask = np.zeros([SIDE, SIDE], np.uint8)
        for place in range(16):
            row, column = generator.integers(20, SIDE - 20, size=2)
            if place < 10:
                inside = np.maximum(abs(rows - row), abs(columns - column)) < 9
                picture[inside] += 60
            else:
                inside = np.hypot(rows - row, columns - column) < 10
                picture[inside] += [120, 40, -60]
                mask[inside] = 255
        split = "train" if number < 8 else "validation"
        for name, pixels in (("images", picture.clip(0, 255)), ("masks", mask)):
            path = folder / split / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    (folder / "classes.txt").write_text("water\nbuoy\n")


def measure(folder: Path, share: float, seed: int) -> float:
    """Returns the IoU of the buoys in percent, after training with this `foreground_share`."""
    changes = (*SETTINGS, f"foreground_share={share}", f"seed={seed}")
    run = folder / f"run_{share}_{seed}"
    train(override(get_recipe("segment"), changes), run, str(folder))
    evaluate(run, window=512, overlap=64, out=run / "found")
    with open(run / "found/classes.csv") as file:
        rows = list(csv.DictReader(file))
    return 100 * float(rows[1]["iou"])


def main(folder: Path) -> None:
    narrow()
    draw(folder)
    table = []
    for share in (0.0, 0.33):
        found = [measure(folder, share, seed) for seed in range(3)]
        table.append([share, *[f"{iou:.1f}" for iou in found]])
    header = ["foreground_share", "seed 0", "seed 1", "seed 2"]
    print(text_table.render(header, table, "markdown"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
