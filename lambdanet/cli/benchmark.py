# SPDX-License-Identifier: Apache-2.0
"""The command that measures: benchmark."""

import dataclasses
from collections.abc import Callable

from absl import flags

from lambdanet.command_line import Command, Flag
from lambdanet.errors import InputError, unknown


@dataclasses.dataclass(frozen=True)
class _Topic:
    """Something to measure.

    Attributes:
      summary: one line.
      run: measures it, given the words after the topic and the flags that were given.
      flags: those that it takes.
    """

    summary: str
    run: Callable[..., object]
    flags: tuple[Flag, ...]


def _layers(words: list[str], **given: object) -> None:
    from lambdanet.training.benchmark import layers

    _no_more(words)
    layers.benchmark_layers(**given)  # type: ignore[arg-type]


def _models(words: list[str], **given: object) -> None:
    from lambdanet.training.benchmark import models

    models.benchmark_models(words, **given)  # type: ignore[arg-type]


def _loop(words: list[str], **given: object) -> None:
    from lambdanet.training.benchmark import loop

    _no_more(words)
    loop.benchmark_loop(settings=given.pop("set", ()), **given)  # type: ignore[arg-type]


def _input(words: list[str], **given: object) -> None:
    from lambdanet.training.benchmark import inputs

    _no_more(words)
    inputs.benchmark_input(**given)  # type: ignore[arg-type]


def _no_more(words: list[str]) -> None:
    if words:
        raise InputError(f"{words[0]!r} is one word too many; expected flags alone after the topic")


def _benchmark(values: flags.FlagValues, arguments: list[str]) -> None:
    topic = arguments[0]
    if topic not in _TOPICS:
        raise unknown("benchmark", topic, _TOPICS)
    values_given = {flag.name: values[flag.name].value for flag in _FLAGS}
    given = {name: value for name, value in values_given.items() if value is not None}
    accepted = {flag.name for flag in _TOPICS[topic].flags}
    for name in given:
        if name not in accepted:
            raise unknown(f"flag of `benchmark {topic}`", f"--{name}", [f"--{flag}" for flag in accepted])
    _TOPICS[topic].run(arguments[1:], **given)


def _benchmark_notes() -> str:
    lines = ["topics, and the flags of each:"]
    for name, topic in _TOPICS.items():
        lines += [f"  {name}: {topic.summary}", f"    {', '.join(f'--{flag.name}' for flag in topic.flags)}"]
    return "\n".join(lines)


_PASSES = Flag(
    "passes",
    "PASS,...",
    "layers: forward, both (with the backward pass); models: train, infer (default: two of them)",
    define=flags.DEFINE_list,
)
_REPEATS = Flag("repeats", "N", "turns of each (default: 7 to 11)", define=flags.DEFINE_integer)
_MAX_SECONDS = Flag(
    "max_seconds",
    "SECONDS",
    "time for all turns of one in a case; slower ones have fewer turns (default: 10; models: 60)",
    define=flags.DEFINE_float,
)
_DTYPE = Flag("dtype", "DTYPE", "float32 (the default), bfloat16 or float16")
_THREADS = Flag("threads", "N", "threads of each (default: one per core)", define=flags.DEFINE_integer)
_OUT = Flag("out", "DIR", "folder for a csv file and pictures (default: none)")
_BATCH = Flag("batch", "N", "batch size (default: 32; input: 128)", define=flags.DEFINE_integer)
_LAYER_FLAGS = (
    Flag(
        "maps",
        "HxWxDxB,...",
        "height, width, channels and batch of each map (default: those of the papers)",
        define=flags.DEFINE_list,
    ),
    Flag(
        "scopes",
        "SCOPE,...",
        "scopes of the position lambdas (default: 23,global)",
        define=flags.DEFINE_list,
    ),
    _PASSES,
    Flag(
        "contenders",
        "PATTERN,...",
        "what to measure, such as 'position/*' (default: everything)",
        define=flags.DEFINE_list,
    ),
    _REPEATS,
    _MAX_SECONDS,
    _DTYPE,
    _THREADS,
    Flag(
        "peers",
        "",
        "measure the layers of lucidrains, timm and kecam too, where they are installed",
        define=flags.DEFINE_boolean,
    ),
    Flag("peers_python", "PATH", "the Python in which they are installed (default: this one)"),
    _OUT,
)
_MODEL_FLAGS = (
    _BATCH,
    *(_PASSES, _REPEATS, _MAX_SECONDS, _DTYPE, _THREADS, _OUT),
)
_LOOP_FLAGS = (
    Flag("recipe", "NAME", "the recipe of the steps (default: digits)"),
    Flag(
        "set",
        "KEY=VALUE",
        "changes a field of it; may be repeated",
        define=flags.DEFINE_multi_string,
    ),
    Flag("steps", "N", "steps per turn (default: 50)", define=flags.DEFINE_integer),
    _REPEATS,
)
_INPUT_FLAGS = (
    Flag("data_dir", "DIR", "JPEG TFRecords with a split train (default: pictures made here)"),
    Flag(
        "image_size", "PIXELS", "side of the images that come out (default: 224)", define=flags.DEFINE_integer
    ),
    Flag("images", "N", "images per turn (default: 2048)", define=flags.DEFINE_integer),
    Flag("pictures", "N", "different pictures that are made (default: 256)", define=flags.DEFINE_integer),
    *(_BATCH, _REPEATS, _OUT),
)
_TOPICS = {
    "layers": _Topic(
        "implementations of the position lambda; lambda layers; attention layers beside them",
        _layers,
        _LAYER_FLAGS,
    ),
    "models": _Topic(
        "whole models, MODEL... (also as NAME@SIZE or NAME:KEY=VALUE,...), beside the first of them",
        _models,
        _MODEL_FLAGS,
    ),
    "input": _Topic(
        "images per second from JPEG TFRecords, beside Model Garden's reader on the same files",
        _input,
        _INPUT_FLAGS,
    ),
    "loop": _Topic("a step of `train`, beside a loop written by hand", _loop, _LOOP_FLAGS),
}
_FLAGS = tuple({flag.name: flag for topic in _TOPICS.values() for flag in topic.flags}.values())

COMMANDS = (
    Command(
        "benchmark",
        "measures time and memory, as ratios within one run",
        _benchmark,
        flags=_FLAGS,
        arguments="TOPIC [MODEL...]",
        num_arguments=(1, float("inf")),
        examples=(
            "lambdanet benchmark layers --out=/tmp/benchmark",
            "lambdanet benchmark layers --maps=14x14x256x8,28x28x128x8 --scopes=23 --contenders='position/*'",
            "lambdanet benchmark layers --peers --contenders='layer/*,peer/*' --passes=both",
            "lambdanet benchmark models resnet_50 resnet_50_llll:key_dim=8 --batch=8 --out=/tmp/benchmark",
            "lambdanet benchmark loop",
        ),
        notes=_benchmark_notes,
    ),
)
