# SPDX-License-Identifier: Apache-2.0
"""Lambda layers of earlier versions: their files load, and their arguments are refused with the new ones."""

from pathlib import Path

import keras
import numpy as np
import pytest
from helpers import reloaded
from refusals import refused

from lambdanet import LambdaLayer
from lambdanet.layers.old_arguments import translate

SAVED = Path(__file__).parents[1] / "saved"


def test_a_file_of_an_earlier_version_loads(tmp_path):
    """Written at commit bc34cade by this program, and compressed:

    options = {"num_heads": 2, "key_dim": 3}
    words = keras.Input([6], dtype="int32", name="words")
    x = keras.layers.Embedding(9, 4, mask_zero=True)(words)
    pairs = keras.Input([6, 6], dtype="bool", name="pairs")
    context = keras.Input([5, 3], name="context")
    image = keras.Input([5, 6, 4], name="image")
    frames = keras.Input([4, 4], name="frames")
    table = RelativePositionEmbedding(3, scope=3, dilation=2, use_bias=True)
    shared = {"position": table, **options}
    first = LambdaLayer(4, name="first", **shared)
    second = LambdaLayer(4, strides=2, pool_size=3, name="second", **shared)
    causal = LambdaLayer(4, scope=3, causal=True, name="causal", **options)
    causal.build([None, 4, 4])
    (state,) = causal.initial_state(1)
    state = {n: keras.Input(v.shape[1:], name=f"{n}_0") for n, v in state.items()}
    y, (after,) = causal(frames, initial_state=[state], return_state=True)
    whole = {"scope": None, "map_size": 7, "resize": "interpolate"}
    whole |= {"position_bias": True, "embeddings_initializer": "ones", **options}
    axes = {"scope": (3, None), "dilation": (2, 1), "use_bias": True, **options}
    deep = LambdaLayer(4, scope=3, intra_depth=2, name="constant", **options)
    plain = LambdaLayer(4, scope=3, use_batch_norm=False, name="examples", **options)
    heads = {"position": "unstructured", "multi_head": True, **options}
    content = {"position": None, "batch_norm": {"epsilon": 0.1}, **options}
    outputs = {
        "padded": LambdaLayer(4, scope=3, name="padded", **options)(x),
        "constant": deep(x, mask=np.tri(6, dtype=bool)),
        "examples": plain(x, mask=pairs),
        "context": LambdaLayer(4, name="across", **content)(x, context=context),
        "image": second(first(image)),
        "whole": LambdaLayer(4, name="whole", strides=(1, 2), **whole)(image),
        "pairs": LambdaLayer(4, name="listed", **heads)(image),
        "first": LambdaLayer(4, name="first_size", **axes)(image),
        "causal": y,
        "state": after,
    }
    inputs = [words, pairs, context, image, frames, *state.values()]
    model = keras.Model(inputs, outputs)
    rng = np.random.default_rng(0)
    weights = [rng.uniform(0.5, 1.5, w.shape) for w in model.get_weights()]
    model.set_weights(weights)
    model.save("lambda_layers.keras")
    values = [rng.normal(size=[2, *x.shape[1:]]).astype("float32") for x in inputs]
    values[0] = np.array([[3, 1, 4, 1, 5, 0], [2, 7, 0, 0, 0, 0]])
    values[1] = rng.random([2, 6, 6]) < 0.7
    arrays = {f"input{i:02}": x for i, x in enumerate(values)}
    found = keras.tree.flatten(model(values))
    arrays |= {f"output{i:02}": y for i, y in enumerate(found)}
    np.savez_compressed("lambda_layers.npz", **arrays)
    """
    model = keras.models.load_model(SAVED / "lambda_layers.keras")
    with np.load(SAVED / "lambda_layers.npz") as arrays:
        inputs = [arrays[name] for name in sorted(arrays) if "input" in name]
        expected = [arrays[name] for name in sorted(arrays) if "output" in name]
    for same in (model, reloaded(model, tmp_path)):
        found = keras.tree.flatten(same(inputs))
        for y, z in zip(found, expected, strict=True):
            np.testing.assert_allclose(y, z, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "value", "new"),
    [
        ("dilation", 2, r"position=RelativePositionEmbedding\(scope=..., dilation=2\)"),
        ("map_size", 9, r"position=RelativePositionEmbedding\(scope=..., map_size=9\)"),
        ("resize", "interpolate", r"RelativePositionEmbedding\(.* resize='interpolate"),
        ("position_bias", True, r"RelativePositionEmbedding\(.* use_bias=True\)"),
        ("use_batch_norm", False, "batch_norm=False"),
    ],
)
def test_arguments_of_before_are_refused_with_the_new(name, value, new):
    with refused(f"^a lambda layer has no argument {name}; give .*{new}"):
        LambdaLayer(8, **{name: value})
    layer = LambdaLayer(8, **translate({"scope": 5, name: value}))
    found = layer.batch_norm
    if name != "use_batch_norm":
        found = getattr(layer.position, "use_bias" if value is True else name)
        assert layer.position.scope == 5
    assert found == value


def test_an_embedding_takes_the_sizes_of_its_layer():
    position = keras.layers.deserialize(
        keras.layers.serialize(translate({"dilation": 2})["position"])
    )
    assert (position.key_dim, position.num_lambdas) == (None, None)
    LambdaLayer(8, 2, 3, intra_depth=4, multi_head=True, position=position)
    sizes = position.key_dim, position.intra_depth, position.num_lambdas
    assert sizes == (3, 4, 2)
    with refused("key_dim of the position embedding must be 5 as in the layer, got 3"):
        LambdaLayer(8, 2, 5, intra_depth=4, multi_head=True, position=position)
