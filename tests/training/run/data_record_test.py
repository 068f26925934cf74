# SPDX-License-Identifier: Apache-2.0
"""Runs whose pictures change while they are interrupted, or after they are finished."""

import dataclasses
import json
import shutil

import pytest
from helpers import noise, write_picture
from picture_sources import RECIPE as PICTURES
from picture_sources import pixels, write_folder, write_tfds, write_tfrecord
from programs.small_model import plain_model
from refusals import refused
from training_runs import act_at, saved_steps, send_sigterm

from lambdanet.errors import Preempted
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.file_contents import fingerprint
from lambdanet.training.evaluate import evaluate
from lambdanet.training.run.build import build_schedule
from lambdanet.training.run.logs import read_history
from lambdanet.training.run.start import describe, read_record
from lambdanet.training.train import train

# Three epochs of three steps, with 60 pictures of training.
RECIPE = dataclasses.replace(
    PICTURES,
    dataset="folder",
    eval_split="validation",
    num_classes=0,
    warmup_epochs=0,
)


@pytest.fixture(scope="module", autouse=True)
def small_network():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lambdanet.models.zoo.create_model", plain_model)
        yield


def _stop(step, path, root, **options):
    with pytest.MonkeyPatch.context() as patch:
        act_at(patch, [step], send_sigterm)
        with refused(f"stopped by SIGTERM at step {step}", Preempted):
            train(RECIPE, path, str(root), **options)


def _remove(root, first):
    for path in root.glob("train/*/*.png"):
        if int(path.stem) >= first:
            path.unlink()


def _content(folder):
    return {
        file: (file.stat().st_mtime_ns, file.is_file() and file.read_bytes())
        for file in folder.rglob("*")
    }


