# SPDX-License-Identifier: Apache-2.0
"""README.md and docs: the Python blocks run, their results are as printed, and the commands exist.

An expression with a literal as its comment has that value, where `...` stands for anything:

    lambdanet.list_models("lambda_resnet_*")  # ["lambda_resnet_50", ...]

A block of `text` right after one of `python` is what that prints.
"""

import os
import re
import subprocess
import sys

import all_commands
import pytest
from engines import xla_flags
from pages import PAGES, SETUP, commands_of, lines_of
from processes import output_of
from programs.run_page import KERAS_3, programs, run_page
from source_tree import ROOT

from lambdanet import configs
from lambdanet.configs.recipe import override
from lambdanet.configs.registry import pretrained_weights
from lambdanet.core import command_line
from lambdanet.models import zoo
from lambdanet.models.names import check_model, list_models
from lambdanet.models.weights import hub, pretrained, weight_files

COMMANDS = {command.invocation: command for command in all_commands.COMMANDS}
EXAMPLE = "image_classification_with_lambda_layers"  # test_example_learns runs it
# Train on several backends, or take ten seconds and more for what tests of the library check each day.
LONG = (
    "docs/explanation/which_keras.md",
    "docs/how-to/own_model_on_tpu.md",
    "docs/how-to/own_task.md",
    "docs/how-to/segmentation.md",
    "docs/how-to/tf_keras.md",
    "docs/tutorials/keras_3_on_tpu.md",
    "docs/tutorials/streaming.md",
)
# In a sentence; earlier commits had others.
NAMED = re.compile(
    r"`(lambdanet [a-z][\w-]+|python -m (?:lambdanet|benchmarks)\.[\w.]+)(?!.* at the commit)"
)
MODEL = "lambda_resnet26t"  # whose published weights pages may use


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    path = tmp_path_factory.mktemp("cache")
    published = pretrained_weights.get(MODEL)
    metadata = pretrained.metadata(published, hub.Source("a file", "0" * 64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAMBDANET_HOME", str(path))
        file = pretrained.cache_path(published)
        weight_files.save(zoo.create_model(MODEL), file, metadata)
    return path


def _with_blocks() -> list:
    """The pages with Python blocks; each of pypi.md is in the README, too."""
    found = []
    for name in sorted(PAGES.keys() - {"docs/pypi.md", f"docs/tutorials/{EXAMPLE}.md"}):
        if "```python\n" in PAGES[name]:
            marks = [pytest.mark.weekly] if name in LONG else []
            found.append(pytest.param(name, marks=marks))
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.meshgrid")  # of lucidrains' layer
@pytest.mark.parametrize("page", _with_blocks())
def test_blocks_run(page, request, tmp_path, monkeypatch):
    """In this process, and from each block that chooses a backend of Keras 3 in one of its own."""
    if 'weights="imagenet"' in PAGES[page]:
        monkeypatch.setenv("LAMBDANET_HOME", str(request.getfixturevalue("cache")))
    monkeypatch.chdir(tmp_path)
    before, *others = programs(PAGES[page])
    run_page(before, page)
    for number, text in enumerate(others, start=1):
        output_of(
            "run_page.py",
            ROOT / page,
            number,
            KERAS_BACKEND=KERAS_3.search(text)[1],
            JAX_PLATFORMS="cpu",
            # For the steps of an epoch.
            XLA_FLAGS=xla_flags("--xla_backend_optimization_level=1"),
        )


@pytest.mark.weekly
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_example_learns(backend, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = output_of(ROOT / f"docs/examples/{EXAMPLE}.py", KERAS_BACKEND=backend)
    assert min(map(float, re.findall(r"([\d.]+) %", printed))) > 95


@pytest.mark.parametrize("page", sorted(PAGES))
def test_commands_parse(page):
    """Flags, arguments, recipes, fields and models of commands are accepted."""
    for program, words in commands_of(PAGES[page]):
        if {"--help", "..."} & set(words):
            known = {
                "--help",
                "...",
                *(f"--{flag.name}" for flag in COMMANDS[program].flags),
            }
            assert {word.partition("=")[0] for word in words} <= known
            continue
        values, arguments = command_line.parse(COMMANDS[program], words)
        command_line.check_combination(COMMANDS[program], values)
        given = values.flag_values_dict()
        if recipe := given.get("recipe"):
            known = "digits" if recipe.endswith(".json") else recipe
            check_model(override(configs.get_recipe(known), given["set"] or ()).model)
        models = [given.get("model")] if program.startswith("lambdanet") else []
        if COMMANDS[program].arguments.usage in ("MODEL", "MODEL..."):
            models += arguments
        if program == "lambdanet tpu-check" and ":" in (given["model"] or ""):
            models = []  # a function of the user
        for model in filter(None, models):
            check_model(re.split("[@:]", model)[0])
        if program == "lambdanet list":
            assert list_models(*arguments)


@pytest.mark.parametrize("page", sorted(PAGES))
def test_targets_and_extras_exist(page):
    """`make TARGET` is in the Makefile, and `pip install '.[EXTRA]'` in setup.cfg."""
    makefile = (ROOT / "Makefile").read_text()
    for line in lines_of(PAGES[page]):
        for target in re.findall(r"^\s*make ([\w-]+)", line):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
        for extras in re.findall(r"pip install .*\.\[([\w,-]+)\]", line):
            assert set(extras.split(",")) <= set(SETUP["options.extras_require"]), (
                extras
            )


def test_every_command_is_on_a_page():
    used = {program for text in PAGES.values() for program, _ in commands_of(text)}
    named = set(NAMED.findall("".join(PAGES.values())))
    assert used | named <= set(COMMANDS)
    assert {name for name in COMMANDS if "benchmarks." not in name} <= used


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*COMMANDS} - {"python -m benchmarks.device"}))
def test_a_line_comes_before_slow_imports(name, tmp_path):
    """Of a command, which ends at the import of what takes seconds."""
    for module in command_line.SLOW_IMPORTS:
        (tmp_path / f"{module}.py").write_text("raise SystemExit")
    command = f"{os.path.dirname(sys.executable)}/{COMMANDS[name].examples[0]}"
    status, shown = subprocess.getstatusoutput(f"PYTHONPATH={tmp_path} {command}")
    assert shown and not status
