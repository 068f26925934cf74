# SPDX-License-Identifier: Apache-2.0
"""Lines that a run prints before its first step."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from lambdanet import configs
from lambdanet.training.run import report

RECIPE = dataclasses.replace(
    configs.get_recipe("digits"),
    epochs=4,
    warmup_epochs=0,
    learning_rate=0.25,
    label_smoothing=0.1,
    weight_decay=1e-4,
    global_batch_size=64,
)
ONE = {"chief": True, "replicas": 1, "worker": 0, "workers": 1}


def lines(step=0, is_finished=False, devices=ONE, **changes):
    dataset = SimpleNamespace(
        recipe=dataclasses.replace(RECIPE, **changes),
        steps_per_epoch=10,
        class_names=["cat", "dog"],
        class_weights=[0.5, 1.5],
    )
    return report.opening(
        dataset, Path("run"), SimpleNamespace(**devices), step, is_finished
    )


def test_a_new_run():
    name = f"{RECIPE.model} on {RECIPE.dataset} in run"
    assert lines() == [
        f"training {name}: 4 epochs of 10 steps",
        "batches of 64 images, in float32; the learning rate begins at 0.25",
        "the loss has label smoothing of 0.1 and weight decay of 0.0001",
    ]


@pytest.mark.parametrize(
    ("step", "place"),
    [
        (20, "after epoch 2 of 4, step 20"),
        (23, "after epoch 2 of 4 and 3 of 10 steps, step 23"),
    ],
)
def test_a_resumed_run(step, place):
    assert lines(step)[0].endswith(f"in run {place}")


def test_a_finished_run_has_one_line():
    (line,) = lines(40, is_finished=True)
    assert line.startswith("finished already: ")
    assert line.endswith(" in run, 4 epochs, step 40")


def test_several_machines():
    devices = {"chief": True, "replicas": 8, "worker": 0, "workers": 2}
    assert lines(devices=devices, mixed_precision=True)[1] == (
        "batches of 64 images, 8 on each of 8 devices of 2 machines, in bfloat16; "
        "the learning rate begins at 0.25"
    )
    worker = {**devices, "chief": False, "worker": 1}
    assert lines(7, devices=worker) == ["worker 1 of 2, from 0, at step 7"]


def test_weights_of_classes():
    assert lines(class_weights="balanced")[-1] == (
        "weights of the classes: cat 0.5, dog 1.5"
    )
