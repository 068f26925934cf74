# SPDX-License-Identifier: Apache-2.0
"""The command that measures: benchmark."""

from absl import flags

from lambdanet.command import Command, Flag
from lambdanet.errors import unknown


def _benchmark(values: flags.FlagValues, arguments: list[str]) -> None:
    if arguments[0] not in _TOPICS:
        raise unknown("benchmark", arguments[0], _TOPICS)

    from lambdanet.training.benchmark import layers

    given = {flag.name: values[flag.name].value for flag in _BENCHMARK_FLAGS}
    layers.benchmark_layers(**{name: value for name, value in given.items() if value is not None})


def _benchmark_notes() -> str:
    return "\n".join(["topics:", *(f"  {name}  {summary}" for name, summary in _TOPICS.items())])


_TOPICS = {"layers": "implementations of the position lambda; lambda layers; attention layers beside them"}
_BENCHMARK_FLAGS = (
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
    Flag(
        "passes",
        "PASS,...",
        "forward, both (with the backward pass), or forward,both (the default)",
        define=flags.DEFINE_list,
    ),
    Flag(
        "contenders",
        "PATTERN,...",
        "what to measure, such as 'position/*' (default: everything)",
        define=flags.DEFINE_list,
    ),
    Flag("repeats", "N", "how often each takes its turn (default: 11)", define=flags.DEFINE_integer),
    Flag(
        "max_seconds",
        "SECONDS",
        "for all turns of one in a case; slower ones have fewer turns (default: 10)",
        define=flags.DEFINE_float,
    ),
    Flag("dtype", "DTYPE", "float32 (the default), bfloat16 or float16"),
    Flag("threads", "N", "threads of each (default: one for each core)", define=flags.DEFINE_integer),
    Flag(
        "peers",
        "",
        "measure the layers of lucidrains, timm and kecam too, where they are installed",
        define=flags.DEFINE_boolean,
    ),
    Flag("peers_python", "PATH", "the Python in which they are installed (default: this one)"),
    Flag("out", "DIR", "folder for layers.csv, layers_time.png and layers_memory.png (default: none)"),
)

COMMANDS = (
    Command(
        "benchmark",
        "measures time and memory, as ratios within one run",
        _benchmark,
        flags=_BENCHMARK_FLAGS,
        arguments="TOPIC",
        num_arguments=(1, 1),
        examples=(
            "lambdanet benchmark layers --out=/tmp/benchmark",
            "lambdanet benchmark layers --maps=14x14x256x8,28x28x128x8 --scopes=23 --contenders='position/*'",
            "lambdanet benchmark layers --peers --contenders='layer/*,peer/*' --passes=both",
        ),
        notes=_benchmark_notes,
    ),
)
