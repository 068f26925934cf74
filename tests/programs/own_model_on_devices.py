# SPDX-License-Identifier: Apache-2.0
"""Trains the model of docs/how-to/own_model_on_tpu.md on one and on two CPU devices.

    own_model_on_devices.py [tf_keras]

On TensorFlow by a strategy, or by tf_keras in a strategy; on JAX by a distribution. Prints a JSON object on
the last line.
"""

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
from run_page import BLOCK

import lambdanet

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


def fit(model: Any, count: int = len(IMAGES)) -> Any:
    model.fit(
        IMAGES[:count],
        LABELS[:count],
        batch_size=BATCH,
        epochs=2,
        shuffle=False,
        verbose=0,
    )
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


def failure(run: Any) -> str:
    """Returns the name of the error of a function; empty: none."""
    try:
        run()
    except Exception as error:
        return type(error).__name__
    return ""


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
        "uneven": failure(lambda: fit(compiled(), BATCH + 1)),
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

    def mirrored(**options: Any) -> keras.Model:
        with strategy.scope():
            return compiled(**options)

    one = fit(compiled())
    two = fit(mirrored())
    result = {
        "devices": strategy.num_replicas_in_sync,
        "moved": distance(one, compiled()),
        "weights": distance(one, two),
        "metrics": difference(evaluation(one, 51), evaluation(two, 51)),
        "answers": difference(answers(one, 51), answers(two, 51)),
        "uneven": distance(fit(compiled(), 51), fit(mirrored(), 51)),
        "averages": _local_averages(strategy),
        "masks": _masks(strategy),
    }
    with tempfile.TemporaryDirectory() as folder:
        two.save(f"{folder}/model.keras")
        with strategy.scope():
            loaded = keras.models.load_model(f"{folder}/model.keras")
    result["loaded"] = difference(answers(two), answers(loaded))
    fit(loaded)

    # What Keras 3.15 cannot do.
    outside = compiled()
    with strategy.scope():
        result["outside"] = failure(lambda: fit(outside))
    result["steps"] = failure(lambda: fit(mirrored(steps_per_execution=2)))
    result["xla"] = failure(lambda: fit(mirrored(jit_compile=True)))
    return result


def _two_devices() -> Any:
    """Returns a strategy; TensorFlow must not have been used before."""
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def _local_averages(strategy: Any) -> list[float]:
    """Returns how far local moving averages of each device are from those of the saved model."""
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([8, 8, 1]),
                lambdanet.LambdaLayer(16, scope=3),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(10),
            ]
        )
        MODEL["compile_model"](model)
    fit(model)
    (mean,) = [w for w in model.weights if w.path.endswith("queries_norm/moving_mean")]
    return [difference(mean.numpy(), part.numpy()) for part in mean.value.values]


def _masks(strategy: Any) -> float:
    """Returns how far the outputs of dropout on the two devices are from each other."""
    import tensorflow as tf

    with strategy.scope():
        layer = keras.layers.Dropout(0.5)

    def drop() -> tf.Tensor:
        return layer(tf.ones([1, 100]), training=True)

    outputs = strategy.run(tf.function(drop))
    return difference(*strategy.experimental_local_results(outputs))


def by_tf_keras() -> dict[int, float]:
    """Returns the differences of weights with one and two steps per execution of tf_keras."""
    import tf_keras

    strategy = _two_devices()
    one = fit(compiled())

    def build() -> keras.Model:
        keras.utils.set_random_seed(0)
        return MODEL["build"]()

    distances = {}
    for steps in (1, 2):
        with strategy.scope():
            model = lambdanet.as_tf_keras(build)
            model.compile(
                tf_keras.optimizers.SGD(0.01, momentum=0.9),
                tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                steps_per_execution=steps,
            )
        distances[steps] = distance(one, fit(model).network)
    return distances


def main() -> None:
    warnings.simplefilter("ignore")
    result: dict[Any, Any]
    if sys.argv[1:] == ["tf_keras"]:
        result = by_tf_keras()
    elif keras.backend.backend() == "jax":
        result = on_jax()
    else:
        result = on_tensorflow()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
