# SPDX-License-Identifier: Apache-2.0
"""The commands of a guide run one after the other in one folder, as a reader would paste them.

The networks, pictures and numbers of epochs are small; folders and all other flags are those of the page.
"""

import contextlib
import io
import shutil
from pathlib import Path

import pytest
from helpers import write_picture
from pages import PAGES, commands_of

from lambdanet import cli

SMALL = {
    "model": "lambda_resnet_tiny",
    "input_size": 32,
    "global_batch_size": 8,
    "epochs": 1,
    "warmup_epochs": 0,
    "randaugment_layers": 0,
}
CLASSES = {"cat": (200, 60, 60), "dog": (60, 200, 60), "rabbit": (60, 60, 200)}
GUIDES = (
    "own_data",
    "training_options",
    "resume",
    "export_serving",
    "pseudo_labels",
    "explain",
)


@pytest.fixture(scope="module")
def before(tmp_path_factory, one_block):
    """A folder with pictures, a table of them, and two equal runs."""
    path = tmp_path_factory.mktemp("before")
    rows = ["file,label,split"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        for split, count in (("train", 6), ("validation", 3), ("test", 3)):
            for name, color in CLASSES.items():
                for number in range(count):
                    file = f"{split}/{name}/{number}.png"
                    write_picture(Path("pictures", file), color)
                    rows.append(f"{file},{name},{split}")
        Path("pictures", "labels.csv").write_text("\n".join(rows))
        for folder in ("photos", "unlabeled"):
            for name, color in CLASSES.items():
                write_picture(Path(folder, f"{name}.png"), color)
        write_picture(Path("photos/rex.jpg"), CLASSES["dog"])
        folders = ["--data_dir=pictures", "--model_dir=runs/earlier"]
        _run("lambdanet train", ["--recipe=folder", *folders])
        shutil.copytree("runs/earlier", "runs/pets")
    return path


@pytest.fixture
def reader(before, tmp_path, monkeypatch):
    """The folder of a reader."""
    shutil.copytree(before, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def _run(program: str, words: list[str]) -> None:
    """Runs a command of a page with a small network; downloaded weights are left out."""
    if program == "lambdanet train":
        words = [
            "--recipe=folder" if word.startswith("--recipe=finetune:") else word
            for word in words
        ]
        small = SMALL | ({"num_classes": 0} if "--set=num_classes=0" in words else {})
        words = [*words, *(f"--set={name}={value}" for name, value in small.items())]
        if any(word.startswith("--set=freeze=") for word in words):
            words.append("--set=start_from=runs/earlier")
    if program == "lambdanet pseudo-label":
        # A network that was trained for an epoch is not sure.
        words.append("--min_confidence=0.01")
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = cli.main([*program.split()[1:], *words])
    assert status == 0, f"{program} {' '.join(words)}: {output.getvalue()}"


def _is_for_this_machine(words: list[str]) -> bool:
    """Whether a command uses the folders of the reader; others need ImageNet, weights or another machine."""
    text = " ".join(words)
    return not any(
        word in text
        for word in ("imagenet", "--tpu", "--backend=jax", "teacher_model", "callback")
    )


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES)
def test_commands_of_a_guide_follow_each_other(guide, reader, one_block):
    commands = [
        (program, words)
        for program, words in commands_of(PAGES[f"docs/how-to/{guide}.md"])
        if program.startswith("lambdanet") and _is_for_this_machine(words)
    ]
    assert len(commands) >= 2
    for program, words in commands:
        _run(program, words)
