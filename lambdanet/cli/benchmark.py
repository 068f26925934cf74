# SPDX-License-Identifier: Apache-2.0
"""The command `benchmark`."""

import dataclasses
from collections.abc import Callable
from typing import Any

from absl import flags

from lambdanet.cli.flag_types import FloatFlag, IntegerFlag, ListFlag, switch
from lambdanet.command_line import Command, Flag
from lambdanet.errors import InputError, unknown


@dataclasses.dataclass(frozen=True)
class _Topic:
    """A subject of the benchmark."""

    summary: str
    run: Callable[..., None]  # called with the flags on the command line as keyword arguments
    flags: tuple[Flag, ...]


def _layers(**options: Any) -> None:
    from lambdanet.training.benchmark import layers

    layers.benchmark_layers(**options)


def _models(**options: Any) -> None:
    from lambdanet.training.benchmark import models

    models.benchmark_models(**options)


def _benchmark(values: flags.FlagValues, arguments: list[str]) -> None:
    topic, *models = arguments
    if topic not in _TOPICS:
        raise unknown("benchmark", topic, _TOPICS)
    flag_values = {flag.name: values[flag.name].value for flag in _FLAGS}
    options = {name: value for name, value in flag_values.items() if value is not None}
    accepted = {flag.name for flag in _TOPICS[topic].flags}
    for name in options:
        if name not in accepted:
            raise unknown(f"flag of `benchmark {topic}`", f"--{name}", [f"--{flag}" for flag in accepted])
    if topic == "models":
        options["models"] = models
    elif models:
        raise InputError(f"unexpected argument {models[0]!r} of `benchmark {topic}`")
    _TOPICS[topic].run(**options)


def _benchmark_notes() -> str:
    lines = ["topics and their flags:"]
    for name, topic in _TOPICS.items():
        lines += [f"  {name}: {topic.summary}", f"    {', '.join(f'--{flag.name}' for flag in topic.flags)}"]
    return "\n".join(lines)


_PASSES = ListFlag(
    "passes", "PASS,...", "layers: forward, both (forward and backward); models: train, infer (default: all)"
)
_REPEATS = IntegerFlag("repeats", "N", "turns per contender (default: 7 to 11)")
_MAX_SECONDS = FloatFlag(
    "max_seconds",
    "SECONDS",
    "time limit per contender and case; slow ones get fewer turns (default: 10; models: 60)",
)
_DTYPE = Flag("dtype", "DTYPE", "float32 (the default), bfloat16 or float16")
_THREADS = IntegerFlag("threads", "N", "threads per contender (default: one per core)")
_OUT = Flag("out", "DIR", "folder for a CSV file and plots (default: none)")
_BATCH = IntegerFlag("batch", "N", "batch size (default: 32)")
_PEERS = (
    switch(
        "peers",
        "also measure other libraries, if installed: layers of lucidrains, timm and kecam; models of timm",
    ),
    Flag("peers_python", "PATH", "the Python interpreter that has the peers (default: this one)"),
)
_LAYER_FLAGS = (
    ListFlag(
        "maps", "HxWxDxB,...", "height, width, channels and batch of each map (default: the papers' maps)"
    ),
    ListFlag("scopes", "SCOPE,...", "scopes of the position lambdas (default: 23,global)"),
    _PASSES,
    ListFlag("contenders", "PATTERN,...", "contenders to measure, such as 'position/*' (default: all)"),
    _REPEATS,
    _MAX_SECONDS,
    _DTYPE,
    _THREADS,
    *_PEERS,
    _OUT,
)
_MODEL_FLAGS = (_BATCH, _PASSES, _REPEATS, _MAX_SECONDS, _DTYPE, _THREADS, *_PEERS, _OUT)
_TOPICS = {
    "layers": _Topic(
        "implementations of the position lambda, lambda layers, and attention layers", _layers, _LAYER_FLAGS
    ),
    "models": _Topic(
        "models, MODEL... (also NAME@SIZE or NAME:KEY=VALUE,...), relative to the first",
        _models,
        _MODEL_FLAGS,
    ),
}
_FLAGS = tuple({flag.name: flag for topic in _TOPICS.values() for flag in topic.flags}.values())

COMMANDS = (
    Command(
        "benchmark",
        "measures time and memory, and compares them within one run",
        _benchmark,
        flags=_FLAGS,
        arguments="TOPIC [MODEL...]",
        num_arguments=(1, float("inf")),
        examples=(
            "lambdanet benchmark layers --out=/tmp/benchmark",
            "lambdanet benchmark layers --maps=14x14x256x8,28x28x128x8 --scopes=23 --contenders='position/*'",
            "lambdanet benchmark layers --peers --contenders='layer/*,peer/*' --passes=both",
            "lambdanet benchmark models resnet_50 resnet_50_llll:key_dim=8 --batch=8 --out=/tmp/benchmark",
            "lambdanet benchmark models lambda_resnet26t --peers --batch=1 --out=/tmp/benchmark",
        ),
        notes=_benchmark_notes,
    ),
)
