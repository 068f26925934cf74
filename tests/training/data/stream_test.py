# SPDX-License-Identifier: Apache-2.0
"""Seeds of pictures of training, against the same in plain Python, and what a folder imports."""

import numpy as np
import pytest
import tensorflow as tf
from picture_sources import RECIPE, write_folder
from processes import run_code
from training_runs import open_dataset

from lambdanet.training.data import preprocess, stream
from lambdanet.training.data.sources import Shard


@pytest.mark.parametrize("index", [0, 1])
def test_seeds_are_of_the_pass_and_place_of_each_picture(index, tmp_path, monkeypatch):
    """Of two machines, each of which has six of twelve pictures, and other seeds."""

    def show(image, recipe, seed):
        run, place = tf.unstack(seed)
        number, rest = run // stream.SEEDS_PER_PASS, run % stream.SEEDS_PER_PASS
        return tf.zeros([8, 8, 3], "uint8") + tf.cast([number, rest, place], "uint8")

    monkeypatch.setattr(preprocess, "training_view", show)
    changes = write_folder(tmp_path, 12) | {
        "seed": 5,
        "global_batch_size": 4,
        "std": (0.5,) * 3,
    }
    batches = open_dataset(RECIPE, tmp_path, **changes).train(2, Shard(index, 2, 4))
    found = np.concatenate([images[:, 0, 0] for images, _ in batches])
    expected = [[run, 5, 2 * place + index] for run in range(3) for place in range(6)]
    np.testing.assert_allclose(255 / 2 * found, expected[4:], rtol=1e-5)


def test_folders_need_neither_tfds_nor_tables(tmp_path):
    """Only tables import pyarrow, beside pandas, where Keras finds it."""
    write_folder(tmp_path, 64)
    program = f"""
import sys
from lambdanet import configs
from lambdanet.training.run.loop import Dataset
next(iter(Dataset.open(configs.get_recipe("folder"), {str(tmp_path)!r}).train()))
print("found", sys.modules.keys() & {{"{stream.__package__}.tables", "tensorflow_datasets"}})
"""
    assert "found set()" in run_code(program).stdout
