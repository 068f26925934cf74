# SPDX-License-Identifier: Apache-2.0
"""Numbers in sentences of the documentation, beside the code that they are about."""

import inspect
import re

import constructions
import pytest
from pages import PAGES

from lambdanet import configs
from lambdanet.errors import Preempted
from lambdanet.tpu_estimates import steps
from lambdanet.training.data import bad_records
from lambdanet.training.run.loop import TrainOptions

FOLDER, DIGITS = configs.get_recipe("folder"), configs.get_recipe("digits")
FINETUNE = configs.get_recipe("finetune:lambda_resnet50ts")
PAPER = configs.get_recipe("imagenet_350:lambda_resnet_152@224")
IN_CONTEXT = inspect.signature(constructions.in_context_recall).parameters
OWN_DATA, TFRECORDS = "docs/how-to/own_data.md", "docs/how-to/tfrecords.md"

# Page, a sentence with groups for its numbers, and the numbers in the code.
VALUES = [
    (
        OWN_DATA,
        r"more than (\d+) pictures cannot be decoded",
        [bad_records.DEFAULT_LIMIT],
    ),
    (OWN_DATA, r"trains for (\d+) epochs", [FINETUNE.epochs]),
    (
        OWN_DATA,
        r"LambdaResNet-50 at (\d+) pixels, (\d+) epochs in batches of (\d+)",
        [FOLDER.input_size, FOLDER.epochs, FOLDER.global_batch_size],
    ),
    (OWN_DATA, r"The recipes use batches of (\d+)", [FINETUNE.global_batch_size]),
    (
        TFRECORDS,
        r"`--max_bad_records` \((\d+) by default\)",
        [bad_records.DEFAULT_LIMIT],
    ),
    (TFRECORDS, r"A batch has (\d+) pictures", [FOLDER.global_batch_size]),
    (
        "docs/how-to/multi_worker.md",
        r"within an epoch \(default: (\d+)\)",
        [TrainOptions().save_every],
    ),
    (
        "docs/how-to/multi_gpu.md",
        r"the paper's batch of (\d+)",
        [PAPER.global_batch_size],
    ),
    ("docs/how-to/tpu_vm.md", r"the paper's batch of (\d+)", [PAPER.global_batch_size]),
    ("docs/how-to/resume.md", r"\| (\d+) \| stopped and saved", [Preempted("").status]),
    (
        "docs/tutorials/keras_3_on_tpu.md",
        r"a batch of (\d+) on each core",
        [steps.BATCH],
    ),
    ("docs/tutorials/finetune_pictures.md", r"ships: (\d+) epochs", [DIGITS.epochs]),
    (
        "docs/tutorials/finetune_pictures.md",
        r"takes batches of (\d+)",
        [FINETUNE.global_batch_size],
    ),
    (
        "docs/explanation/what_each_half_can_do.md",
        r"and so on: (\d+) tokens, of (\d+) keys and (\d+) values",
        [IN_CONTEXT["length"].default, constructions.TOKENS, constructions.TOKENS],
    ),
]


@pytest.mark.parametrize(("page", "sentence", "values"), VALUES)
def test_numbers_are_those_of_the_code(page, sentence, values):
    text = " ".join(PAGES[page].split())
    found = re.search(sentence, text)
    assert found, f"{page} has no longer: {sentence}"
    assert [int(number) for number in found.groups()] == values
