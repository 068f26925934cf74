# SPDX-License-Identifier: Apache-2.0
"""Tests that oneDNN is turned on before TensorFlow is imported, on x86 alone, and never against the user."""

import os
import sys

import pytest
from refusals import refused

from lambdanet.cli import exported, training
from lambdanet.core import onednn
from lambdanet.core.errors import InputError
from lambdanet.core.onednn import use_onednn

NAME = "TF_ENABLE_ONEDNN_OPTS"


@pytest.fixture
def before_import(monkeypatch):
    """As on an x86 processor with AVX2 alone, before TensorFlow is imported."""
    monkeypatch.delenv(NAME, raising=False)
    monkeypatch.delitem(sys.modules, "tensorflow")
    monkeypatch.setattr(onednn.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(onednn.Path, "read_text", lambda path: "flags : fpu avx2\n")
    yield monkeypatch
    os.environ.pop(NAME, None)  # what the function set


def test_onednn_is_used_where_tensorflow_leaves_it_off(before_import):
    assert not onednn.is_used()
    assert use_onednn() and onednn.is_used()
    assert os.environ[NAME] == "1"


def test_onednn_is_left_off_where_the_user_says_so(before_import):
    before_import.setenv(NAME, "0")
    assert not use_onednn()


@pytest.mark.parametrize("reason", ["other processor", "too late"])
def test_onednn_variable_is_not_set_in_vain(before_import, reason):
    if reason == "too late":
        before_import.setitem(sys.modules, "tensorflow", onednn)
    else:
        before_import.setattr(onednn.platform, "machine", lambda: "aarch64")
    use_onednn()
    assert NAME not in os.environ


@pytest.mark.parametrize(
    ("module", "run"),
    [
        (training, lambda: training.train("digits", "missing")),
        (training, lambda: training.evaluate("missing")),
        (exported, lambda: exported.predict_many(["a"], "missing", "out")),
        (exported, lambda: exported.pseudo_label("missing", "a", "out")),
    ],
    ids=["train", "evaluate", "predict-many", "pseudo-label"],
)
def test_commands_on_batches_use_onednn(monkeypatch, module, run):
    def use():
        raise InputError("it is used")

    monkeypatch.setattr(module, "use_onednn", use)
    with refused("it is used"):
        run()
