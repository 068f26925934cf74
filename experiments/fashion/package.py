# SPDX-License-Identifier: Apache-2.0
"""`python -m experiments.fashion.package FOLDER`: puts the best LambdaResNet into the package."""

import sys
from pathlib import Path

import numpy as np

import lambdanet
from benchmarks import program
from experiments.fashion.__main__ import DATA
from experiments.fashion.training import read_pictures
from lambdanet import command_line
from lambdanet.configs import fashion_mnist
from lambdanet.errors import invalid
from lambdanet.models.weights import tensor_files, trained_classes, weight_files
from lambdanet.training.data.sources import TfdsSource

MODEL = "lambda_resnet_micro"
SET = "fashion_mnist"


def package(folder: str, data_dir: str = DATA, out: str | None = None) -> None:
    """Writes the weights with the highest accuracy as float16, with their classes and preprocessing.

    Args:
      folder: the weights that `python -m experiments.fashion --weights=FOLDER` wrote.
      data_dir: the folder with the files of Fashion-MNIST.
      out: the file; default: its place in the package.

    Raises:
      InputError: the folder has no weights of this network, or the data cannot be read.
    """
    files = sorted(Path(folder).glob(f"networks_{MODEL}_*.safetensors"))
    if not files:
        raise invalid("folder", f"a folder with weights of {MODEL}", folder)
    best = max(files, key=_accuracy_of)
    arrays, metadata = tensor_files.read_safetensors(best)
    halves = {name: array.astype(np.float16) for name, array in arrays.items()}
    classes = TfdsSource(fashion_mnist.RECIPE, None).class_names
    metadata = {
        **metadata,
        "dataset": SET,
        "license": "Apache-2.0",
        **trained_classes.as_metadata(classes),
    }
    path = Path(out or weight_files.PACKAGED / f"{MODEL}.{SET}.safetensors")
    path.parent.mkdir(parents=True, exist_ok=True)
    tensor_files.write_safetensors(path, halves, metadata)
    print(f"{best.name}: {measure(best, data_dir):.2%}")
    print(f"{path.name}, float16: {measure(path, data_dir):.2%}")


def measure(weights: Path, data_dir: str) -> float:
    """Returns the accuracy of a file of weights on the test pictures, by the functions that users call."""
    model = lambdanet.create_model(
        MODEL, num_classes=10, in_channels=1, input_size=56, weights=weights
    )
    test = read_pictures(SET, data_dir, "test")
    prepared = lambdanet.preprocess_for(MODEL, weights)(test.pixels)
    logits = model.predict(np.asarray(prepared), batch_size=500, verbose=0)
    return float(np.mean(logits.argmax(-1) == test.labels))


def _accuracy_of(path: Path) -> float:
    return float(tensor_files.metadata_of(path)["test_accuracy"])


COMMAND = program("experiments.fashion.package", package, positional="folder")

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
