# SPDX-License-Identifier: Apache-2.0
"""Trains the model of docs/how-to/own_model_on_tpu.md on one and on two CPU devices.

On TensorFlow by a strategy; on JAX by a distribution. Prints a JSON object on
the last line.
"""

import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
from run_page import BLOCK

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own_model_on_tpu.md"
MODEL: dict[str, Any] = {}
exec(BLOCK.search(PAGE.read_text())[2], MODEL)

IMAGES = np.random.default_rng(0).normal(size=[64, 8, 8, 1]).astype("float32")
LABELS = np.arange(64) % 10
BATCH = 16


def compiled(**options: Any) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = MODEL["build"]()
    MODEL["compile_model"](model, **options)
    # Adam divides by the size of a gradient, so that small differences grow.
    model.optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    return model


def fit(model: Any) -> Any:
    model.fit(IMAGES, LABELS, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    return model


def distance(left: Any, right: Any) -> float:
    pairs = zip(left.weights, right.weights, strict=True)
    return max(float(np.abs(a.numpy() - b.numpy()).max()) for a, b in pairs)


def answers(model: Any, count: int = len(IMAGES)) -> np.ndarray:
    return model.predict(IMAGES[:count], batch_size=BATCH, verbose=0)


def evaluation(model: Any, count: int = len(IMAGES)) -> list[float]:
    return model.evaluate(IMAGES[:count], LABELS[:count], batch_size=BATCH, verbose=0)


def difference(left: Any, right: Any) -> float:
    return float(np.abs(np.asarray(left) - np.asarray(right)).max())


def on_jax() -> dict[str, Any]:
    distribution = keras.distribution
    distribution.set_distribution(distribution.DataParallel(devices=["cpu:0"]))
    one = fit(compiled())
    moved = distance(one, compiled())
    expected = evaluation(one)
    distribution.set_distribution(distribution.DataParallel())
    two = fit(compiled())
    result = {
        "devices": len(two.weights[0].value.devices()),
        "moved": moved,
        "weights": distance(one, two),
        "steps": distance(one, fit(compiled(steps_per_execution=4))),
        "metrics": difference(expected, evaluation(two)),
    }

    mesh = distribution.DeviceMesh((1, 2), ("batch", "model"))
    layout = distribution.LayoutMap(mesh)
    layout[".*/(queries|keys|values)/kernel"] = (None, "model")
    distribution.set_distribution(
        distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
    )
    divided = fit(compiled())
    result["divided"] = distance(one, divided)
    result["parts"] = sorted(
        weight.path.split("/")[1]
        for weight in divided.weights
        if "model" in weight.value.sharding.spec
    )

    expected = answers(divided)
    with tempfile.TemporaryDirectory() as folder:
        import tensorflow as tf

        divided.save(f"{folder}/model.keras")
        divided.export(f"{folder}/exported", verbose=False)
        exported = tf.saved_model.load(f"{folder}/exported")
        result["exported"] = difference(expected, exported.serve(IMAGES))
        distribution.set_distribution(None)
        loaded = keras.models.load_model(f"{folder}/model.keras")
    result["loaded"] = difference(expected, answers(loaded))
    fit(loaded)
    return result


def on_tensorflow() -> dict[str, Any]:
    strategy = _two_devices()

    def mirrored() -> keras.Model:
        with strategy.scope():
            return compiled()

    one = fit(compiled())
    two = fit(mirrored())
    result = {
        "devices": strategy.num_replicas_in_sync,
        "moved": distance(one, compiled()),
        "weights": distance(one, two),
    }
    result["metrics"] = difference(evaluation(one, 51), evaluation(two, 51))
    result["answers"] = difference(answers(one, 51), answers(two, 51))
    with tempfile.TemporaryDirectory() as folder:
        two.save(f"{folder}/model.keras")
        with strategy.scope():
            loaded = keras.models.load_model(f"{folder}/model.keras")
    result["loaded"] = difference(answers(two), answers(loaded))
    fit(loaded)
    return result


def _two_devices() -> Any:
    """Returns a strategy; TensorFlow must not have been used before."""
    import tensorflow as tf
    import two_devices

    two_devices.divide_cpu()
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def main() -> None:
    warnings.simplefilter("ignore")
    compute = on_jax if keras.backend.backend() == "jax" else on_tensorflow
    print(json.dumps(compute()))


if __name__ == "__main__":
    main()
