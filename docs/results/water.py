# SPDX-License-Identifier: Apache-2.0
"""Trains small networks to find land in a gray picture of the Earth, for docs/results/water.md.

    python docs/results/water.py IMAGES RUNS [CONTENDER...]

IMAGES is example/img of three-globe. A run that has a row in RUNS is not repeated. Programs with different
contenders may run at the same time.
"""

import csv
import dataclasses
import json
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

import lambdanet
from lambdanet.configs import get_recipe
from lambdanet.models import zoo
from lambdanet.models.complexity import count_parameters
from lambdanet.training.evaluate import evaluate
from lambdanet.training.run.model_dir import load_trained_model
from lambdanet.training.train import train

OUT = Path(__file__).with_suffix(".csv")
FIGURE = Path(__file__).parents[1] / "figures" / "water.jpg"
NORTH, SOUTH = 75, -70  # degrees
# Columns of the picture. A margin of the larger window, 128 pixels, is in neither half.
HALVES = {"west": slice(128, 672), "east": slice(928, 1472)}
# By the half for training.
SEEDS = {"west": range(3), "east": range(1)}
MEAN, STD = 0.25, 0.2  # of pixels in 0..1
FIELDS = {
    "augmentation": "padded_crop_flip",
    "color_jitter": 0.0,
    "mean": (MEAN,),
    "std": (STD,),
    "epochs": 8,
    "learning_rate": 3e-3,
    "warmup_epochs": 1,
    "foreground_share": 0.33,
}
PIXELS = 8 * 64**2  # of the windows of a step
STEPS = 20  # of an epoch
DEEPLAB = {
    "filters": 28,
    "low_level_filters": 16,
    "dilation_rates": [2, 4],
    "output_stride": 8,
}
# The widths of the U-Nets make their parameters equal.
WIDTHS = {"unet_2d": (16, 32, 64, 128), "lambda_unet_2d": (16, 32, 96, 160)}
OPTIONS = {"resnet_micro": DEEPLAB, "lambda_resnet_micro": DEEPLAB}
THRESHOLD = "threshold"
# The better pair has larger windows, too.
CONTENDERS = [f"{model}@64" for model in (*WIDTHS, *OPTIONS)]
CONTENDERS += [f"{model}@128" for model in OPTIONS]
RIGHT_WATER, RIGHT_LAND, MISSED, INVENTED, COAST = range(5)
COLORS = {
    "water": "#30363d",
    "land": "#aab2ba",
    "land taken for water": "#f0964a",
    "water taken for land": "#58a6ff",
    "coast, not counted": "#ffffff",
}


@dataclasses.dataclass(frozen=True)
class Half:
    """A half of the picture.

    Attributes:
      gray: its pixels, uint8 [h, w].
      water: the mask, 0 for land, 255 for water, and between them at coasts.
      weights: the area of the pixels, [h, 1].
    """

    gray: np.ndarray
    water: np.ndarray
    weights: np.ndarray

    def outcomes(self, land: np.ndarray) -> np.ndarray:
        """Returns what became of each pixel."""
        is_land = self.water == 0
        found = np.where(is_land, np.where(land, RIGHT_LAND, MISSED), RIGHT_WATER)
        found[land & (self.water == 255)] = INVENTED
        found[(self.water > 0) & (self.water < 255)] = COAST
        return found

    def measure(self, land: np.ndarray) -> dict[str, float]:
        """Returns the IoU of both classes and their mean."""
        found = self.outcomes(land)
        areas = [np.sum(self.weights * (found == outcome)) for outcome in range(COAST)]
        water, right, missed, invented = areas
        ious = water / (water + missed + invented), right / (right + missed + invented)
        return {"iou_land": ious[1], "iou_water": ious[0], "mean_iou": sum(ious) / 2}


def read(images: Path) -> dict[str, Half]:
    """Returns the halves of the picture, shrunk by area to the size of the mask."""
    picture = np.array(Image.open(images / "earth-blue-marble.jpg").convert("L"))
    water = np.array(Image.open(images / "earth-water.png").convert("L"))
    gray = tf.image.resize(picture[..., np.newaxis], water.shape, "area")[..., 0]
    latitudes = 90 - 180 * (np.arange(len(water)) + 0.5) / len(water)
    rows = (latitudes > SOUTH) & (latitudes < NORTH)
    weights = np.cos(np.radians(latitudes[rows]))[:, np.newaxis]
    gray = np.rint(gray).astype(np.uint8)[rows]
    return {
        name: Half(gray[:, columns], water[rows][:, columns], weights)
        for name, columns in HALVES.items()
    }


