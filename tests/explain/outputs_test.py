# SPDX-License-Identifier: Apache-2.0
"""A V is the output of every layer with a map, on the backend of this process."""

import numpy as np
import pytest
from programs import run_on_engine

from lambdanet import backend as K
from lambdanet.explain import implied_attention
from lambdanet.explain.implied_attention import has_map

TOLERANCE = 1e-5
CASES = [name for name, (make, *_) in run_on_engine.CASES.items() if has_map(make())]
assert {"GlobalAttention", "LambdaLayer"} <= {*CASES}


@pytest.mark.parametrize("name", CASES)
def test_maps_times_values_equal_the_outputs(name):
    make, shape, call = run_on_engine.CASES[name]
    layer = make()
    layer.build(shape)
    for variable in layer.weights:
        own = run_on_engine.short_name(layer, variable)
        variable.assign(run_on_engine.random_value(own, variable.shape, 0.3))
    x = run_on_engine.images(*shape)

    def differences(x):
        """Of A V from the outputs, of all queries and of two."""
        outputs = layer(x, **call)
        outputs = K.reshape(outputs, [len(x), -1, outputs.shape[-1]])
        some = [outputs.shape[1] - 1, 1]
        found = implied_attention(layer, x, **call).outputs()
        found_some = implied_attention(layer, x, some, **call).outputs()
        return found - outputs, found_some - K.take(outputs, some, axis=1)

    if K.ENGINE == "jax":  # which else compiles each operation
        import jax

        differences = jax.jit(differences)
    for array in differences(K.convert_to_tensor(x)):
        assert np.abs(K.convert_to_numpy(array)).max() < TOLERANCE
