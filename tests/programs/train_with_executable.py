# SPDX-License-Identifier: Apache-2.0
"""Saves compiled training steps, or trains with them and without: train_with_executable.py FOLDER save|train

On JAX, for one and for two devices. With "train" it prints, as JSON, the differences between the weights of
runs with an executable and without, and the message of each executable that is refused.
"""

import contextlib
import dataclasses
import functools
import io
import json
import signal
import sys
import zipfile
from pathlib import Path
from unittest import mock

import jax
import numpy as np
from keras.src.backend.jax import trainer
from small_model import ONE_BLOCK

from lambdanet import configs
from lambdanet.errors import InputError, Preempted
from lambdanet.models import zoo
from lambdanet.tpu import check, compiler, steps
from lambdanet.training.run import callbacks, executable, model_dir
from lambdanet.training.train import train

FOLDER = Path(sys.argv[1])
STEPS_PER_EPOCH = 4
zoo.MODELS["lambda_resnet_tiny"] = ONE_BLOCK
RECIPE = dataclasses.replace(
    configs.get_recipe("digits"),
    epochs=2,
    train_split="train[:64]",
    eval_split="test[:21]",
    global_batch_size=16,
    input_size=16,
    dropout_rate=0.3,
    ema_decay=0.5,
    accumulate_steps=2,
    learning_rate=0.01,
)
COUNTS = {"one_device": 1, "mirrored": 2}


def save(name, count, recipe=RECIPE, steps_per_epoch=STEPS_PER_EPOCH):
    """Compiles the step for some devices as `tpu-check` does for those of a topology."""
    devices = jax.devices()[:count]
    batch = recipe.global_batch_size // count
    step = steps.recipe_step(recipe, "train", batch, steps_per_epoch)
    parallel = functools.partial(check._distribution, step)
    lowered = compiler.lower(step.function, step.inputs, devices, parallel)
    executable.save_executable(
        FOLDER / name, recipe, steps_per_epoch, lowered, lowered.compile(), devices
    )


def save_all():
    for name, count in COUNTS.items():
        save(name, count)
    save("steps", 1, steps_per_epoch=5)
    save("batch", 1, dataclasses.replace(RECIPE, global_batch_size=8))
    save("recipe", 1, dataclasses.replace(RECIPE, epochs=3, seed=1))
    # Files that differ from the one of one device by a single fact.
    for name in ("device_kind", "jax_version", "lambdanet_version", "hash"):
        with zipfile.ZipFile(FOLDER / "one_device") as archive:
            facts = json.loads(archive.read(executable.FACTS))
            program = archive.read(executable.PROGRAM)
        facts[name] = "other"
        with zipfile.ZipFile(FOLDER / name, "w") as archive:
            archive.writestr(executable.FACTS, json.dumps(facts))
            archive.writestr(executable.PROGRAM, program)
    content = (FOLDER / "one_device").read_bytes()
    (FOLDER / "truncated").write_bytes(content[: len(content) // 2])
    damaged = bytearray(content)
    damaged[len(content) // 2] ^= 0xFF
    (FOLDER / "damaged").write_bytes(damaged)
    (FOLDER / "text").write_text("not an archive")
    with zipfile.ZipFile(FOLDER / "archive", "w") as archive:
        archive.writestr(executable.FACTS, "[]")


def run(name, recipe=RECIPE, **options):
    """Trains, and returns what the run prints and its weights."""
    options.setdefault("distribute", "one_device")
    path = FOLDER / "runs" / name
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        train(recipe, path, str(FOLDER), **options)
    return shown.getvalue(), model_dir.load_weights(path)[1]


def resumed(name, **options):
    """Stops a run in its first epoch, and returns what the run that resumes it prints and its weights."""
    save = callbacks.SaveCheckpoints.on_train_batch_end

    def stop(self, batch, logs=None):
        if batch == 1:
            signal.raise_signal(signal.SIGTERM)
        save(self, batch, logs)

    with (
        mock.patch.object(callbacks.SaveCheckpoints, "on_train_batch_end", stop),
        contextlib.suppress(Preempted),
    ):
        run(name, **options)
    return run(name, **options)


def refusal(file, recipe=RECIPE):
    """Returns the message with which a run refuses a file, and whether it wrote something."""
    name = f"refused_{file}"
    try:
        run(name, recipe, executable=str(FOLDER / file))
    except InputError as error:
        return str(error), (FOLDER / "runs" / name).exists()


def distance(left, right):
    return max(float(np.abs(left[name] - right[name]).max()) for name in right)


def train_all():
    result = {}
    for name in COUNTS:
        _, expected = run(f"{name}_compiled", distribute=name)
        path = str(FOLDER / name)
        with mock.patch.object(trainer, "jit", side_effect=jax.jit) as jit:
            shown, weights = run(name, distribute=name, executable=path)
        functions = [call.args[0].__name__ for call in jit.call_args_list]
        result[name] = {
            "shown": shown,
            "distance": distance(weights, expected),
            "compiled": functions,
        }
        shown, weights = resumed(f"{name}_resumed", distribute=name, executable=path)
        difference = distance(weights, expected)
        result[f"{name}_resumed"] = {"shown": shown, "distance": difference}
    several = {"steps_per_execution": 3, "executable": str(FOLDER / "one_device")}
    other_seed = dataclasses.replace(RECIPE, seed=1)
    _, expected = run("seed_compiled", other_seed)
    _, weights = run("seed", other_seed, **several)
    result["seed"] = distance(weights, expected)
    files = ["mirrored", "steps", "batch", "recipe", "device_kind", "jax_version"]
    files += ["lambdanet_version", "hash", "truncated", "damaged", "text", "archive"]
    refusals = {file: refusal(file) for file in [*files, "nowhere"]}
    start = str(FOLDER / "runs" / "one_device_compiled")
    frozen = dataclasses.replace(
        RECIPE, start_from=start, freeze="stem1_conv", unfreeze_epoch=1
    )
    refusals["frozen"] = refusal("one_device", frozen)
    resized = dataclasses.replace(RECIPE, sizes=(16, 24))
    refusals["resized"] = refusal("one_device", resized)
    print(json.dumps({**result, "refusals": refusals}))


{"save": save_all, "train": train_all}[sys.argv[2]]()