def write_pictures(halves: dict[str, Half], folder: Path) -> None:
    """Writes the pictures and masks as `lambdanet train` reads them; a coast is the nearer class."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "classes.txt").write_text("water\nland\n")
    for name, half in halves.items():
        land = np.where(half.water < 128, 255, 0).astype(np.uint8)
        for kind, pixels in (("images", half.gray), ("masks", land)):
            path = folder / name / kind / "earth.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)


def best_threshold(half: Half) -> int:
    """Returns the gray value from which on a pixel is land, with the largest mean IoU."""
    return max(range(256), key=lambda gray: half.measure(half.gray >= gray)["mean_iou"])


def run(contender: str, seed: int, on: str, data_dir: Path, model_dir: Path) -> dict:
    """Trains a contender on a half, saves the land that it finds in the other, and returns its row."""
    model, _, side = contender.partition("@")
    window = int(side)
    (other,) = HALVES.keys() - {on}
    batch = PIXELS // window**2
    recipe = dataclasses.replace(
        get_recipe("segment"),
        **FIELDS,
        model=model,
        model_options=OPTIONS.get(model, {}),
        input_size=window,
        global_batch_size=batch,
        windows_per_image=STEPS * batch,
        train_split=on,
        eval_split=other,
        seed=seed,
    )
    begin = time.process_time()
    train(recipe, model_dir, str(data_dir))
    seconds = (time.process_time() - begin) / recipe.epochs
    evaluated = evaluate(model_dir, window=window, overlap=window // 4)
    network, _ = load_trained_model(model_dir)
    picture = np.array(Image.open(data_dir / other / "images/earth.png"))
    logits = lambdanet.sliding_window(
        lambdanet.for_inference(network),
        (picture[np.newaxis, ..., np.newaxis] / np.float32(255) - MEAN) / STD,
        window=window,
        overlap=window // 4,
    )
    np.save(model_dir / "land.npy", np.argmax(logits[0], axis=-1) == 1)
    return {
        "parameters": count_parameters(network),
        "evaluate": evaluated["mean_iou"],
        "seconds": seconds,
    }


def draw(halves: dict[str, Half], lands: dict[str, np.ndarray]) -> None:
    """Draws what each contender gets wrong in the east."""
    figure = Figure((11, 8.5), layout="constrained")
    axes = figure.subplots(2, 3).flat
    for each in axes:
        each.set_axis_off()
    east = halves["east"]
    axes[0].imshow(east.gray, cmap="gray")
    axes[0].set_title("the picture")
    colors = ListedColormap([*COLORS.values()])
    for each, (name, land) in zip(axes[1:], lands.items(), strict=False):
        found = east.outcomes(land)
        each.imshow(found, cmap=colors, vmin=0, vmax=COAST, interpolation="nearest")
        each.set_title(f"{name}: {east.measure(land)['mean_iou']:.3f}")
    patches = [
        Patch(facecolor=color, edgecolor="gray", label=name)
        for name, color in COLORS.items()
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches))
    figure.savefig(FIGURE, dpi=90, pil_kwargs={"quality": 75})


def main(images: str, runs: str, *contenders: str) -> None:
    """Trains what has no row yet, and writes the table and the picture."""
    if not Path(images).is_dir():
        sys.exit(
            f"{images} is no folder; docs/results/water.md has the commands for it"
        )
    folder = Path(runs)
    halves = read(Path(images))
    data_dir = folder / "pictures"
    if not data_dir.exists():
        write_pictures(halves, data_dir)
    for name, widths in WIDTHS.items():
        levels = len(widths)
        row = zoo.MODELS[name]
        zoo.MODELS[name] = dataclasses.replace(
            row, filters=widths, down=row.down[:levels], up=row.up[: levels - 1]
        )
    for on, other in (("west", "east"), ("east", "west")):
        for seed in SEEDS[on]:
            for contender in contenders or CONTENDERS:
                key = {"contender": contender, "trained_on": on, "seed": seed}
                model_dir = folder / "_".join(map(str, key.values()))
                if (model_dir / "row.json").exists():
                    continue
                row = run(contender, seed, on, data_dir, model_dir)
                land = np.load(model_dir / "land.npy")
                row = {**key, **halves[other].measure(land), **row}
                (model_dir / "row.json").write_text(json.dumps(row))
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*/row.json"))]
    lands = {}
    for on, other in (("west", "east"), ("east", "west")):
        gray = best_threshold(halves[on])
        land = halves[other].gray >= gray
        if other == "east":
            lands[THRESHOLD] = land
        key = {"contender": f"{THRESHOLD} of {gray}", "trained_on": on, "seed": ""}
        rows.append({**key, **halves[other].measure(land)})
    with OUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for contender in CONTENDERS[:4]:
        lands[contender] = np.load(folder / f"{contender}_west_0" / "land.npy")
    draw(halves, lands)


if __name__ == "__main__":
    main(*sys.argv[1:])
