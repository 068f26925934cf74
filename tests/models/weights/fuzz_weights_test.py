# SPDX-License-Identifier: Apache-2.0
"""Weight files with changed bytes: each raises a one-line error or loads finite values."""

from functools import partial

import keras
import numpy as np
import pytest
import safetensors.numpy
from fuzzing import rounds

import lambdanet
from lambdanet.core.errors import InputError
from lambdanet.models.weights import tensor_files, weight_files


@pytest.fixture(scope="module")
def model():
    layers = [
        lambdanet.LambdaLayer(8, scope=3, name="spatial"),
        keras.layers.Dense(2, name="logits"),
    ]
    return keras.Sequential([keras.Input([4, 4, 8]), *layers], name="small")


def arrays_of(model):
    return {
        name: variable.numpy()
        for name, variable in weight_files.weights_by_name(model).items()
    }


def save_without_a_hash(model, path):
    safetensors.numpy.save_file(arrays_of(model), path)


def save_torch(model, path, **options):
    torch = pytest.importorskip("torch")
    state = {name: torch.from_numpy(array) for name, array in arrays_of(model).items()}
    torch.save(state, path, **options)


# Each form -> how it is saved, the name of its file, and the number of rounds.
FORMS = {
    "safetensors": (weight_files.save, "x.safetensors", 100),
    "safetensors without a hash": (save_without_a_hash, "x.safetensors", 100),
    "PyTorch": (save_torch, "x.pth", 50),
    "PyTorch before 1.6": (
        partial(save_torch, _use_new_zipfile_serialization=False),
        "x.pth",
        50,
    ),
}


def load(model, path):
    if path.suffix == ".pth":
        weight_files.assign_weights(model, tensor_files.read_tensors(path), str(path))
    else:
        weight_files.load_weights(model, path)


def changed(content, random):
    """Changes some bytes, anywhere or at the start, where most formats have their header."""
    content = bytearray(content)
    for _ in range(random.integers(1, 4)):
        place = int(
            random.integers(
                0, min(random.choice([64, 1024, len(content)]), len(content))
            )
        )
        end = place + int(random.integers(1, 9))
        here = content[place:end]
        flipped = bytes([content[place] ^ int(2 ** random.integers(0, 8))]) + here[1:]
        drawn = random.bytes(1) + here[1:]
        choices = flipped, drawn, bytes(len(here)), b"\xff" * len(here), b"", here * 2
        choice = int(random.integers(0, 7))
        if choice < 6:
            content[place:end] = choices[choice]
        else:
            del content[place:]
        content = content or bytearray(1)  # for the next change
    return bytes(content)


@pytest.mark.parametrize("form", FORMS)
def test_changed_files_are_rejected_or_load_finite_weights(model, form, tmp_path):
    save, name, number = FORMS[form]
    path = tmp_path / name
    before = model.get_weights()
    save(model, path)
    content = path.read_bytes()
    load(model, path)
    refused = 0
    for seed in range(rounds(number)):
        path.write_bytes(changed(content, np.random.default_rng(seed)))
        try:
            load(model, path)
        except InputError as error:
            refused += 1
            assert "\n" not in str(error), seed
            for old, new in zip(before, model.get_weights(), strict=True):
                np.testing.assert_array_equal(old, new, f"seed {seed}")
        else:
            assert all(np.isfinite(value).all() for value in model.get_weights()), seed
            model.set_weights(before)
    assert refused > 0.2 * rounds(number)
