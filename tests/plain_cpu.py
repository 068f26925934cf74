# SPDX-License-Identifier: Apache-2.0
"""Runs a command as on a processor with AVX2 and nothing newer: `python tests/plain_cpu.py make test`.

Needs Linux on x86-64, a C compiler, and a kernel that can make the instruction `cpuid` fault. Elsewhere it
sets the variables of the libraries that have one, which hide less, and prints so.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import environment_header
from source_tree import ROOT

SOURCE = ROOT / "tests/programs/hide_instructions.c"
# NumPy's names differ between versions, and the Eigen of TensorFlow has no variable.
# TensorFlow itself looks for bfloat16 instructions, and crashes where ONEDNN_MAX_CPU_ISA hides them.
VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
}


def compile_library(folder: Path) -> Path | None:
    """Compiles the library that hides instructions; returns None where it cannot work."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or "cpuid_fault" not in environment_header.processor_flags():
        return None
    library = folder / "hide_instructions.so"
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True
    )
    return library


def main(command: list[str]) -> int:
    """Runs the command, and returns its exit status."""
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        library = compile_library(Path(folder))
        if library is None:
            environment |= VARIABLES
            print(
                "cpuid cannot be hidden on this machine; variables of libraries hide less:",
                VARIABLES,
            )
        else:
            others = os.environ.get("LD_PRELOAD", "")
            environment["LD_PRELOAD"] = f"{library} {others}".strip()
            print("instructions newer than AVX2 are hidden from:", *command)
        sys.stdout.flush()
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
