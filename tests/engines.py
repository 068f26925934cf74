# SPDX-License-Identifier: Apache-2.0
"""The environments of processes on each backend of Keras 3; imports nothing that they would be late for."""

# For the processor: the optimizations that XLA omits take longer than they save in a few steps.
XLA_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)
# The environment of a process with Keras 3 on each of its backends.
ENGINES = {
    "jax": {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{XLA_FLAGS} --xla_force_host_platform_device_count=2",
    },
    "torch": {"KERAS_BACKEND": "torch"},
    "tensorflow": {"LAMBDANET_KERAS": "keras", "KERAS_BACKEND": "tensorflow", "XLA_FLAGS": XLA_FLAGS},
}
