# SPDX-License-Identifier: Apache-2.0
"""Loading of timm's tensors: all are used and all variables assigned, or nothing changes."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_close
from refusals import unchanged
from small_models import few_block_model
from tiny_weights import random_timm_tensors

from lambdanet import create_model
from lambdanet.models.weights import timm_rules
from lambdanet.ops import relative_positions

MIXED = "lamhalobotnet50ts_256"  # all three kinds of layers


@pytest.fixture(scope="module")
def mixed():
    return few_block_model(MIXED)


def tensors_for(model):
    """Random tensors of a timm network, with the counters of its batch normalizations."""
    tensors = random_timm_tensors(model)
    counters = {
        name.replace("running_mean", "num_batches_tracked")
        for name in tensors
        if "mean" in name
    }
    return tensors | dict.fromkeys(counters, np.int64(7))


def refused(model, tensors):
    with unchanged(model, ".") as caught:
        timm_rules.load(model, tensors)
    return str(caught.value)


def test_errors_name_tensors_that_do_not_fit(mixed):
    tensors = tensors_for(mixed)
    tensors["stages.1.0.stranger"] = tensors.pop("stages.2.1.self_attn.kv.weight")
    tensors["stem.conv1.bn.bias"] = np.zeros(23, np.float32)
    message = refused(mixed, tensors)
    assert "stages.2.1.self_attn.kv.weight is missing" in message
    assert "stages.1.0.stranger has no variable" in message
    assert "stem.conv1.bn.bias has the shape (23,), not (24,)" in message
    # After 20 names.
    assert " more" in refused(mixed, tensors_for(few_block_model("halonet50ts")))
    tiny = create_model("lambda_resnet_tiny")  # timm has no such gates
    assert "stages.0.0.conv1_1x1.conv.weight is missing" in refused(tiny, {})
    assert "c2_block1_se/reduce/kernel has no tensor" in refused(
        tiny, tensors_for(tiny)
    )


def test_other_classes_are_rejected_and_features_need_none():
    # With a convolution before the classifier, which is not replaced.
    name = "sebotnet33ts_256"
    model = create_model(name, num_classes=7)
    trained = tensors_for(model)
    trained["head.fc.weight"] = np.zeros([1000, 1280], np.float32)
    trained["head.fc.bias"] = np.zeros([1000], np.float32)
    message = refused(model, trained)
    assert message.endswith(
        "head.fc.weight has the shape (1000, 1280), not (7, 1280); "
        "head.fc.bias has the shape (1000,), not (7,)"
    )
    whole, features = (
        create_model(name),
        create_model(name, features_only=True),
    )
    timm_rules.load(whole, trained)
    timm_rules.load(features, trained)
    np.testing.assert_array_equal(features.get_weights()[0], whole.get_weights()[0])


@pytest.mark.parametrize(
    ("name", "block", "tables", "scale"),
    [
        (
            "botnet26t_256",
            1,
            {"pos_embed.height_rel": [16], "pos_embed.width_rel": [12]},
            128**0.5,
        ),
        ("lambda_resnet26rpt_256", 0, {"pos_emb": [32, 24]}, 1.0),
    ],
)
def test_tables_of_whole_maps_are_resized_to_other_images(name, block, tables, scale):
    """To images of 512 x 384: the ends of a table stay its ends, and the offset 0 stays in the middle."""
    trained = tensors_for(create_model(name, input_size=256))
    model = create_model(name, input_size=(512, 384))
    timm_rules.load(model, trained)
    spatial = model.get_layer(f"c5_block{block + 1}_spatial")
    ours = [w for w in spatial.weights if w.path.endswith("table")]
    for table, (tensor, sides) in zip(ours, tables.items(), strict=True):
        old = scale * trained[f"stages.3.{block}.self_attn.{tensor}"]
        lengths = [2 * side - 1 for side in sides]
        expected = relative_positions.resize_table(tf.constant(old), lengths)
        assert_close(table, expected, 1e-5)
