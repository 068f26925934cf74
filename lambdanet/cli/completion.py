# SPDX-License-Identifier: Apache-2.0
"""The command `completion`: scripts that complete commands, flags and values in a shell.

A script has all words, so that completing runs no Python. In bash, a word begins after `=` and `:`, and with
`@`, and only the last one is replaced.
"""

from collections.abc import Sequence
from typing import Annotated

from lambdanet.command_line import Command
from lambdanet.commands import Choices, command
from lambdanet.errors import check_known

BASH = """\
_lambdanet() {
  local line=${COMP_LINE:0:COMP_POINT} name=${COMP_WORDS[1]} first values
  local word=${line##*[[:space:]]}
  local end=${word##*[=:]}
  [[ $end == *@* ]] && end=@${end##*@}
  ((COMP_CWORD > 1)) || name=
  case $name in
CASES
  esac
  [[ $word == -*=* ]] && first=$values
  COMPREPLY=($(compgen -W "$first" -- "$word"))
  [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
  COMPREPLY=("${COMPREPLY[@]#"${word%"$end"}"}")
}
complete -o default -F _lambdanet lambdanet"""

ZSH = """\
_lambdanet() {
  local word=$words[CURRENT] name=$words[2] first values
  ((CURRENT > 2)) || name=
  case $name in
CASES
  esac
  [[ $word == -*=* ]] && first=$values
  local -a all=(${=first})
  compadd -S '' -- ${(M)all:#*=}
  compadd -- ${all:#*=}
  ((compstate[nmatches])) && return
  compset -P '*='
  _files
}
compdef _lambdanet lambdanet"""

SCRIPTS = {"bash": BASH, "zsh": ZSH}


def completion_of(commands: Sequence[Command]) -> Command:
    """Returns the command that completes these commands, and itself."""

    def print_completion(shell: Annotated[str, Choices(lambda: SCRIPTS)]) -> None:
        """Prints a script for a shell, which completes commands, flags and their values by the tab key.

        Args:
          shell: bash or zsh; to use it, add `eval "$(lambdanet completion SHELL)"` to ~/.bashrc or ~/.zshrc.
        """
        check_known("shell", shell, SCRIPTS)
        every = [*commands, completion]
        names = [each.name for each in every]
        cases = [_case("''", [*names, "--help", "--version"], [])]
        for each in every:
            cases.append(_case(each.name, *_words(each)))
        print(SCRIPTS[shell].replace("CASES", "\n".join(cases)))

    completion = command(
        print_completion,
        "completion",
        positional="shell",
        examples=("lambdanet completion bash", "lambdanet completion zsh"),
    )
    return completion


def _words(command: Command) -> tuple[list[str], list[str]]:
    """Returns the arguments and the flags of a command, and its flags with their values."""
    first = [*command.arguments.choices(), "--help"]
    values = []
    for flag in command.flags:
        name, equals, _ = str(flag).partition("=")
        first.append(name + equals)
        values += [f"{name}={value}" for value in flag.choices()]
    return first, values


def _case(name: str, first: Sequence[str], values: Sequence[str]) -> str:
    return f"    {name}) first='{' '.join(first)}' values='{' '.join(values)}' ;;"