@pytest.mark.slow
def test_run_goes_on_with_other_pictures_where_told(tmp_path, capsys):
    """From its epoch, which begins again; the new run is interrupted like any other."""
    root = tmp_path / "pictures"
    path = tmp_path / "run"
    write_folder(root)
    _stop(4, path, root)
    _remove(root, 36)
    before = _content(path)
    message = (
        "began with pictures of other names, sizes or numbers: train had 60, now 36, validation had 60, "
        "now 60; --accept_new_data goes on with these, and --set=start_from=.* in another --model_dir"
    )
    with refused(message):
        train(RECIPE, path, str(root))
    assert _content(path) == before
    _stop(5, path, root, accept_new_data=True)
    assert "after epoch 1 of 3, step 4\n" in capsys.readouterr().out
    assert train(RECIPE, path, str(root))["epoch"] == 3
    assert "after epoch 1 of 3 and 1 of 2 steps, step 5\n" in capsys.readouterr().out
    rows = read_history(path / "history.csv")
    assert [(row["epoch"], row["step"]) for row in rows] == [
        ("1", "3"),
        ("2", "6"),
        ("3", "8"),
    ]
    schedule = build_schedule(RECIPE, 2)
    for row, position in zip(rows[1:], (3, 5), strict=True):
        rate = float(schedule(position))
        assert float(row["learning_rate"]) == pytest.approx(rate, rel=1e-5)
    record = read_record(path)
    assert record.steps_per_epoch == 2
    assert (record.first_step, record.first_epoch) == (4, 1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of the pictures of a finished run, and its model_dir in it."""
    root = tmp_path_factory.mktemp("pictures")
    write_folder(root, 20)
    shutil.rmtree(root / "validation")
    recipe = dataclasses.replace(RECIPE, global_batch_size=4, epochs=1)
    train(recipe, root / "run", str(root))
    return root, recipe


@pytest.mark.slow
@pytest.mark.parametrize("change", ["added", "removed", "gone"])
def test_finished_run_does_nothing_with_other_data(finished, tmp_path, capsys, change):
    root, recipe = finished
    data = tmp_path / "data"
    shutil.copytree(root, data, ignore=shutil.ignore_patterns("run"))
    path = tmp_path / "run"
    shutil.copytree(root / "run", path)
    if change == "added":
        write_picture(data / "train" / "0" / "new.png", pixels(40))
    elif change == "removed":
        _remove(data, 9)
    else:
        shutil.rmtree(data)
    before = _content(path)
    result = train(recipe, path, str(data))
    assert "finished already: " in capsys.readouterr().out
    assert (result["epoch"], result["step"]) == (1, 4)
    assert _content(path) == before
    with refused("model_dir .* was made with another recipe: learning_rate is"):
        train(dataclasses.replace(recipe, learning_rate=1.0), path, str(data))


@pytest.mark.slow
def test_held_out_pictures_remain(finished, tmp_path, capsys):
    """Also where a picture is added, and other folders are beside the pictures."""
    root, recipe = finished
    data = tmp_path / "data"
    shutil.copytree(root, data)
    path = data / "run"
    held_out = read_record(path).held_out
    assert {name.split("/")[1] for name in held_out} == {"0", "1", "2"}
    write_picture(data / "train" / "0" / "000.png", pixels(40))
    (data / "exported" / "assets").mkdir(parents=True)
    assert evaluate(path, str(data))["examples"] == len(held_out)
    line = f"validation is {len(held_out)} of 21 pictures of train, some of each class"
    assert line in capsys.readouterr().out
    dataset = Dataset.open(recipe, str(data), held_out=held_out)
    found = [
        file.removeprefix(f"{data}/") for file, _ in dataset.source.files("validation")
    ]
    assert found == held_out
    # Others are made where none of them exists, and none where there is another split.
    other = Dataset.open(recipe, str(data), held_out=["train/0/none.png"])
    assert other.source.held_out[0] == "train/0/09.png"
    (data / "exported" / "1").mkdir()
    with refused("unknown split in .* 'validation'"):
        Dataset.open(recipe, str(data)).num_examples("validation")
    assert (
        Dataset.open(recipe, str(data), held_out=held_out).source.held_out == held_out
    )


@pytest.mark.slow
def test_run_of_earlier_version_goes_on(tmp_path, capsys):
    root = tmp_path / "pictures"
    path = tmp_path / "run"
    write_folder(root)
    _stop(4, path, root)
    (path / "data.json").unlink()
    train(RECIPE, path, str(root))
    line = (
        f"{path} is of an earlier version, which did not record its pictures: it goes"
    )
    assert capsys.readouterr().out.count(line) == 1
    assert saved_steps(path) == [4, 6, 9]
    assert read_record(path).splits["train"][0] == 60


@pytest.mark.parametrize("write", [write_tfrecord, write_tfds])
def test_record_of_other_sources_has_their_numbers(tmp_path, write):
    recipe = dataclasses.replace(PICTURES, **write(tmp_path))
    record = describe(Dataset.open(recipe, str(tmp_path)))
    numbers = [number for number, _ in record.splits.values()]
    assert (numbers, record.steps_per_epoch) == ([60, 60], 3)


def test_record_depends_on_names_sizes_and_classes_alone(tmp_path):
    files = [
        (str(write_picture(tmp_path / folder / name, noise(6, size, 3))), label)
        for folder, name, size, label in [
            ("a", "1.png", 6, 0),
            ("b", "1.png", 6, 0),
            ("c", "1.png", 6, 1),
            ("d", "2.png", 6, 0),
            ("e", "1.png", 7, 0),
        ]
    ]
    first, moved, *others = [fingerprint([file]) for file in files]
    assert first == moved
    assert len({first, *others}) == 4


@pytest.mark.parametrize("content", ["[]", "{", '{"steps": 4}'])
def test_damaged_record_is_named(tmp_path, content):
    (tmp_path / "data.json").write_text(content)
    with refused("data.json' cannot be read: "):
        read_record(tmp_path)
    assert json.dumps(read_record(tmp_path / "none")._asdict())
