# SPDX-License-Identifier: Apache-2.0
"""Compares maps and gradients with outputs on the backend of this process, and prints errors as JSON."""

import json

import numpy as np
from layer_table import LAYERS
from programs import run_on_engine
from small_models import small_model

import lambdanet
from lambdanet import backend as K
from lambdanet.explain.maps import has_map

IMAGES = run_on_engine.IMAGES
# Every layer of the tables with a map: a function that makes one, the shape of its input, its arguments.
CASES = {}
for _name, (_make, _shape, _call) in run_on_engine.CASES.items():
    if has_map(_make()):
        CASES[_name] = _make, _shape, _call
assert "GlobalAttention" in CASES.keys() & LAYERS.keys()


def layer_of(name: str):
    """Returns a built layer with random weights, its input, and the arguments of a call."""
    make, shape, call = CASES[name]
    layer = make()
    layer.build(shape)
    for variable in layer.weights:
        own = run_on_engine.short_name(layer, variable)
        variable.assign(run_on_engine.random_value(own, variable.shape, 0.3))
    return layer, run_on_engine.images(*shape), call


def error_of(name: str) -> float:
    """Returns the largest difference of A V from the outputs of a layer, and of those of two queries."""
    layer, x, call = layer_of(name)

    def compute(x):
        outputs = layer(x, **call)
        outputs = K.reshape(outputs, [len(x), -1, outputs.shape[-1]])
        some = [outputs.shape[1] - 1, 1]
        differences = []
        for queries in (None, some):
            found = lambdanet.explain.implied_attention(layer, x, queries, **call)
            expected = outputs if queries is None else K.take(outputs, some, axis=1)
            differences.append(K.reshape(found.outputs() - expected, [-1]))
        return K.concatenate(differences, axis=0)

    if K.ENGINE == "jax":  # which else compiles each operation
        import jax

        compute = jax.jit(compute)
    return float(np.abs(K.convert_to_numpy(compute(K.convert_to_tensor(x)))).max())


def main() -> None:
    errors = {name: error_of(name) for name in CASES}
    model = small_model("lambda_resnet_tiny", activation="swish")
    x = run_on_engine.images(2, 16, 16, 3)
    for variable in model.weights:
        value = run_on_engine.random_value(variable.path, variable.shape, 0.1)
        variable.assign(value + 1 if "gamma" in variable.path else value)
    shares = lambdanet.explain.integrated_gradients(model, x, 1, steps=4)
    total = K.convert_to_numpy(shares).sum((1, 2, 3))
    evidence = K.convert_to_numpy(lambdanet.explain.grad_cam(model, x, 1, level=4))
    maps = lambdanet.explain.implied_attentions(model, x)
    found = {
        "errors": errors,
        "totals": total.tolist(),
        "evidence": evidence.tolist(),
        "maps": {
            name: float(K.convert_to_numpy(a.total).sum()) for name, a in maps.items()
        },
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
