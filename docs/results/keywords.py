# SPDX-License-Identifier: Apache-2.0
"""Trains small networks on the keywords of Open Clip Art's drawings, for docs/results/keywords.md.

    python docs/results/keywords.py SVG_FOLDER RUNS [CONTENDER...]

The first call renders the drawings into RUNS/drawings. A run that has a row in RUNS is not repeated. Programs
with different contenders may run at the same time.
"""

import collections
import csv
import dataclasses
import json
import re
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np

OUT = Path(__file__).with_suffix(".csv")
SIDE = 96
MIN_DRAWINGS = 60
# Icon themes, stars that one program drew, and gradients without a shape.
LEFT_OUT = ("computer/icons", "shapes/stars", "special/gradients")
# Not about what is drawn: one was left by a program, the others say where a drawing was put.
NO_KEYWORDS = {"hash", "special", "unsorted"}
SUBJECT = "{http://purl.org/dc/elements/1.1/}subject"
ITEM = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}li"
SHARES = {"train": 0.7, "validation": 0.1, "test": 0.2}
SEEDS = range(3)
FIELDS = {
    "task": "multilabel",
    "num_classes": 0,
    "input_size": 64,
    "dataset": "folder",
    "eval_split": "validation",
    "held_out_split": "validation",
    "mean": (0.8, 0.8, 0.8),
    "std": (0.3, 0.3, 0.3),
    "augmentation": "padded_crop_flip",
    "loss": "",
    "epochs": 8,
    "global_batch_size": 64,
    "optimizer": "adamw",
    "optimizer_options": {},
    "learning_rate": 3e-3,
    "label_smoothing": 0.0,
}
CONTENDERS = {
    "convolutions": {"model": "resnet_micro"},
    "lambda layers": {"model": "lambda_resnet_micro"},
    "positive weights": {"model": "resnet_micro", "positive_weights": "balanced"},
    "balanced sampling": {"model": "resnet_micro", "sampling": "balanced"},
}


def keywords_of(path: Path) -> set[str]:
    """Returns the keywords in the metadata of a drawing."""
    found = set()
    for subject in ET.parse(path).iter(SUBJECT):
        for item in subject.iter(ITEM):
            found.add((item.text or "").strip().lower())
    return found - NO_KEYWORDS - {""}


def render(source: Path, folder: Path) -> None:
    """Writes the drawings, 96x96 on white, and keywords.csv with a split for each."""
    import cairosvg
    from PIL import Image

    found = {}
    for path in sorted(source.rglob("*.svg")):
        name = path.relative_to(source).as_posix()
        if not name.startswith(LEFT_OUT):
            found[name] = keywords_of(path)
    counts = collections.Counter(word for words in found.values() for word in words)
    kept = {word for word, count in counts.items() if count >= MIN_DRAWINGS}
    keys = {}
    for name, words in found.items():
        if not words & kept:
            continue
        file = folder / "pictures" / f"{name.replace('/', '-')[:-4]}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            cairosvg.svg2png(
                url=str(source / name),
                write_to=str(file),
                output_width=SIDE,
                output_height=SIDE,
                background_color="white",
            )
        # The library raises many kinds of errors.
        except Exception as error:
            print(f"{name} is left out: {error!r}", flush=True)
            continue
        small = np.array(Image.open(file).convert("L").resize((8, 8)))
        if small.min() == 255:
            print(f"{name} is left out: it is blank", flush=True)
            continue
        shape = (small > small.mean()).tobytes()
        keys[file.name] = (shape, re.sub(r"[\d_]+|bw|\.svg$", "", name)), words & kept
    splits = split({name: pair for name, (pair, _) in keys.items()})
    with (folder / "keywords.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "labels", "split"])
        for name, (_, words) in keys.items():
            row = [f"pictures/{name}", "; ".join(sorted(words)), splits[name]]
            writer.writerow(row)


def split(keys: dict[str, tuple]) -> dict[str, str]:
    """Returns a split for each drawing; those that share a key, also through others, are in one."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    numbers: dict = {}
    edges = []
    for name, pair in keys.items():
        own = numbers.setdefault(name, len(numbers))
        for key in pair:
            edges.append((own, numbers.setdefault(key, len(numbers))))
    graph = coo_array((np.ones(len(edges)), np.transpose(edges)), [len(numbers)] * 2)
    _, groups = connected_components(graph, directed=False)
    random = np.random.default_rng(0).random(groups.max() + 1)
    bounds = np.cumsum([*SHARES.values()][:-1])
    names = [*SHARES]
    return {
        name: names[np.searchsorted(bounds, random[groups[numbers[name]]])]
        for name in keys
    }


def run(contender: str, seed: int, drawings: Path, model_dir: Path) -> dict:
    """Trains a contender, and returns its row: measures on the drawings of the split `test`."""
    from lambdanet.configs import get_recipe
    from lambdanet.models.complexity import count_parameters
    from lambdanet.training.evaluate import evaluate
    from lambdanet.training.run.model_dir import load_trained_model
    from lambdanet.training.train import train

    fields = FIELDS | CONTENDERS[contender]
    labels = str(drawings / "keywords.csv")
    recipe = dataclasses.replace(
        get_recipe("fashion_mnist"), **fields, labels=labels, seed=seed
    )
    begin = time.process_time()
    train(recipe, model_dir, str(drawings))
    row = {"contender": contender, "seed": seed}
    row["seconds"] = (time.process_time() - begin) / recipe.epochs
    row["parameters"] = count_parameters(load_trained_model(model_dir)[0])
    best = model_dir / "best" / "best.json"
    for name in ("f1", "f1_at_half"):
        found = evaluate(model_dir, split="test", out=model_dir / name)
        row["average_precision"] = found["average_precision"]
        with (model_dir / name / "classes.csv").open(encoding="utf-8") as file:
            scores = [line["f1"] for line in csv.DictReader(file)]
        # None for a keyword without a drawing in the split.
        row[name] = np.mean([float(score) for score in scores if score])
        halves = {"thresholds": [0.5] * len(scores)}
        best.write_text(json.dumps(json.loads(best.read_text()) | halves))
    return row


def main(source: str, runs: str, *contenders: str) -> None:
    """Renders the drawings, trains what has no row yet, and writes the table."""
    folder = Path(runs)
    drawings = folder / "drawings"
    if not drawings.exists():
        render(Path(source), drawings)
    for seed in SEEDS:
        for contender in contenders or CONTENDERS:
            model_dir = folder / f"{contender} {seed}"
            file = model_dir / "row.json"
            if not file.exists():
                row = run(contender, seed, drawings, model_dir)
                file.write_text(json.dumps(row))
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*/row.json"))]
    with OUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
