# SPDX-License-Identifier: Apache-2.0
"""Quickly built graphs of short runs, and their data.

TensorFlow is imported by fixtures alone: the process that distributes the tests reads this file, too.
"""

import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_graphs_of_runs(quick_graphs):
    """Uses `quick_graphs` in every file of this folder."""


def _with_network(name):
    from programs import small_model

    from lambdanet.models import zoo

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(zoo.MODELS, "lambda_resnet_tiny", getattr(small_model, name))
        yield


@pytest.fixture(scope="module")
def one_block():
    """Makes the smallest network of the zoo a lambda layer alone, in a file that uses it."""
    yield from _with_network("ONE_BLOCK")


@pytest.fixture(scope="module")
def two_blocks():
    """Makes it two blocks, a convolution and a lambda layer."""
    yield from _with_network("TWO_BLOCKS")


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """A folder of TFDS, in which the first run of all files prepares the digits."""
    return str(tmp_path_factory.mktemp("data"))
