# SPDX-License-Identifier: Apache-2.0
"""The commands `benchmark layers` and `benchmark models`."""

import importlib
from collections.abc import Callable

from absl import flags

from lambdanet.command_line import (
    Arguments,
    Command,
    Flag,
    FloatFlag,
    IntegerFlag,
    ListFlag,
    given_flags,
    switch,
)


def _runner(topic: str) -> Callable[[flags.FlagValues, list[str]], None]:
    """Returns a function that calls `benchmark_TOPIC` with the models and the flags of a command line."""

    def run(values: flags.FlagValues, models: list[str]) -> None:
        package = importlib.import_module(f"lambdanet.training.benchmark.{topic}")
        options = given_flags(values, _FLAGS[topic]) | (
            {"models": models} if models else {}
        )
        getattr(package, f"benchmark_{topic}")(**options)

    return run


def _limits(repeats: int, max_seconds: int) -> tuple[Flag, ...]:
    return (
        IntegerFlag("repeats", "N", f"turns per contender (default: {repeats})"),
        FloatFlag(
            "max_seconds",
            "SECONDS",
            f"time limit per contender and case; slow ones get fewer turns (default: {max_seconds})",
        ),
        Flag("dtype", "DTYPE", "float32 (the default), bfloat16 or float16"),
        IntegerFlag("threads", "N", "threads per contender (default: one per core)"),
    )


def _peers(libraries: str) -> tuple[Flag, ...]:
    return (
        switch("peers", f"also measure {libraries}, if installed"),
        Flag(
            "peers_python",
            "PATH",
            "the Python interpreter that has the peers (default: this one)",
        ),
    )


_OUT = Flag("out", "DIR", "folder for a CSV file and plots (default: none)")
_FLAGS: dict[str, tuple[Flag, ...]] = {
    "layers": (
        ListFlag(
            "maps",
            "HxWxDxB,...",
            "height, width, channels and batch of each map (default: the papers' maps)",
        ),
        ListFlag(
            "scopes", "SCOPE,...", "scopes of the position lambdas (default: 23,global)"
        ),
        ListFlag(
            "passes",
            "PASS,...",
            "forward, both: forward and backward (default: forward,both)",
        ),
        ListFlag(
            "contenders",
            "PATTERN,...",
            "contenders to measure, such as 'position/*' (default: all)",
        ),
        *_limits(repeats=11, max_seconds=10),
        *_peers("the layers of lucidrains, timm and kecam"),
        _OUT,
    ),
    "models": (
        IntegerFlag("batch_size", "N", "images per step (default: 32)"),
        ListFlag("passes", "PASS,...", "train, infer (default: train,infer)"),
        *_limits(repeats=7, max_seconds=60),
        *_peers("timm's models of the same names"),
        _OUT,
    ),
}

COMMANDS = (
    Command(
        "benchmark layers",
        "measures forms of the position lambda, lambda layers and attention layers",
        _runner("layers"),
        flags=_FLAGS["layers"],
        examples=(
            "lambdanet benchmark layers --out=/tmp/benchmark",
            "lambdanet benchmark layers --maps=14x14x256x8,28x28x128x8 --scopes=23 --contenders='position/*'",
            "lambdanet benchmark layers --peers --contenders='layer/*,peer/*' --passes=both",
        ),
    ),
    Command(
        "benchmark models",
        "measures the training and inference of models, relative to the first",
        _runner("models"),
        flags=_FLAGS["models"],
        arguments=Arguments(
            "MODEL...",
            "models, also as NAME@SIZE or NAME:KEY=VALUE,...",
            1,
            float("inf"),
        ),
        examples=(
            "lambdanet benchmark models resnet_50 resnet_50_llll:key_dim=8 --batch_size=8 --out=/tmp/models",
            "lambdanet benchmark models lambda_resnet26t --peers --batch_size=1 --out=/tmp/benchmark",
        ),
    ),
)
