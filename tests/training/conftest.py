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


@pytest.fixture
def small_network(monkeypatch):
    """A network that is quickly built, for runs in which it does not matter."""
    from programs.small_model import small_model

    monkeypatch.setattr("lambdanet.models.zoo.create_model", small_model)


@pytest.fixture(scope="module")
def small_networks():
    """The same for all runs of a file."""
    from programs.small_model import small_model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lambdanet.models.zoo.create_model", small_model)
        yield


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """A folder of TFDS, in which the first run of all files prepares the digits."""
    return str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def color_teacher(tmp_path_factory):
    """An exported classifier of red, green and blue, whose logits are the scaled means of the channels."""
    import keras

    from lambdanet.training.serving.export import export_saved_model

    layers = [keras.layers.GlobalAveragePooling2D(), keras.layers.Rescaling(2.0)]
    model = keras.Sequential([keras.Input([None, None, 3]), *layers])
    out = tmp_path_factory.mktemp("teacher") / "colors"
    return export_saved_model(
        model, out, 8, (0.5,) * 3, (0.5,) * 3, ("red", "green", "blue")
    )
