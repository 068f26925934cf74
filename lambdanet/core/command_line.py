# SPDX-License-Identifier: Apache-2.0
"""Declarative commands: flags, argument parsing, generated help, and exit statuses."""

import atexit
import contextlib
import dataclasses
import gc
import importlib
import io
import os
import sys
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from logging import LogRecord
from pathlib import Path
from typing import Any

from absl import flags, logging

from lambdanet.core import text_table
from lambdanet.core.errors import (
    InputError,
    Preempted,
    Unfinished,
    invalid,
    one_line,
    unknown,
)
from lambdanet.core.files import local_path
from lambdanet.core.freed_memory import keep_for_tensorflow

HELP = ("--help", "-h")
GOOGLE = "0x1ae0"  # as the vendor of a PCI device
# The placeholders of paths that must be on this machine.
LOCAL_PATHS = ("DIR", "FILE", "PATH")
PICTURES = "IMAGE_OR_FOLDER..."
SLOW_IMPORTS = {"apache_beam", "jax", "keras", "tensorflow", "torch"}


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag of a command.

    Attributes:
      name: the name without dashes.
      value: the placeholder of the value in the help, such as "DIR"; empty for a switch.
      help: the description, one line.
      required: whether a command line must have the flag.
      define: the absl function that defines the flag.
      default: the value without the flag; a switch that is on is shown as its opposite, `--noNAME`.
      needs: what a command line with this flag must have too, such as "--format=csv or --format=jsonl".
    """

    name: str
    value: str
    help: str
    required: bool = False
    define: Callable[..., object] = flags.DEFINE_string
    default: object = None
    needs: Sequence[str] = ()

    def __str__(self) -> str:
        name = f"no{self.name}" if self.default is True else self.name
        return f"--{name}={self.value}" if self.value else f"--{name}"


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The positional arguments of a command: their usage, description and numbers."""

    usage: str = ""
    help: str = ""
    fewest: int = 0
    most: float = 0

    def __str__(self) -> str:
        return self.usage


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of `lambdanet`, or a program that is run with `python -m`.

    Attributes:
      name: the name on the command line.
      summary: what the command does, one line.
      run: the program, called with the values of the flags and the positional arguments.
      flags: the flags of the command.
      arguments: the positional arguments.
      examples: command lines.
      notes: returns further help; called only for `--help`.
      module: the module to run with `python -m`; empty for a command of `lambdanet`.
      extra: the extra of the package that installs what the command imports.
      remainder: a flag with many values; options after `--` are such values.
      fields: returns the names that `--set=NAME=VALUE` accepts; called only for an unknown flag.
      one_of: flags, such as "--model", of which a command line must have exactly one; a switch allows no
        other flags.
    """

    name: str
    summary: str
    run: Callable[[flags.FlagValues, list[str]], None]
    flags: tuple[Flag, ...] = ()
    arguments: Arguments = Arguments()
    examples: tuple[str, ...] = ()
    notes: Callable[[], str] = str
    module: str = ""
    extra: str = "train"
    remainder: str = ""
    fields: Callable[[], Collection[str]] = tuple
    one_of: tuple[str, ...] = ()

    @property
    def invocation(self) -> str:
        """The command line without arguments: `lambdanet NAME` or `python -m MODULE`."""
        return f"python -m {self.module}" if self.module else f"lambdanet {self.name}"

    @property
    def options(self) -> list[Arguments | Flag]:
        """The positional arguments, if there are any, and the flags."""
        arguments: list[Arguments | Flag] = (
            [self.arguments] if self.arguments.usage else []
        )
        return [*arguments, *self.flags]


def main(command: Command, argv: Sequence[str] | None = None) -> int:
    """Runs a command with a `module`, on `argv` or this process's arguments; returns its `exit_status`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return exit_status(
        command.module, lambda: run_command(command, arguments), command.extra
    )


def run_command(command: Command, argv: list[str]) -> None:
    """Runs a command, or prints its help if `argv` contains one of `HELP`."""
    if any(word in HELP for word in argv):
        print(format_help(command))
    else:
        values, arguments = parse(command, argv)
        check_combination(command, values)
        command.run(values, arguments)


