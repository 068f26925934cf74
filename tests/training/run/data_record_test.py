# SPDX-License-Identifier: Apache-2.0
"""Runs whose pictures change while they are interrupted, or after they are finished."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest
from picture_sources import RECIPE as PICTURES
from picture_sources import write_folder
from programs.small_model import plain_model
from refusals import refused
from training_runs import act_at, open_dataset, send_sigterm, times_of_files

from lambdanet.core.errors import Preempted
from lambdanet.training.evaluate import evaluate
from lambdanet.training.run import logs, start
from lambdanet.training.run.build import build_schedule
from lambdanet.training.train import train

# Three epochs of three steps, with 60 pictures of training.
RECIPE = dataclasses.replace(
    PICTURES, dataset="folder", eval_split="validation", num_classes=0, warmup_epochs=0
)


@pytest.fixture(autouse=True)
def small_network(monkeypatch):
    monkeypatch.setattr("lambdanet.models.zoo.create_model", plain_model)


@pytest.mark.slow
def test_run_goes_on_with_other_pictures_where_told(tmp_path, monkeypatch, capsys):
    """From its epoch, which begins again; then it is interrupted like any other."""
    path = tmp_path / "run"
    write_folder(tmp_path)
    act_at(monkeypatch, [4, 5], send_sigterm)
    with refused("stopped by SIGTERM at step 4", Preempted):
        train(RECIPE, path, str(tmp_path))
    first, *others = sorted(tmp_path.glob("train/*/[45]?.png"))
    other = first.rename(first.with_name("other.png"))
    with refused("train had 60, now 60, validation had 60, now 60; --accept_new_data"):
        train(RECIPE, path)
    for file in (other, *others):
        file.unlink()
    with refused("stopped by SIGTERM at step 5", Preempted):
        train(RECIPE, path, accept_new_data=True)
    assert "after epoch 1 of 3, step 4\n" in capsys.readouterr().out
    train(RECIPE, path)
    rows = logs.read_history(path / "history.csv")
    assert [row["step"] for row in rows] == ["3", "6", "8"]
    rates = [float(row["learning_rate"]) for row in rows[1:]]
    schedule = build_schedule(RECIPE, 2)
    assert rates == pytest.approx([float(schedule(3)), float(schedule(5))], rel=1e-5)
    now = start.read_record(path)
    none = start.read_record(tmp_path)
    assert start.resume(path, none, now, 8, False, False) == now
    assert f"{path} is of an earlier version, which did" in capsys.readouterr().out


@pytest.mark.slow
def test_finished_run_keeps_its_result_and_held_out_pictures(tmp_path):
    """Its folder is beside that of training."""
    write_folder(tmp_path, 20)
    shutil.rmtree(tmp_path / "validation")
    recipe = dataclasses.replace(RECIPE, global_batch_size=4, epochs=1)
    path = tmp_path / "run"
    result = train(recipe, path, str(tmp_path))
    before = times_of_files(path)
    held_out = start.read_record(path).held_out
    assert [name.split("/")[1] for name in held_out] == ["0", "1", "2"]
    (tmp_path / held_out[0]).unlink()
    assert evaluate(path)["examples"] == 2
    shutil.rmtree(tmp_path / "train")
    assert train(recipe, path, str(tmp_path)) == result
    assert times_of_files(path) == before


@pytest.fixture
def masks(tmp_path):
    """A table of six masks, which is in a folder beside theirs, and which names those of the folder `v1`."""
    root = tmp_path / "pictures"
    rows = ["file,mask,split"]
    for number in range(6):
        for folder in ("images", "v1", "v2"):
            file = root / folder / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(f"{folder} {number}".encode())
        split = "train" if number < 4 else "validation"
        rows.append(f"images/{number}.png,v1/{number}.png,{split}")
    (root / "classes.txt").write_text("a\nb\n")
    (root / "masks.csv").write_text("\n".join(rows))
    return root


def describe(root, before=None):
    """Returns the record of a run, as it is read again, after it was resumed."""
    fields = {"task": "segmentation", "loss": "cross_entropy", "global_batch_size": 2}
    dataset = open_dataset(RECIPE, root, labels=str(root / "masks.csv"), **fields)
    now = start.describe(dataset, before or start.DataRecord(0, {}))
    if before:
        now = start.resume(Path("run"), before, now, 1, True, False)
    return start.DataRecord(**json.loads(json.dumps(now._asdict())))


def test_changed_masks_end_a_run(masks):
    """Also where the size and the time are those of before, or the table names others of the same names."""
    before = describe(masks)
    mask = masks / "v1/4.png"
    times = os.stat(mask).st_atime_ns, os.stat(mask).st_mtime_ns
    mask.write_bytes(b"v2 4")
    os.utime(mask, ns=times)
    with refused("or with other masks: '.*v1/4.png' has other content; --accept_new_"):
        describe(masks, before)
    mask.write_bytes(b"v1 4")
    assert describe(masks, before).splits == before.splits
    table = masks / "masks.csv"
    table.write_text(table.read_text().replace("v1/1.png", "v2/1.png"))
    with refused("other masks: '.*v2/1.png' has other content"):
        describe(masks, before)


def test_changed_colors_end_a_run(masks):
    (masks / "classes.txt").write_text("a 0 0 9\nb 9 0 0\n")
    before = describe(masks)
    assert describe(masks, before) == before
    for swapped in ("a 9 0 0\nb 0 0 9\n", "a\nb\n"):
        (masks / "classes.txt").write_text(swapped)
        with refused("other masks: the classes have other colors; --accept_new_"):
            describe(masks, before)
    assert describe(masks, before._replace(colors=None)).colors == []
    (masks / "classes.txt").write_text("a 0 0 9\nb 9 0 0\n")
    with refused("have other colors"):
        describe(masks, before._replace(colors=[]))


def test_masks_are_read_once_where_they_stay(masks, monkeypatch, capsys):
    """And those of a run of an earlier version, which did not record them, with a line."""
    before = describe(masks)
    moved = masks.with_name("moved")
    shutil.copytree(masks, moved)
    assert describe(moved, before).splits == before.splits
    assert describe(masks, before._replace(masks=())) == before
    line = "run has no record of its masks: it goes on with those here\n"
    assert capsys.readouterr().out == line
    monkeypatch.setattr("pathlib.Path.read_bytes", None)
    assert describe(masks, before) == before


@pytest.mark.parametrize("before", [True, False, None])
@pytest.mark.parametrize("now", [True, False, None])
def test_other_sums_of_a_resumed_run_are_said(monkeypatch, capsys, before, now):
    """A record of before says nothing of oneDNN: then TensorFlow chose, here not to use it."""
    monkeypatch.setattr(start.onednn, "is_default", lambda: False)
    records = [start.DataRecord(1, {"train": [1, ""]}, onednn=x) for x in (before, now)]
    found = start.resume(Path("run"), *records, 1, False, False)
    assert found == records[1]
    is_other = now is not None and now != bool(before)
    assert ("oneDNN and goes on with" in capsys.readouterr().out) == is_other
