# SPDX-License-Identifier: Apache-2.0
"""Compiles a detector's training step for two TPU cores, and prints its all-reduces as JSON.

Synchronized batch normalization and `tf.distribute` call `ReplicaContext.all_reduce`. `TPUStrategy` needs a
TPU; here that method is replaced by XLA's all-reduce, and the program is compiled for two cores.
"""

import json
import re

import numpy as np
import tensorflow as tf
from quick_graphs import trace_quickly
from small_model import FOUR_BLOCKS
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.distribute import distribute_lib

CORES = 2
EXPERIMENT = "maskrcnn_lambda_resnet_shapes"
CHANGES = [
    "task.model.norm_activation.use_sync_bn=true",
    "task.model.input_size=[64,64,3]",
    "task.model.min_level=5",
    "task.model.max_level=5",
    "task.model.decoder.fpn.num_filters=8",
    "task.model.rpn_head.num_filters=8",
    "task.model.detection_head.num_filters=8",
    "task.model.detection_head.num_convs=1",
    "task.model.detection_head.fc_dims=8",
    "task.model.mask_head.num_filters=8",
    "task.model.mask_head.num_convs=1",
    "task.model.roi_generator.pre_nms_top_k=16",
    "task.model.roi_generator.num_proposals=8",
    "task.model.roi_sampler.num_sampled_rois=8",
    "task.model.mask_sampler.num_sampled_masks=4",
]
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
    from lambdanet.models import zoo

    zoo.MODELS["lambda_resnet_tiny"] = FOUR_BLOCKS
    trace_quickly()
    step = train_step.experiment_step(EXPERIMENT, CHANGES)
    function = tf.function(
        step.function, input_signature=step.inputs, jit_compile=True, autograph=False
    )
    with device.assume("TPU"):
        lower = function.experimental_get_compiler_ir(*step.inputs)
    lowered, compiled = compile_for_cores(lower("hlo_serialized"))
    found = {
        "calls": len(calls),
        "lowered": lowered.count("stablehlo.all_reduce"),
        "compiled": len(re.findall(r" all-reduce(?:-start)?\(", compiled)),
    }
    print(json.dumps(found))


def compile_for_cores(hlo):
    """Returns the program as it is given to the TPU compiler, and as it comes back."""
    from lambdanet.tpu_estimates import compiler

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
            lowered = str(module)
            compiler._drop_copies(module.operation)
            used = _jax.DeviceList(tuple(devices[:CORES]))
            executable = devices[0].client.compile(module, used, options)
    return lowered, executable.hlo_modules()[0].to_string()


if __name__ == "__main__":
    main()