def parse(command: Command, argv: list[str]) -> tuple[flags.FlagValues, list[str]]:
    """Returns the values of a command's flags, and its positional arguments.

    Raises:
      InputError: a flag is unknown, missing or has a wrong value, or the number of arguments is wrong.
    """
    values = flags.FlagValues()
    values.set_gnu_getopt()  # flags may follow arguments
    for flag in command.flags:
        flag.define(flag.name, flag.default, flag.help, flag_values=values)
    see = f"`{command.invocation} --help`"
    if command.remainder and "--" in argv:
        at = argv.index("--")
        if all(word.startswith("--") for word in argv[at + 1 : at + 2]):
            argv = [
                *argv[:at],
                *(f"--{command.remainder}={word}" for word in argv[at + 1 :]),
            ]
    try:
        arguments = values([command.name, *argv])[1:]
    except flags.UnrecognizedFlagError as error:
        fields = command.fields()
        if error.flagname in fields:
            value = error.flagvalue.partition("=")[2] or "VALUE"
            hint = f"did you mean --set={error.flagname}={value}?"
            raise InputError(
                f"unknown flag of `{command.name}` '--{error.flagname}'; {hint}"
            ) from None
        accepted = ["--help", *(f"--{flag.name}" for flag in command.flags)]
        accepted += [f"--set={field}" for field in fields]
        raise unknown(
            f"flag of `{command.name}`", f"--{error.flagname}", accepted, see
        ) from None
    except flags.IllegalFlagValueError as error:
        raise _illegal_value(command, error) from None
    except (flags.Error, ValueError) as error:
        raise InputError(f"{error}; see {see}") from None
    if command.arguments.usage == PICTURES:
        for path in arguments:
            local_path(path, PICTURES)
    for flag in command.flags:
        if flag.value in LOCAL_PATHS and (path := values[flag.name].value):
            local_path(path, f"--{flag.name}")
    missing = [
        f"--{flag.name}"
        for flag in command.flags
        if flag.required and not values[flag.name].value
    ]
    if missing:
        raise InputError(f"`{command.name}` needs {' and '.join(missing)}; see {see}")
    if len(arguments) < command.arguments.fewest:
        raise InputError(f"`{command.name}` needs {command.arguments}; see {see}")
    if len(arguments) > (most := command.arguments.most):
        raise InputError(
            f"unexpected argument {arguments[int(most)]!r} of `{command.name}`; see {see}"
        )
    return values, arguments


def check_combination(command: Command, values: flags.FlagValues) -> None:
    """Checks that each flag that is given has an effect beside the others.

    Args:
      command: the command.
      values: the values of its flags.

    Raises:
      InputError: a flag lacks one that it needs, or contradicts another.
    """
    given = [flag for flag in command.flags if values[flag.name].present]
    words = set()
    for flag in command.flags:
        if value := values[flag.name].value:
            words |= {f"--{flag.name}", f"--{flag.name}={value}"}
    chosen = [name for name in command.one_of if name in words]
    if command.one_of and len(chosen) != 1:
        got = f"got {' and '.join(chosen) or 'none'}"
        raise InputError(
            f"`{command.name}` needs one of {', '.join(command.one_of)}, {got}"
        )
    for name in chosen:
        if f"{name}=True" in words and len(given) > 1:
            raise InputError(f"{name} needs a command line of its own")
    for flag in given:
        for need in flag.needs:
            if words.isdisjoint(need.split(" or ")):
                raise InputError(f"--{flag.name} needs {need}")


def _illegal_value(command: Command, error: flags.IllegalFlagValueError) -> InputError:
    """Returns the error for absl's message "flag --NAME=VALUE: CAUSE"."""
    given = str(error).removesuffix(f": {error.__context__}").removeprefix("flag ")
    name, _, value = given.partition("=")
    defined = {f"--{flag.name}": flag.define for flag in command.flags}
    return invalid(name, _ACCEPTED[defined[name]], value)


def usage(command: Command) -> str:
    """Returns the command line with all flags and arguments; the optional flags are in brackets."""
    shown = [str(flag) if flag.required else f"[{flag}]" for flag in command.flags]
    return " ".join(filter(None, [command.invocation, *shown, str(command.arguments)]))


def format_help(command: Command) -> str:
    """Returns the text that `--help` prints."""
    line = textwrap.fill(
        f"usage: {usage(command)}", 100, subsequent_indent="  ", break_on_hyphens=False
    )
    parts = [line, f"`{command.name}` {command.summary}."]
    if command.options:
        rows = [(str(option), option.help) for option in command.options]
        parts.append(f"arguments and flags:\n{text_table.align_columns(rows)}")
    parts.append(command.notes())
    parts.append(
        "\n".join(["examples:", *(f"  {example}" for example in command.examples)])
    )
    return "\n\n".join(filter(None, parts))


