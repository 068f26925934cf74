# SPDX-License-Identifier: Apache-2.0
"""Datasets of the hub in a cache that is written by hand, without a network."""

import pytest
from hub_server import COMMIT
from huggingface_hub import constants
from picture_sources import FIELDS, RECIPE, write_parquet
from refusals import refused
from training_runs import open_dataset

from lambdanet.training.run import model_dir

NAME = "hf:user/pictures"


@pytest.fixture(autouse=True)
def _offline(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))


def _write(cache, folder, commit=COMMIT, count=60):
    """Writes pictures in a folder of a commit, which becomes the newest."""
    root = cache / "datasets--user--pictures"
    path = root / "snapshots" / commit / folder
    path.mkdir(parents=True, exist_ok=True)
    write_parquet(path, count)
    (root / "refs").mkdir(exist_ok=True)
    (root / "refs/main").write_text(commit)


def test_a_run_reads_the_commit_that_it_began_with(tmp_path):
    name = "hf://datasets/user/pictures@main"
    _write(tmp_path, "data")
    began = open_dataset(RECIPE, name, **FIELDS).data_dir
    assert began == f"{name}@{COMMIT}"
    run = model_dir.claim(tmp_path / "run", RECIPE, data_dir=began)
    _write(tmp_path, "", "f" * 40, 48)
    for given, count in ((None, 60), (name, 60), (NAME, 48)):
        data_dir = model_dir.find_data_dir(run, given)
        assert open_dataset(RECIPE, data_dir, **FIELDS).num_examples("train") == count


def test_datasets_that_cannot_be_read(tmp_path):
    _write(tmp_path, "a")
    _write(tmp_path, "b")
    for name, dataset, message in (
        ("hf:user", "folder", "data_dir must be hf:USER/REPO or hf:USER/REPO@REV"),
        ("hf:user/a", "folder", "dataset hf:user/a cannot be fetched: .*offline"),
        (NAME, "folder", r"Parquet files in .* must be one, got \['a', 'b'\]"),
        (NAME, "digits", "dataset must be folder, for data of the hub, got"),
    ):
        with refused(message, (ConnectionError, ValueError)):
            open_dataset(RECIPE, name, dataset=dataset)
