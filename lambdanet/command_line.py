# SPDX-License-Identifier: Apache-2.0
"""Declarative commands: flags, argument parsing, generated help, and exit statuses."""

import contextlib
import dataclasses
import io
import os
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from logging import LogRecord

from absl import flags, logging

from lambdanet.errors import InputError, Preempted, Unfinished, unknown

HELP = ("--help", "-h")


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag of a command.

    Attributes:
      name: as it is written, without dashes.
      value: what stands for its value in the help, such as "DIR"; empty for a switch.
      help: one line.
      required: whether it must be given.
      define: the absl function that defines it.
      default: its value when it is not given.
    """

    name: str
    value: str
    help: str
    required: bool = False
    define: Callable[..., object] = flags.DEFINE_string
    default: object = None

    def __str__(self) -> str:
        return f"--{self.name}={self.value}" if self.value else f"--{self.name}"


@dataclasses.dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
      name: as it is written.
      summary: one line.
      run: what it does, given the values of its flags and its other arguments.
      flags: its flags.
      arguments: what it takes besides flags, as the usage line shows it; empty for none.
      num_arguments: the least and the largest number of them.
      examples: command lines.
      notes: more to tell in the help, once it is asked for.
      module: the module that is run with `python -m`, for one that is not a command of `lambdanet`.
    """

    name: str
    summary: str
    run: Callable[[flags.FlagValues, list[str]], None]
    flags: tuple[Flag, ...] = ()
    arguments: str = ""
    num_arguments: tuple[int, float] = (0, 0)
    examples: tuple[str, ...] = ()
    notes: Callable[[], str] = str
    module: str = ""

    @property
    def call(self) -> str:
        """How it is called: `lambdanet NAME`, or `python -m MODULE`."""
        return f"python -m {self.module}" if self.module else f"lambdanet {self.name}"


def main(command: Command, argv: Sequence[str] | None = None) -> int:
    """Runs a program that is one command, and returns its exit status; see `exit_status`.

    Args:
      command: one with a `module`.
      argv: the words after that module; None: those of this process.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    return exit_status(command.module, lambda: run(command, words), extra=command.module.split(".")[1])


def run(command: Command, words: list[str]) -> None:
    """Runs a command, or shows its help where that is asked for."""
    if any(word in HELP for word in words):
        print(help_of(command))
    else:
        command.run(*parse(command, words))


def parse(command: Command, words: list[str]) -> tuple[flags.FlagValues, list[str]]:
    """Returns the values of a command's flags, and its other arguments."""
    values = flags.FlagValues()
    values.set_gnu_getopt()  # flags may follow arguments
    for flag in command.flags:
        flag.define(flag.name, flag.default, flag.help, flag_values=values)
    see = f"`{command.call} --help`"
    try:
        arguments = values([command.name, *words])[1:]
    except flags.UnrecognizedFlagError as error:
        name = f"--{error.flagname}"
        raise unknown(f"flag of `{command.name}`", name, _flag_names(command), see) from None
    except flags.IllegalFlagValueError as error:
        raise InputError(_illegal_value(command, error)) from None
    except (flags.Error, ValueError) as error:
        raise InputError(f"{error}; see {see}") from None
    missing = [flag.name for flag in command.flags if flag.required and not values[flag.name].value]
    if missing:
        needed = " and ".join(f"--{name}" for name in missing)
        raise InputError(f"`{command.name}` needs {needed}; see {see}")
    least, most = command.num_arguments
    if len(arguments) < least:
        raise InputError(f"`{command.name}` needs {command.arguments}; see {see}")
    if len(arguments) > most:
        stray = arguments[int(most)]
        raise InputError(f"`{command.name}` received {stray!r}, one argument too many; see {see}")
    return values, arguments


def _illegal_value(command: Command, error: flags.IllegalFlagValueError) -> str:
    """Returns absl's message "flag --NAME=VALUE: CAUSE" without the cause, which is in Python's words."""
    given = str(error).removesuffix(f": {error.__context__}").removeprefix("flag ")
    name, _, value = given.partition("=")
    defined = {str(flag).partition("=")[0]: flag.define for flag in command.flags}
    return f"{name} must be {_ACCEPTED[defined[name]]}, got {value!r}"


def _flag_names(command: Command) -> list[str]:
    return [f"--{flag.name}" for flag in command.flags] + ["--help"]


def usage(command: Command) -> str:
    words = [str(flag) if flag.required else f"[{flag}]" for flag in command.flags]
    return " ".join([command.call, *words, *filter(None, [command.arguments])])


def help_of(command: Command) -> str:
    shown = textwrap.fill(f"usage: {usage(command)}", 100, subsequent_indent="  ", break_on_hyphens=False)
    parts = [shown, f"`{command.name}` {command.summary}."]
    if command.flags:
        parts.append(f"flags:\n{aligned([(str(flag), flag.help) for flag in command.flags])}")
    parts.append(command.notes())
    parts.append("\n".join(["examples:", *(f"  {example}" for example in command.examples)]))
    return "\n\n".join(filter(None, parts))


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows of cells as indented lines; each column is as wide as its widest cell.

    Example:
      >>> print(aligned([("list", "shows the models"), ("pseudo-label", "labels pictures")]))
        list          shows the models
        pseudo-label  labels pictures
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join(f"  {line}" for line in lines)


_ACCEPTED = {
    flags.DEFINE_boolean: "true or false",
    flags.DEFINE_float: "a number",
    flags.DEFINE_integer: "an integer",
    flags.DEFINE_list: "values separated by commas",
}


def exit_status(name: str, main: Callable[[], None], extra: str = "train") -> int:
    """Calls `main` and returns the exit status; what went wrong goes to stderr in one line.

    Args:
      name: the program's, which begins that line.
      main: does the work. Exceptions that are nobody's mistake but ours are raised on.
      extra: of the package, which installs what the program imports.
    """
    # 3 hides what TensorFlow logs about processors and missing GPUs; its exceptions say what went wrong.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    _prepare_streams()
    try:
        with _without_noise():
            main()
        sys.stdout.flush()
        return 0
    except InputError as error:
        return _fail(name, str(error), 2)
    except Preempted as stopped:
        return _fail(name, str(stopped), 75)
    except Unfinished as stopped:
        return _fail(name, str(stopped), 1)
    except KeyboardInterrupt:
        return _fail(name, "interrupted", 130)
    except BrokenPipeError:  # as in `lambdanet list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "lambdanet":
            raise
        return _fail(name, f"{error}; pip install 'lambdanet[{extra}]' brings what is missing", 1)
    except OSError as error:
        return _fail(name, str(error), 1)


def _prepare_streams() -> None:
    """Opens closed streams on the null device, and escapes characters that the others cannot encode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # as in `lambdanet list >&-`
            setattr(sys, name, open(os.devnull, "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Hides two warnings of libraries that nothing is to be done about.

    Pillow's, that a large picture may be an attack: it refuses those of twice that size. TensorFlow's, that a
    loaded model lacks gradients: programs take none.
    """

    def is_wanted(record: LogRecord) -> bool:
        return "with ops with unsaved custom gradients" not in record.getMessage()

    logger = logging.get_absl_logger()
    logger.addFilter(is_wanted)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Image size .* could be decompression bomb")
            yield
    finally:
        logger.removeFilter(is_wanted)


def _fail(name: str, message: str, status: int) -> int:
    line = " ".join(part.strip() for part in message.splitlines())
    print(f"{name}: {'' if status in (75, 130) else 'error: '}{line}", file=sys.stderr)
    return status
