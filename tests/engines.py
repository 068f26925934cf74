# SPDX-License-Identifier: Apache-2.0
"""The environments of processes on each backend of Keras 3; imports nothing that they would be late for."""

import os

# For the processor: the optimizations that XLA omits take longer than they save in a few steps.
_QUICK = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
_TWO_DEVICES = "--xla_force_host_platform_device_count=2"


def xla_flags(*flags: str) -> str:
    """Returns flags of the tests, and after them those of the user, as the last value of a flag holds.

    Args:
      *flags: flags besides those that all tests have.
    """
    own = [*_QUICK, *flags]
    # In a process that a test started, the variable has the flags of the tests already.
    inherited = os.environ.get("XLA_FLAGS", "").split()
    return " ".join(
        own + [flag for flag in inherited if flag not in (*own, _TWO_DEVICES)]
    )


# The environment of a process on each backend.
ENGINES = {
    "jax": {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": xla_flags(_TWO_DEVICES),
    },
    "torch": {"KERAS_BACKEND": "torch"},
    "tensorflow": {"KERAS_BACKEND": "tensorflow", "XLA_FLAGS": xla_flags()},
}
