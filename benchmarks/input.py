# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.input`: the pictures of training per second, beside the loaders of other libraries.

Its processes import this module for the contenders, each of which reads all pictures in `EPOCHS` in a turn.
"""

import dataclasses
import math
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import program
from benchmarks.interleaved import results
from benchmarks.interleaved.cases import InputCase
from benchmarks.interleaved.comparison import Budget, Comparison
from lambdanet import configs
from lambdanet.core import command_line
from lambdanet.core.errors import check_counts

SIZE = 224  # of the pictures in a batch
EPOCHS = 5  # in a turn, which also starts the reading
# Beside the crop and the flip: the operations of RandAugment, and the alpha of mixup.
WORK = {
    "crop and flip": (0, 0.0),
    "crop, flip and RandAugment": (2, 0.0),
    "crop, flip and mixup": (0, 0.2),
}


def benchmark_input(images: int = 1024, repeats: int = 5) -> None:
    """Measures how many pictures per second the input of training prepares, beside other libraries' loaders.

    All read the same drawn JPEGs of 500x375 pixels, in several epochs, and make normalized batches of 224x224
    pixels: cropped and flipped at random, then also with two operations of timm's RandAugment, each of which
    is left out in half of the cases, or with mixup. torchvision's transforms run in timm's loader; its
    RandAugment leaves no operation out. Keras's reader has no crop: it resizes whole pictures and flips them.

    Prints the median of the pictures per second, and the ratio to lambdanet's. `taskset -c 0` before the
    command measures one core.

    Args:
      images: the number of pictures. A batch has the largest number up to 64 that divides it and 64.
      repeats: the number of turns of each contender.

    Raises:
      InputError: an argument is not as described.

    Example:
      >>> benchmark_input(images=256, repeats=3)
    """
    check_counts(images=images)
    turns = Comparison(LOADERS, Budget(repeats, 60.0))
    results.announce("float32")
    with tempfile.TemporaryDirectory() as folder, turns:
        write_pictures(f"{folder}/train", images)
        for name, (operations, alpha) in WORK.items():
            print(f"\n{name}:")
            case = InputCase(images, True, "float32", folder, operations, alpha)
            for row in turns.run(case, LOADERS, "input/lambdanet"):
                rate = EPOCHS * images / np.median(row.seconds or np.nan)
                print(
                    f"{row.contender:18}{rate:7.0f}/s{row.speed() or np.nan:7.2f}  {row.note}"
                )


def write_pictures(folder: str, count: int) -> None:
    """Writes pictures of two classes; their files are as large as most of ImageNet's, 110 kB."""
    random = np.random.default_rng(0)
    for place in range(count):
        label = f"{folder}/{place % 2}"
        os.makedirs(label, exist_ok=True)
        noise = Image.fromarray(random.integers(0, 256, [125, 166, 3], np.uint8))
        noise.resize((500, 375)).save(f"{label}/{place}.jpg", quality=90)


def start(name: str) -> dict[str, str]:
    """Returns the name of a contender, whose library `build` imports, and what it runs on."""
    return {"library": name, "device": "processors"}


def build(name: str, case: InputCase) -> Callable[[], object]:
    """Returns a function that reads all pictures of a case in `EPOCHS`."""
    batches = LOADERS[name](case, math.gcd(case.batch, 64))
    # The recipe of lambdanet has the epochs.
    passes = 1 if name == "input/lambdanet" else EPOCHS

    def run() -> None:
        count = sum(len(images) for _ in range(passes) for images, _ in batches)
        assert count == EPOCHS * case.batch

    return run


def _lambdanet(case: InputCase, batch: int) -> Any:
    from lambdanet.training.data.dataset import Dataset

    recipe = dataclasses.replace(
        configs.get_recipe("folder"),
        input_size=SIZE,
        eval_split="train",
        global_batch_size=batch,
        epochs=EPOCHS,
        randaugment_layers=case.operations,
        randaugment_policy="timm",
        mixup_alpha=case.alpha,
    )
    return Dataset.open(recipe, case.folder).train()


def _timm(case: InputCase, batch: int) -> Any:
    from lambdanet.models.weights.tensor_files import import_timm

    data = import_timm().data
    import torch

    mix = data.FastCollateMixup(case.alpha, num_classes=2)
    return data.create_loader(
        data.ImageDataset(f"{case.folder}/train"),
        SIZE,
        batch,
        is_training=True,
        color_jitter=None,
        auto_augment=f"rand-m10-n{case.operations}",
        collate_fn=mix if case.alpha else None,
        num_workers=results.num_cores(),
        device=torch.device("cpu"),
    )


def _torchvision(case: InputCase, batch: int) -> Any:
    loader = _timm(case, batch)  # imports timm
    from timm.data.transforms import ToNumpy
    from torchvision.transforms import v2

    loader.dataset.transform = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE),
            v2.RandomHorizontalFlip(),
            v2.RandAugment(case.operations, 10),
            ToNumpy(),
        ]
    )
    return loader


def _keras(case: InputCase, batch: int) -> Any:
    from lambdanet.backend import keras

    if case.operations or case.alpha:
        raise ValueError("only flips are measured")
    flip = keras.layers.RandomFlip("horizontal")
    batches = keras.utils.image_dataset_from_directory(
        f"{case.folder}/train", batch_size=batch, image_size=(SIZE, SIZE)
    )
    return batches.map(
        lambda images, labels: (flip(images) / 127.5 - 1, labels), results.num_cores()
    )


LOADERS = {
    "input/lambdanet": _lambdanet,
    "input/timm": _timm,
    "input/torchvision": _torchvision,
    "input/keras": _keras,
}
COMMAND = program("benchmarks.input", benchmark_input)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
