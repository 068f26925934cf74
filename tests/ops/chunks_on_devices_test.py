# SPDX-License-Identifier: Apache-2.0
"""Products in chunks, of a batch that two devices of JAX divide."""

import re

import keras
import numpy as np
import pytest

from lambdanet.ops.position_term import devices_of
from lambdanet.ops.products import in_chunks, query_first

CHUNK = 4  # of the six examples of a device


@pytest.mark.jax
@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="tensors of TensorFlow have no devices"
)
def test_devices_of_a_batch_exchange_nothing():
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    random = np.random.default_rng(0)
    operands = [
        random.normal(size=shape).astype("float32")
        for shape in ([12, 4, 2, 3], [12, 6, 2], [4, 3, 6])
    ]
    distribution = keras.distribution.DataParallel(
        devices=keras.distribution.list_devices()
    )
    mesh = distribution.device_mesh.backend_mesh
    assert mesh.size == 2
    divided = NamedSharding(mesh, PartitionSpec("batch"))
    whole = NamedSharding(mesh, PartitionSpec())
    arrays = [
        jax.device_put(x, sharding)
        for x, sharding in zip(operands, (divided, divided, whole), strict=True)
    ]
    with distribution.scope():
        function = jax.jit(lambda *x: in_chunks(query_first, *x, CHUNK))
        compiled = function.lower(*arrays).compile()
        assert [devices_of(12), devices_of(7)] == [2, 1]
    outputs = compiled(*arrays)
    text = compiled.as_text()
    np.testing.assert_allclose(outputs, query_first(*operands), atol=1e-6)
    assert len(re.findall(r" while\(", text)) == 1
    assert not re.search("all-gather|all-to-all|collective-permute|all-reduce", text)
    assert outputs.sharding.is_equivalent_to(divided, outputs.ndim)
