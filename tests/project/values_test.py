# SPDX-License-Identifier: Apache-2.0
"""Numbers in sentences of the documentation, beside the code that they are about."""

import inspect

import constructions
import pytest
from pages import PAGES

from lambdanet import configs
from lambdanet.core.errors import Preempted
from lambdanet.tpu_estimates import steps
from lambdanet.training.data.bad_records import DEFAULT_LIMIT
from lambdanet.training.run.loop import TrainOptions

FOLDER, DIGITS = configs.get_recipe("folder"), configs.get_recipe("digits")
FINETUNE = configs.get_recipe("finetune:lambda_resnet50ts")
LARGE = FOLDER.global_batch_size
BATCH = FINETUNE.global_batch_size
PAPER = configs.get_recipe("imagenet_350:lambda_resnet_152@224").global_batch_size
IN_CONTEXT = inspect.signature(constructions.in_context_recall).parameters
TOKENS = constructions.TOKENS

# Page, and a sentence with its numbers.
VALUES = [
    ("how-to/own_data", f"more than {DEFAULT_LIMIT} pictures cannot be decoded"),
    ("how-to/own_data", f"trains for {FINETUNE.epochs} epochs"),
    (
        "how-to/own_data",
        f"LambdaResNet-50 at {FOLDER.input_size} pixels, {FOLDER.epochs} epochs in batches of {LARGE}",
    ),
    ("how-to/own_data", f"The recipes use batches of {BATCH}"),
    ("how-to/tfrecords", f"`--max_bad_records` ({DEFAULT_LIMIT} by default)"),
    ("how-to/tfrecords", f"A batch has {LARGE} pictures"),
    ("how-to/multi_worker", f"an epoch (default: {TrainOptions().save_every})"),
    ("how-to/multi_gpu", f"the paper's batch of {PAPER}"),
    ("how-to/tpu_vm", f"the paper's batch of {PAPER}"),
    ("how-to/resume", f"| {Preempted('').status} | stopped and saved"),
    ("tutorials/keras_3_on_tpu", f"a batch of {steps.BATCH} on each core"),
    ("tutorials/finetune_pictures", f"ships: {DIGITS.epochs} epochs"),
    ("tutorials/finetune_pictures", f"takes batches of {BATCH}"),
    (
        "explanation/what_each_half_can_do",
        f"and so on: {IN_CONTEXT['length'].default} tokens, of {TOKENS} keys and {TOKENS} values",
    ),
]


@pytest.mark.parametrize(("page", "sentence"), VALUES)
def test_numbers_are_those_of_the_code(page, sentence):
    assert sentence in " ".join(PAGES[f"docs/{page}.md"].split())
