# SPDX-License-Identifier: Apache-2.0
"""Weight files with changed bytes: each raises a one-line error or loads finite values."""

import numpy as np
import pytest
import tf_keras as keras
from fuzzing import rounds

import lambdanet
from lambdanet.errors import InputError
from lambdanet.models.weights import tensor_files, weight_files


@pytest.fixture(scope="module")
def model():
    layers = [lambdanet.LambdaLayer(8, scope=3, name="spatial"), keras.layers.Dense(2, name="logits")]
    return keras.Sequential([keras.Input([4, 4, 8]), *layers], name="small")


def arrays_of(model):
    return {name: variable.numpy() for name, variable in weight_files.weights_by_name(model).items()}


def save_safetensors(model, path):
    weight_files.save(model, path)


def save_without_a_hash(model, path):
    tensor_files.write_safetensors(path, arrays_of(model), {})
    content = path.read_bytes()
    start = content.index(b'"__metadata__"')
    end = 8 + int.from_bytes(content[:8], "little")
    header = b"{" + content[content.index(b"}", start) + 2 : end]
    path.write_bytes(content[:8] + header.ljust(end - 8) + content[end:])


def save_h5(model, path):
    model.save_weights(path)


def save_torch(model, path):
    torch = pytest.importorskip("torch")
    torch.save({name: torch.from_numpy(array) for name, array in arrays_of(model).items()}, path)


def save_old_torch(model, path):
    """The format before PyTorch 1.6: consecutive pickles, not a zip file."""
    torch = pytest.importorskip("torch")
    state = {name: torch.from_numpy(array) for name, array in arrays_of(model).items()}
    torch.save(state, path, _use_new_zipfile_serialization=False)


def load_torch(model, path):
    weight_files.assign_weights(model, tensor_files.read_tensors(path), str(path))


FORMS = {
    "safetensors": (save_safetensors, weight_files.load_weights, "x.safetensors", 500),
    "safetensors without a hash": (save_without_a_hash, weight_files.load_weights, "x.safetensors", 500),
    "HDF5": (save_h5, weight_files.load_weights, "x.weights.h5", 120),
    "PyTorch": (save_torch, load_torch, "x.pth", 250),
    "old PyTorch": (save_old_torch, load_torch, "x.pth", 250),
}


def changed(content, random):
    """Changes some bytes, anywhere or at the start, where most formats have their header."""
    content = bytearray(content)
    for _ in range(random.integers(1, 4)):
        place = int(random.integers(0, min(random.choice([64, 1024, len(content)]), len(content))))
        size = int(random.integers(1, 9))
        here = slice(place, place + size)
        match random.integers(0, 7):
            case 0:
                content[place] ^= int(2 ** random.integers(0, 8))
            case 1:
                content[place] = int(random.integers(0, 256))
            case 2:
                content[here] = bytes(len(content[here]))
            case 3:
                content[here] = b"\xff" * len(content[here])
            case 4:
                del content[place:]
            case 5:
                del content[here]
            case 6:
                content[here] = content[here] * 2
        content = content or bytearray(1)  # for the next change
    return bytes(content)


@pytest.mark.parametrize("form", FORMS)
def test_changed_files_are_rejected_or_load_finite_weights(model, form, tmp_path):
    save, load, name, number = FORMS[form]
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
