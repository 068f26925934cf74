# SPDX-License-Identifier: Apache-2.0
"""Compiles a detector's training step for two TPU cores, and prints its all-reduces as JSON.

Synchronized batch normalization and `tf.distribute` call `ReplicaContext.all_reduce`. `TPUStrategy` needs a
TPU; here that method is replaced by XLA's all-reduce, and the program is compiled for two cores.
"""

import json
import re

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.distribute import distribute_lib

CORES = 2
EXPERIMENT = "maskrcnn_lambda_resnet_shapes"
CHANGES = ["task.model.norm_activation.use_sync_bn=true"]
calls = []


def all_reduce(self, reduce_op, value, options=None):
    calls.append(reduce_op)
    return tf.nest.map_structure(sum_of_cores, value)


def sum_of_cores(x):
    return gen_xla_ops.xla_all_reduce(x, [list(range(CORES))], "Add", "CrossReplica")


@tf.RegisterGradient("XlaAllReduce")
def _gradient(op, gradient):
    return sum_of_cores(gradient), None


def main():
    distribute_lib.ReplicaContextBase.all_reduce = all_reduce
    distribute_lib.ReplicaContext.all_reduce = all_reduce

    from lambdanet.backend import device
    from lambdanet.detection.run import train_step

    step = train_step.experiment_step(EXPERIMENT, CHANGES)
    function = tf.function(
        step.function, input_signature=step.inputs, jit_compile=True, autograph=False
    )
    with device.assume("TPU"):
        lower = function.experimental_get_compiler_ir(*step.inputs)
    compiled = compile_for_cores(lower("hlo_serialized"))
    print(
        json.dumps(
            {
                "calls": len(calls),
                "lowered": count(lower("hlo")),
                "compiled": count(compiled),
            }
        )
    )


def count(text):
    return len(re.findall(r" all-reduce(?:-start)?\(", text))


def compile_for_cores(hlo):
    from lambdanet.tpu import compiler

    with compiler._internals():
        from jax._src.interpreters import mlir
        from jax._src.lib import xla_client
        from jax._src.lib.mlir import ir
        from jax.experimental import topologies
        from jaxlib import _jax

        devices = topologies.get_topology_desc(
            platform="tpu", topology_name="v3:2x2"
        ).devices
        options = xla_client.CompileOptions()
        options.num_replicas = CORES
        options.device_assignment = xla_client.DeviceAssignment.create(
            np.arange(CORES)[:, None]
        )
        with mlir.make_ir_context():
            module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(hlo))
            compiler._drop_copies(module.operation)
            used = _jax.DeviceList(tuple(devices[:CORES]))
            executable = devices[0].client.compile(module, used, options)
    return executable.hlo_modules()[0].to_string()


if __name__ == "__main__":
    main()
