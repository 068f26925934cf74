# SPDX-License-Identifier: Apache-2.0
"""Lines that a run prints before its first step."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

from training_runs import recipe_with

from lambdanet.training.run import logs

RECIPE = recipe_with(
    "digits",
    epochs=4,
    warmup_epochs=0,
    learning_rate=0.25,
    label_smoothing=0.1,
    weight_decay=1e-4,
    global_batch_size=64,
)
ONE = {"chief": True, "replicas": 1, "worker": 0, "workers": 1}


def lines(step=0, devices=ONE, **changes):
    dataset = SimpleNamespace(
        recipe=dataclasses.replace(RECIPE, **changes),
        eval_split="validation",
        source=SimpleNamespace(
            files={"train": [("", 1), ("", 0), ("", 1)]}.get, class_names=["cat", "dog"]
        ),
        num_examples={"train": 640, "validation": 30}.get,
        steps_per_epoch=10,
        class_names=["cat", "dog"],
        class_weights=(),
        positive_weights=(0.5, 2.0) if changes.get("positive_weights") else (),
    )
    return logs.opening(
        dataset, Path("run"), SimpleNamespace(**devices), step, *divmod(step, 10)
    )


def test_weights_of_classes():
    changes = {
        "task": "multilabel",
        "loss": "binary_cross_entropy",
        "positive_weights": "balanced",
    }
    assert lines(**changes)[-1] == "factors where they are present: cat 0.5, dog 2"


def test_a_new_run():
    name = f"{RECIPE.model} on {RECIPE.dataset} in run"
    assert lines() == [
        f"training {name}: 4 epochs of 10 steps",
        "640 pictures in train, 30 in validation",
        "the largest class is dog with 2, the smallest cat with 1",
        "batches of 64 images, in float32; the learning rate begins at 0.25",
        "the loss has label smoothing of 0.1 and weight decay of 0.0001",
    ]


def test_windows_of_pictures():
    found = lines(task="segmentation", loss="", windows_per_image=8)[3]
    assert found.startswith("batches of 64 windows, 8 per image and epoch, in float32;")


def test_several_machines():
    devices = {"chief": True, "replicas": 8, "worker": 0, "workers": 2}
    assert lines(devices=devices, mixed_precision=True)[3] == (
        "batches of 64 images, 8 on each of 8 devices of 2 machines, in bfloat16; "
        "the learning rate begins at 0.25"
    )
    worker = {**devices, "chief": False, "worker": 1}
    assert lines(7, devices=worker) == ["worker 1 of 2, from 0, at step 7"]
