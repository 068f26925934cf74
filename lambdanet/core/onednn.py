# SPDX-License-Identifier: Apache-2.0
"""Makes TensorFlow compute by oneDNN on x86 processors where it leaves oneDNN off by default."""

import os
import platform
import re
import sys
from pathlib import Path

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"  # TensorFlow reads it when it is imported
# With one of these instructions, TensorFlow chooses oneDNN, unless the variable says otherwise.
_INSTRUCTIONS = {"amx_tile", "avx512_bf16", "avx512_vnni", "avx_vnni"}


def use_onednn() -> bool:
    """Makes TensorFlow compute by oneDNN, unless TF_ENABLE_ONEDNN_OPTS is set.

    Call it before TensorFlow is imported; afterwards it changes nothing. TensorFlow chooses oneDNN by itself
    where the processor has VNNI, bfloat16 or AMX instructions. On other x86 processors, training takes
    three quarters to five sixths of the time with it, and networks on a single picture 1.4 to 2.4 times as
    long. So the commands that train or take batches of pictures call it. Sums are in another order, and an
    empty batch gets a wrong shape.

    Returns:
      Whether TensorFlow computes by oneDNN in this process.

    Example:
      >>> import lambdanet
      >>> is_used = lambdanet.use_onednn()
    """
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    if is_x86 and "tensorflow" not in sys.modules:
        os.environ.setdefault(VARIABLE, "1")
    return is_used()


def is_used() -> bool:
    """Whether TensorFlow computes by oneDNN, which is also the answer where the instructions are unknown."""
    setting = os.environ.get(VARIABLE)
    return setting != "0" if setting else is_default()


def is_default() -> bool:
    """Whether TensorFlow would compute by oneDNN without the variable."""
    instructions = processor_flags()
    return not instructions or not _INSTRUCTIONS.isdisjoint(instructions)


def processor_flags() -> list[str]:
    """Returns the features of an x86 processor, as Linux names them; none on other systems."""
    try:
        processors = Path("/proc/cpuinfo").read_text()
    except OSError:
        return []
    flags = re.search(r"^flags\s*:(.*)$", processors, re.MULTILINE)
    return flags[1].split() if flags else []
