# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.unets`: time and memory of training steps of U-Nets, on pictures and volumes."""

import sys
from typing import Any

from benchmarks import program
from benchmarks.turns import results
from benchmarks.turns.cases import DTYPES, ModelCase
from benchmarks.turns.comparison import Budget, Comparison
from benchmarks.turns.report import number
from lambdanet import command_line, text_table
from lambdanet.errors import check_counts, check_known

# The first of a size is the reference; lucidrains' layer is that of lambda_unet_2d.
NETWORKS = {
    "128x128": ("unet_2d", "lambda_unet_2d", "lucidrains"),
    "32x64x64": ("unet_3d", "lambda_unet_3d", "lambda_unet_2_5d"),
}
COLUMNS = {
    "ms": "ms_median",
    "quartile 1": "ms_quartile_1",
    "quartile 3": "ms_quartile_3",
    "x": "times_as_fast_as_first",
    "MiB": "peak_mib",
    "share": "peak_as_share_of_first",
}


def benchmark_unets(
    batch_size: int = 1,
    repeats: int = 7,
    max_seconds: float = 60.0,
    dtype: str = "float32",
    threads: int | None = None,
) -> list[dict[str, Any]]:
    """Measures a training step of each row of `lambdanet.models.unet`, relative to convolutions.

    Each network runs in its own process, and those of a size take turns. Prints a table.

    Args:
      batch_size: the number of pictures or volumes per step.
      repeats: the number of turns per network.
      max_seconds: the time limit of a network's turns.
      dtype: "float32", "bfloat16" or "float16"; the latter two mean mixed precision.
      threads: the number of threads per network; default: the number of cores.

    Returns:
      The rows of the table by the names of their columns.

    Raises:
      InputError: an argument is not as described.

    Example:
      >>> rows = benchmark_unets(repeats=3)
    """
    check_counts(batch_size=batch_size)
    check_known("dtype", dtype, DTYPES)
    threads = results.num_cores() if threads is None else threads
    limits = Budget(repeats, max_seconds, threads)
    results.announce(dtype, threads)
    rows: list[dict[str, Any]] = []
    for size, networks in NETWORKS.items():
        names = [f"unet/{network}" for network in networks]
        case = ModelCase(batch_size, True, dtype)
        lines: list[list[str]] = []
        with Comparison(dict.fromkeys(names, sys.executable), limits) as comparison:
            for found in comparison.run(case, names, names[0]):
                name = found.contender.removeprefix("unet/")
                row: dict[str, Any] = {
                    "size": size,
                    "network": name,
                    **found.columns("first"),
                }
                rows.append(row)
                numbers = [number(row[column]) for column in COLUMNS.values()]
                lines.append([name, *numbers, row["note"]])
        print(
            f"training step, {size}, batch {batch_size}; x and share as {networks[0]}"
        )
        print(text_table.render(["", *COLUMNS, "note"], lines), flush=True)
    return rows


COMMAND = program("benchmarks.unets", benchmark_unets)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