_ACCEPTED = {
    flags.DEFINE_boolean: "true or false",
    flags.DEFINE_float: "a number",
    flags.DEFINE_integer: "an integer",
    flags.DEFINE_list: "values separated by commas",
}


def exit_status(name: str, main: Callable[[], None], extra: str = "train") -> int:
    """Calls `main` and returns the exit status; an expected error becomes one line on stderr.

    Args:
      name: the name of the program, with which that line begins.
      main: the program. Unexpected exceptions propagate with their traceback.
      extra: the extra of the package that installs what the program imports.

    Returns:
      0, or 2 for an `InputError`, 75 for `Preempted`, 130 for Ctrl-C, and 1 for other errors.
    """
    # Level 3 hides TensorFlow's log lines about processors and missing GPUs; errors are raised anyway.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    keep_for_tensorflow()
    _spare_search_for_tpu()
    _leave_modules_alone()
    _prepare_streams()
    announce_slow_imports(name)
    try:
        with _without_noise():
            main()
        sys.stdout.flush()
        return 0
    except InputError as error:
        return _fail(name, str(error), 2)
    except Preempted as stopped:
        return _fail(name, str(stopped), stopped.status)
    except KeyboardInterrupt:
        return _fail(name, "interrupted", 130)
    except BrokenPipeError:  # as in `lambdanet list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "lambdanet":
            raise
        extras = {
            "apache_beam": "beam",
            "official": "detection",
            "tf_keras": "detection",
            "jax": "jax",
        }
        extra = extras.get(package, extra)
        return _fail(
            name, f"{error}; install it with pip install 'lambdanet[{extra}]'", 1
        )
    except (Unfinished, OSError) as error:
        return _fail(name, str(error), 1)


class _SlowImports:
    """A finder of modules that finds none: it prints a line before the first slow import."""

    program = ""

    @classmethod
    def find_spec(cls, module: str, *_: Any) -> None:
        if module in SLOW_IMPORTS and SLOW_IMPORTS.isdisjoint(sys.modules):
            print(
                f"{cls.program}: importing {module}, which takes seconds",
                file=sys.stderr,
            )


def announce_slow_imports(program: str) -> None:
    """Prints a line to stderr before the first of `SLOW_IMPORTS` is imported, unless one has been.

    Args:
      program: the name of the program, with which the line begins.
    """
    _SlowImports.program = program
    if _SlowImports not in sys.meta_path:
        sys.meta_path.insert(0, _SlowImports)


def _spare_search_for_tpu() -> None:
    """Sets what libtpu asks for, with log lines, where JAX starts it on a machine without a TPU."""
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    if not any(file.read_text().strip() == GOOGLE for file in vendors):
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v3-8")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")


def _leave_modules_alone() -> None:
    """Collects garbage less often: TensorFlow's million module objects live until the exit."""
    gc.set_threshold(20_000)
    atexit.register(gc.freeze)


def _prepare_streams() -> None:
    """Opens closed streams on the null device; open ones escape what they cannot encode, line by line."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # as in `lambdanet list >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace", line_buffering=True)


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Hides two harmless warnings.

    Pillow warns that a large picture may be an attack (it rejects pictures of twice that size), and
    TensorFlow that a loaded model has no gradients, which no command computes.
    """

    def is_wanted(record: LogRecord) -> bool:
        return "with ops with unsaved custom gradients" not in record.getMessage()

    logger = logging.get_absl_logger()
    logger.addFilter(is_wanted)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "Image size .* could be decompression bomb"
            )
            yield
    finally:
        logger.removeFilter(is_wanted)


def _fail(name: str, message: str, status: int) -> int:
    line = " ".join(part.strip() for part in message.splitlines())
    print(f"{name}: {'' if status in (75, 130) else 'error: '}{line}", file=sys.stderr)
    return status


def find_function(name: str, what: str) -> Callable[..., Any]:
    """Returns the function "module:function", of a module that may be in the current directory.

    Args:
      name: the names of the module and the function.
      what: what the name stands for in errors.

    Raises:
      InputError: the module cannot be imported, or has no such function.
    """
    module, _, function = name.partition(":")
    if not module or not function:
        raise invalid(what, "module:function", name)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function, None)
    except Exception as error:  # of any kind: the module is the user's
        raise InputError(
            f"{what} {name!r} cannot be imported: {one_line(error)}"
        ) from None
    if not callable(found):
        raise invalid(what, f"module:function, a function of {module}", name)
    return found
