# SPDX-License-Identifier: Apache-2.0
"""Lines that a run prints before its first step."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import keras
from training_runs import recipe_with

from lambdanet.training.run import logs, memory

RECIPE = recipe_with(
    "digits",
    epochs=4,
    warmup_epochs=0,
    learning_rate=0.25,
    label_smoothing=0.1,
    weight_decay=1e-4,
    global_batch_size=64,
)
FEW = "an epoch has fewer than 10 steps: a smaller global_batch_size"
ONE = {"chief": True, "replicas": 1, "worker": 0, "workers": 1}


def lines(step=0, devices=ONE, steps=10, **changes):
    dataset = SimpleNamespace(
        recipe=dataclasses.replace(RECIPE, **changes),
        eval_split="validation",
        source=SimpleNamespace(
            files={"train": [("", 1), ("", 0), ("", 1)]}.get, class_names=["cat", "dog"]
        ),
        num_examples={"train": 640, "validation": 30}.get,
        steps_per_epoch=steps,
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
    assert lines(steps=9)[5:] == [f"{FEW} gives more"]


def test_windows_of_pictures():
    found = lines(steps=9, task="segmentation", loss="", windows_per_image=8)
    assert found[3].startswith("batches of 64 windows, 8 per image and epoch, in ")
    assert found[5:] == [f"{FEW}, or a larger windows_per_image, gives more"]


def test_step_that_does_not_fit(tmp_path, monkeypatch):
    images = keras.Input([None, None, 1])
    model = keras.Model(images, keras.layers.Dense(900)(images))
    model.compile("adam")
    model.optimizer.build(model.weights)
    recipe = dataclasses.replace(RECIPE, input_size=512, accumulate_steps=2)
    # Maps of 32 images, with gradients; kernel and bias, and two averages of Adam for each; what is fixed.
    limit = (4 * (2 * 32 * 512 * 512 * 900 + 3 * 1800) + 200_000_000) // 1024
    file = tmp_path / "meminfo"
    monkeypatch.setattr("lambdanet.training.run.memory.MEMORY", file)
    found = []
    for more in (1, -1):
        file.write_text(f"MemAvailable:   {limit + more} kB\n")
        found.append(memory.memory_lines(recipe, model, 1))
    line = (
        "a step needs about 60.6 GB of memory, and 60.6 GB are available: "
        "a smaller global_batch_size or input_size needs less"
    )
    assert found == [[], [line]]
    monkeypatch.setattr("lambdanet.backend.accelerators", lambda: ["GPU"])
    assert not memory.memory_lines(recipe, model, 1)


def test_several_machines():
    devices = {"chief": True, "replicas": 8, "worker": 0, "workers": 2}
    assert lines(devices=devices, mixed_precision=True)[3] == (
        "batches of 64 images, 8 on each of 8 devices of 2 machines, in bfloat16; "
        "the learning rate begins at 0.25"
    )
    worker = {**devices, "chief": False, "worker": 1}
    assert lines(7, devices=worker) == ["worker 1 of 2, from 0, at step 7"]
