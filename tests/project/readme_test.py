# SPDX-License-Identifier: Apache-2.0
"""The README: its Python blocks run, and its commands exist."""

import re
from pathlib import Path

import pytest

from lambdanet import cli
from lambdanet.configs.registry import pretrained_weights
from lambdanet.detection import check, evaluate, export, predict, shapes, train
from lambdanet.models import zoo
from lambdanet.models.weights import pretrained

README = (Path(__file__).parents[2] / "README.md").read_text()


@pytest.fixture
def weights_at_hand(tmp_path, monkeypatch):
    """A cache with the weights of the example, which are random ones."""
    monkeypatch.setenv("LAMBDANET_HOME", str(tmp_path))
    one = pretrained_weights.get("lambda_resnet26t")
    texts = pretrained.metadata(one, pretrained.Source("a file", "0" * 64))
    pretrained.save_to_cache(one, zoo.create_model(one.model), texts)


def test_examples_run(weights_at_hand):
    """All blocks in the order of the text, as a reader would paste them."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 5
    namespace = {}
    for block in blocks:
        exec(block, namespace)
    assert namespace["model"].output_shape == (None, 10)
    assert namespace["features"]["5"].shape == (1, 4, 6, 2048)


def test_commands_parse():
    """Every line `lambdanet ...` is a command with flags that it has."""
    commands = {command.name: command for command in cli.COMMANDS}
    lines = re.findall(r"^lambdanet (\w[\w-]*)(.*)$", README, re.MULTILINE)
    assert lines
    for name, rest in lines:
        known = {f"--{flag.name}" for flag in commands[name].flags}
        assert set(re.findall(r"--\w+", rest)) <= known


def test_detection_programs_parse():
    """Every `python -m lambdanet.detection...` is a program with flags that it has."""
    programs = {
        module.COMMAND.module: module.COMMAND for module in (check, evaluate, export, predict, shapes, train)
    }
    lines = re.findall(r"python -m (lambdanet\.detection\.\w+) +(-.*)", README.replace("\\\n", " "))
    assert {name for name, _ in lines} == set(programs)
    for name, rest in lines:
        known = {f"--{flag.name}" for flag in programs[name].flags} | {"--help"}
        assert set(re.findall(r"--\w+", rest)) <= known, (name, rest)
