# SPDX-License-Identifier: Apache-2.0
"""Commands from functions: their flags and help are those of a signature and a docstring.

    def predict(images: Annotated[Sequence[str], "IMAGE..."], saved_model: Folder, top: int = 5) -> None:
        ...

    PREDICT = command(predict, positional="images", examples=("lambdanet predict --saved_model=m a.png",))

is `lambdanet predict --saved_model=DIR [--top=N] IMAGE...`. A parameter without a default is required, and a
`bool` is a switch. The first text of an `Annotated` stands for the value in the help. The docstring of the
function describes its parameters; a second text of the `Annotated` does so where several functions share it.
A text such as "--format=csv or --format=jsonl" names what the flag needs: without that, it is refused.
"""

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from absl import flags

from lambdanet.core.command_line import Arguments, Command, Flag
from lambdanet.core.errors import invalid


class Repeated:
    """In an `Annotated` sequence: each value has a flag of its own, instead of commas between them."""


Folder = Annotated[str, "DIR"]
File = Annotated[str, "FILE"]
Name = Annotated[str, "NAME"]
# Which may also be on a file system of TensorFlow, such as gs://.
RemoteFolder = Annotated[str, "DIR_OR_URL"]
RemoteFile = Annotated[str, "FILE_OR_URL"]
Overwrite = Annotated[bool, "", "replace existing outputs"]

_DEFINE = {
    bool: flags.DEFINE_boolean,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}
_PLACEHOLDERS = {bool: "", int: "N", float: "X"}


def command(
    function: Callable[..., Any], name: str = "", positional: str = "", **options: Any
) -> Command:
    """Returns the command that calls a function with its flags and positional arguments.

    Args:
      function: the function; the first line of its docstring is the summary, and `Args` describe the flags.
      name: the name on the command line; default: the function's, with dashes.
      positional: the parameter that takes positional arguments: any number for a sequence, else one; they may
        be left out where it has a default.
      **options: further attributes of the `Command`, such as `examples`, `notes` and `module`.
    """
    summary, descriptions = describe(function)
    parameters = inspect.signature(function).parameters
    hints = typing.get_type_hints(function, include_extras=True)
    accepted = {
        parameter.name: _flag(parameter, hints[parameter.name], descriptions)
        for parameter in parameters.values()
    }
    integers = {
        name for name in accepted if int in typing.get_args(_unwrap(hints[name])[0])
    }
    argument = accepted.pop(positional, None)
    is_many = argument is not None and argument.define is flags.DEFINE_list

    def run(values: flags.FlagValues, arguments: list[str]) -> None:
        given = {name: values[name].value for name in accepted}
        for name in integers & given.keys():
            given[name] = _integers(f"--{name}", given[name] or ())
        if arguments:
            given[positional] = arguments if is_many else arguments[0]
        function(**given)

    return Command(
        name or function.__name__.replace("_", "-"),
        summary,
        run,
        flags=tuple(accepted.values()),
        arguments=_arguments(argument, is_many),
        **options,
    )


def _integers(name: str, texts: Sequence[str]) -> list[int]:
    for text in texts:
        if not text.isdecimal():
            raise invalid(name, "numbers separated by commas, such as 1,5", text)
    return [int(text) for text in texts]


def describe(function: Callable[..., Any]) -> tuple[str, Mapping[str, str]]:
    """Returns the summary of a function and the descriptions of its arguments, without full stops."""
    text = inspect.getdoc(function) or ""
    summary = text.partition("\n")[0].rstrip(".")
    section = re.search(r"^Args:\n((?:  .*\n?|\n)+)", text, re.MULTILINE)
    entries = re.findall(
        r"^  (\w+): ((?:.*)(?:\n    .*)*)", section[1] if section else "", re.MULTILINE
    )
    descriptions = {
        name: " ".join(words.split()).rstrip(".") for name, words in entries
    }
    return summary[:1].lower() + summary[1:], descriptions


def _flag(
    parameter: inspect.Parameter, hint: Any, descriptions: Mapping[str, str]
) -> Flag:
    """Returns the flag of a parameter, with its default in the help."""
    kind, extras = _unwrap(hint)
    is_many = typing.get_origin(kind) is not None
    texts = [extra for extra in extras if isinstance(extra, str)]
    needs = [text for text in texts if text.startswith("--")]
    texts = [text for text in texts if text not in needs]
    name = parameter.name
    is_required = parameter.default is inspect.Parameter.empty
    default = None if is_required else parameter.default
    help = descriptions[name] if name in descriptions else texts[1]
    is_empty = default is None or default is False or default in ((), "")
    if not (is_required or is_empty or "default" in help):
        help = f"{help} (default: {_shown(default)})"
    if is_many:
        is_repeated = Repeated in extras
        define = flags.DEFINE_multi_string if is_repeated else flags.DEFINE_list
        singular = name.upper().removesuffix("S")
        placeholder = singular if is_repeated else f"{singular},..."
    else:
        define = _DEFINE[kind]
        placeholder = _PLACEHOLDERS.get(kind, name.upper())
    if texts:
        placeholder = texts[0]
    if is_many and default is not None:
        default = list(default)
    return Flag(name, placeholder, help, is_required, define, default, needs)


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, str):
        return default
    return (
        ",".join(map(str, default)) if isinstance(default, Sequence) else f"{default:g}"
    )


def _unwrap(hint: Any) -> tuple[Any, Sequence[Any]]:
    """Returns the type of a value and the extras of its `Annotated`; of a union, the first type counts."""
    extras: list[Any] = []
    while True:
        origin = typing.get_origin(hint)
        if origin is Annotated:
            hint, *more = typing.get_args(hint)
            extras += more
        elif origin in (typing.Union, types.UnionType):
            hint = typing.get_args(hint)[0]
        else:
            return hint, extras


def _arguments(argument: Flag | None, is_many: bool) -> Arguments:
    """Returns the positional arguments that a parameter takes."""
    if argument is None:
        return Arguments()
    usage = argument.value.replace(",...", "...")
    shown = usage if argument.required else f"[{usage}]"
    return Arguments(
        shown,
        argument.help,
        int(argument.required),
        float("inf") if is_many else 1,
    )
