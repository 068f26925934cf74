# SPDX-License-Identifier: Apache-2.0
"""Prints, as JSON, what products in chunks do to a batch that two devices of JAX divide."""

import json
import re

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from lambdanet.ops.position_term import devices_of
from lambdanet.ops.products import in_chunks, query_first

EXAMPLES = 12
CHUNK = 4  # of the six examples of a device


def main() -> None:
    random = np.random.default_rng(0)
    operands = [
        random.normal(size=shape).astype("float32")
        for shape in ([EXAMPLES, 4, 2, 3], [EXAMPLES, 6, 2], [4, 3, 6])
    ]
    distribution = keras.distribution.DataParallel(
        devices=keras.distribution.list_devices()
    )
    mesh = distribution.device_mesh.backend_mesh
    divided = NamedSharding(mesh, PartitionSpec("batch"))
    whole = NamedSharding(mesh, PartitionSpec())
    arrays = [
        jax.device_put(x, sharding)
        for x, sharding in zip(operands, (divided, divided, whole), strict=True)
    ]
    with distribution.scope():
        function = jax.jit(lambda *x: in_chunks(query_first, *x, CHUNK))
        compiled = function.lower(*arrays).compile()
        divisions = [devices_of(12), devices_of(7)]
    outputs = compiled(*arrays)
    text = compiled.as_text()
    error = np.abs(outputs - query_first(*operands)).max()
    found = {
        "devices": mesh.size,
        "error": float(error),
        "loops": len(re.findall(r" while\(", text)),
        "collectives": sorted(
            set(
                re.findall(r"all-gather|all-to-all|collective-permute|all-reduce", text)
            )
        ),
        "devices of 12 and 7 examples": divisions,
        "is divided": outputs.sharding.is_equivalent_to(divided, outputs.ndim),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
