# SPDX-License-Identifier: Apache-2.0
"""A reader pastes the blocks of all guides, one page after the other, in one folder.

The networks, pictures and numbers of epochs are small; folders and all other flags are those of the pages.
Commands for other hardware, and for data that the reader does not have, are left out.
"""

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest
from helpers import write_picture
from pages import PAGES, commands_of
from programs.run_page import programs, run_page

from lambdanet import cli

SMALL = {
    "model": "lambda_resnet_tiny",
    "input_size": 32,
    "global_batch_size": 8,
    "epochs": 1,
    "warmup_epochs": 0,
    "randaugment_layers": 0,
}
# Small networks in place of downloads.
IN_PACKAGE = {
    "--weights=imagenet": "--weights=digits",
    "--model=lambda_resnet26t": "--model=lambda_resnet_tiny",
    "--model=lambda_resnet50ts": "--model=lambda_resnet_tiny",
}
LEFT_OUT = (
    "--recipe=imagenet",
    "--tpu",
    "--backend=jax",
    "=imagenet_teacher",
    "=explained_imagenet",
    "=fashion ",
    "flowers",
    "callback",
    "hf:",
    "gs:",
    "/shared",
)
CLASSES = {"cat": (180, 60, 60), "dog": (60, 180, 60), "rabbit": (60, 60, 180)}
# In the order of the contents; the pages about other hardware are left out.
GUIDES = (
    "tutorials/finetune_pictures",
    "how-to/own_data",
    "how-to/training_options",
    "how-to/pretrained",
    "how-to/other_channels",
    "how-to/tfrecords",
    "how-to/cross_validation",
    "how-to/resume",
    "how-to/pseudo_labels",
    "how-to/many_pictures",
    "how-to/export_serving",
    "how-to/litert",
    "how-to/onnx",
    "how-to/explain",
)


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """The folder of a reader: enough pictures to calibrate on, and a table of them."""
    monkeypatch.chdir(tmp_path)
    rows = ["file,label,split"]
    for split, count in (("train", 12), ("validation", 3), ("test", 3)):
        for name, color in CLASSES.items():
            for number in range(count):
                file = f"{split}/{name}/{number}.png"
                write_picture(Path("pictures", file), np.add(color, number))
                rows.append(f"{file},{name},{split}")
    Path("pictures", "labels.csv").write_text("\n".join(rows))
    Path("my_pictures").symlink_to("pictures")
    for folder in ("photos", "unlabeled"):
        for name, color in CLASSES.items():
            for number in range(25):
                file = f"{name}_{number}.png"
                write_picture(Path(folder, file), np.add(color, number))
    write_picture(Path("photos/rex.jpg"), CLASSES["dog"])


def _run(program: str, words: list[str]) -> None:
    """Runs a command of a page with a small network; downloaded weights are left out."""
    words = [IN_PACKAGE.get(word, word).replace("$fold", "4") for word in words]
    if program == "lambdanet train":
        words = [
            "--recipe=folder" if word.startswith("--recipe=finetune:") else word
            for word in words
        ]
        small = SMALL | ({"num_classes": 0} if "--set=num_classes=0" in words else {})
        words = [*words, *(f"--set={name}={value}" for name, value in small.items())]
        if any(word.startswith("--set=freeze=") for word in words):
            words.append("--set=start_from=runs/pets")
    if program == "lambdanet pseudo-label":
        # A network that was trained for an epoch is not sure.
        words.append("--min_confidence=0.01")
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = cli.main([*program.split()[1:], *words])
    assert status == 0, f"{program} {' '.join(words)}: {output.getvalue()}"


def _is_for_this_machine(program: str, words: list[str]) -> bool:
    """Whether a command needs only what the reader has."""
    text = " ".join([*words, ""])
    return (
        program.startswith("lambdanet")
        and program != "lambdanet convert"
        and not any(word in text for word in LEFT_OUT)
    )


@pytest.mark.weekly
@pytest.mark.slow
def test_commands_of_all_guides_follow_each_other(reader):
    for guide in GUIDES:
        page = f"docs/{guide}.md"
        if 'weights="imagenet"' not in PAGES[page]:
            run_page(programs(PAGES[page])[0], page)
        commands = [
            (program, words)
            for program, words in commands_of(PAGES[page])
            if _is_for_this_machine(program, words)
        ]
        assert len(commands) >= 2 or guide in (
            "how-to/other_channels",
            "how-to/tfrecords",
        )
        for program, words in commands:
            print(program, *words)
            _run(program, words)
