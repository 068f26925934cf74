# SPDX-License-Identifier: Apache-2.0
"""Puts trained weights into the package, as float16: `python -m experiments.packaged`.

    lambdanet train --recipe=digits --model_dir=runs/digits
    python -m experiments.packaged digits runs/digits
    python -m experiments.fashion --contenders=lambda_resnet_micro --weights=runs/weights
    python -m experiments.packaged fashion_mnist runs/weights/networks_lambda_resnet_micro_3.safetensors

These commands made what it has; the fourth names the best of the five seeds.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks import program
from experiments.fashion.training import picture_metadata, read_pictures
from lambdanet import command_line, configs
from lambdanet.errors import check_known, invalid
from lambdanet.models import zoo
from lambdanet.models.preprocessing import preprocess_for
from lambdanet.models.weights import tensor_files, trained_classes, weight_files
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.serving import trained_weights

MODELS = {"digits": "lambda_resnet_tiny", "fashion_mnist": "lambda_resnet_micro"}


def package(words: list[str], data_dir: str | None = None) -> None:
    """Writes weights to the package, and prints their accuracy before and after.

    Args:
      words: digits or fashion_mnist, and the model_dir of a run or a file of weights with its preprocessing.
      data_dir: the folder of the pictures, where the dataset needs one.

    Raises:
      InputError: the name is unknown, or the weights or the pictures cannot be read.
    """
    if len(words) != 2:
        raise invalid("arguments", "a name and a model_dir or file", words)
    name, source = words
    check_known("set", name, MODELS)
    recipe = configs.get_recipe(name)
    dataset = Dataset.open(recipe, data_dir)
    arrays, metadata = _trained(source)
    halves = {key: array.astype(np.float16) for key, array in arrays.items()}
    metadata = {
        **metadata,
        "model": MODELS[name],
        "dataset": name,
        "in_channels": str(len(recipe.mean)),
        "license": "Apache-2.0",
        **trained_classes.as_metadata(dataset.class_names),
    }
    path = weight_files.PACKAGED / f"{MODELS[name]}.{name}.safetensors"
    path.parent.mkdir(exist_ok=True)
    pictures = read_pictures(recipe, data_dir, recipe.eval_split)
    for kind in (arrays, halves):
        tensor_files.write_safetensors(path, kind, metadata)
        model = zoo.create_model(MODELS[name], weights=name)
        prepared = preprocess_for(MODELS[name], name)(pictures.pixels)
        logits = model.predict(np.asarray(prepared), batch_size=500, verbose=0)
        share = np.mean(logits.argmax(-1) == pictures.labels)
        size = path.stat().st_size
        print(f"{size:,} bytes: {share:.2%} of {len(pictures.labels):,} pictures")


def _trained(source: str) -> tuple[Mapping[str, np.ndarray], dict[str, str]]:
    """Returns the weights of a run or of a file, and what describes its pictures."""
    if Path(source).is_file():
        return tensor_files.read_safetensors(source)
    trained = trained_weights.load_run(source)
    weights = weight_files.weights_by_name(trained.model)
    arrays = {name: variable.numpy() for name, variable in weights.items()}
    return arrays, picture_metadata(trained.preprocessing)


COMMAND = program("experiments.packaged", package, positional="words")

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
