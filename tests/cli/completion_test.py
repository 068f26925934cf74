# SPDX-License-Identifier: Apache-2.0
"""Tab completion in a real bash and, where there is one, a real zsh."""

import contextlib
import functools
import io
import re
import shlex
import shutil
import subprocess

import pytest

from lambdanet import cli, configs
from lambdanet.command_line import parse
from lambdanet.models.names import list_models
from lambdanet.text_table import FORMATS
from lambdanet.tpu_estimates import steps
from lambdanet.training.run import devices

# What zsh has only while it completes; `compadd` prints the words that match.
ZSH = """\
compdef() {}
compset() {}
_files() {}
compadd() {
  while [[ $1 != -- ]]; do shift; done
  shift
  print -rl -- ${(M)@:#$words[CURRENT]*}
}
"""


@functools.cache
def script(shell):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert cli.main(["completion", shell]) == 0
    return out.getvalue()


def offered(shell, line):
    """The words that a shell offers at the end of a line."""
    words = line.split(" ")
    if shell == "zsh":
        call = f"words=({shlex.join(words)}) CURRENT={len(words)}\n_lambdanet"
        program = f"{ZSH}{script(shell)}\n{call}"
    else:
        split = re.findall("[=:]|[^ =:]+", line) + [""] * line.endswith(" ")
        call = (
            f"COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)}\n"
            f"COMP_WORDS=({shlex.join(split)}) COMP_CWORD={len(split) - 1}\n"
            "_lambdanet\nprintf '%s\\n' \"${COMPREPLY[@]}\""
        )
        program = f"{script(shell)}\n{call}"
    done = subprocess.run([shell, "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.split()


needs_zsh = pytest.mark.skipif(not shutil.which("zsh"), reason="there is no zsh")
SHELLS = ["bash", pytest.param("zsh", marks=needs_zsh)]


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_flags_and_names_are_offered(shell):
    names = [command.name for command in cli.COMMANDS]
    everything = offered(shell, "lambdanet ")
    assert sorted(everything) == sorted([*names, "--help", "--version"])
    assert offered(shell, "lambdanet predict") == ["predict", "predict-many"]
    assert offered(shell, "lambdanet list --p") == ["--pretrained"]
    assert offered(shell, "lambdanet list --sizes --f") == ["--format="]
    assert offered(shell, "lambdanet tpu-check --no") == ["--nocache"]
    assert offered(shell, "lambdanet recipe dig") == ["digits"]
    models = offered(shell, "lambdanet info halonet_h")
    assert models == list_models("halonet_h*")
    trained = offered(shell, "lambdanet convert lambda_")
    assert trained == list_models("lambda_*", pretrained=True)
    assert offered(shell, "lambdanet nothing --f") == []
    assert offered(shell, "lambdanet predict --saved_model=m") == []


def test_values_of_flags_are_offered():
    """In bash, what follows the last `=` or `:`, or begins with `@`."""
    assert offered("bash", "lambdanet list --format=") == [*FORMATS]
    offers = offered("bash", "lambdanet export --format=litert_")
    assert offers == ["litert_int8", "litert_int8_full"]
    assert offered("bash", "lambdanet train --set=learning_ra") == ["learning_rate="]
    recipe = "lambdanet train --recipe=imagenet_350:lambda_resnet_152"
    assert offered("bash", recipe[:-2]) == sorted(
        name.partition(":")[2]
        for name in configs.list_recipes()
        if name.startswith("imagenet_350:lambda_resnet_1")
    )
    assert offered("bash", f"{recipe}@22") == ["@224"]


@needs_zsh
def test_whole_flags_are_offered_in_zsh():
    assert offered("zsh", "lambdanet list --format=m") == ["--format=markdown"]
    line = "lambdanet train --recipe=imagenet_350:lambda_resnet_152@22"
    assert offered("zsh", line) == [line.rpartition(" ")[2] + "4"]


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.name)
def test_offered_values_are_accepted(command):
    for flag in command.flags:
        for value in flag.choices():
            given = f"{value}1" if value.endswith("=") else value
            needed = [f"--{other.name}=x" for other in command.flags if other.required]
            words = [*needed, f"--{flag.name}={given}"]
            parse(command, [*words, *["x"] * command.arguments.fewest])
        if not flag.value.startswith(("NAME", "KEY")):  # all of them are in the help
            assert all(value in flag.help for value in flag.choices())


def test_offered_values_are_all_values():
    flags = {
        (command.name, flag.name): set(flag.choices())
        for command in cli.COMMANDS
        for flag in command.flags
    }
    assert flags["train", "distribute"] == set(devices.CHOICES)
    assert flags["tpu-check", "mode"] == set(steps.MODES)
