# SPDX-License-Identifier: Apache-2.0
"""Masks on the roads of Keras, on the backend of this process: a table of roads, kinds of masks and layers.

The right values are those of the layer alone, called with the masks as arguments.
"""

import itertools
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from fuzzing import pairwise
from helpers import reloaded
from keras import Input, Model, layers
from naive_layers import by_reference, images
from refusals import refused

import lambdanet
from lambdanet import LambdaLayer
from lambdanet import backend as K
from lambdanet.backend import compat
from lambdanet.core.errors import InputError
from lambdanet.explain import implied_attentions

# No size tells examples, queries and context positions apart.
SIZE = 6
POSITIONS = np.arange(SIZE)
VISIBLE = POSITIONS < (SIZE - POSITIONS)[:, np.newaxis]
X = np.where(VISIBLE[..., np.newaxis], images(SIZE, SIZE, 4), 0)
PADDING = np.roll(VISIBLE, 2, axis=1)
BAND = np.abs(POSITIONS - POSITIONS[:, np.newaxis]) < 3
EXAMPLES = np.random.default_rng(0).random([SIZE, SIZE, SIZE]) < 0.7
# Whether Keras has a padding mask, and the arguments of a call.
KINDS = {
    "keras": (True, {}),
    "padding": (False, {"padding_mask": PADDING}),
    "both paddings": (True, {"padding_mask": PADDING}),
    "band": (False, {"attention_mask": BAND}),
    "band and padding": (True, {"attention_mask": BAND}),
    "examples": (False, {"attention_mask": EXAMPLES}),
    "all": (True, {"attention_mask": EXAMPLES, "padding_mask": PADDING}),
}
LAYERS = {
    "plain": {},
    "causal": {"causal": True},
    "strides": {"strides": 2},
    "pool": {"strides": 2, "pool_size": 3},
}


class Pick(layers.Layer):
    def call(self, inputs):
        return inputs["x"]


class Own(keras.Model):
    """A model of code, which passes the mask of a tensor once more, as `mask`."""

    def __init__(self, layer, is_masked, arguments):
        super().__init__()
        self.masking = layers.Masking(0.0 if is_masked else np.inf)
        self.layer = layer
        self.arguments = arguments

    def call(self, x):
        x = self.masking(x)
        return self.layer(x, **{"mask": compat.mask_of(x), **self.arguments})


def masked(x, is_masked):
    return layers.Masking()(x) if is_masked else x


def functional(layer, is_masked, arguments):
    inputs = Input([SIZE, 4])
    return Model(inputs, layer(masked(inputs, is_masked), **arguments))


def with_inputs_for_masks(layer, is_masked, arguments):
    x = Input([SIZE, 4])
    values = dict(arguments)
    if "attention_mask" in values:
        mask = values["attention_mask"]
        values["attention_mask"] = np.broadcast_to(mask, [SIZE, *mask.shape[-2:]])
    masks = {name: Input(mask.shape[1:]) for name, mask in values.items()}
    visible = {name: mask > 0 for name, mask in masks.items()}
    model = Model([x, masks], layer(masked(x, is_masked), **visible))
    return model([X, values])


def cut(layer, is_masked, arguments):
    """The part of a model after the layer that made the mask."""
    x = masked(Input([SIZE, 4]), is_masked)
    return Model(x, layer(x, **arguments))(masked(K.convert_to_tensor(X), is_masked))


def nested(layer, is_masked, arguments):
    return functional(functional(layer, False, arguments), is_masked, {})(X)


def called_alone(layer, is_masked, arguments):
    """By `call`, past the checks of Keras and of the layer."""
    x = masked(K.convert_to_tensor(X), is_masked)
    return layer.call(x, **arguments)


def cloned(*case):
    model = functional(*case)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    return clone(X)


def exported(*case):
    model = functional(*case)
    model.export("exported", verbose=False)
    loaded = tf.saved_model.load("exported")
    return loaded.serve(X)


def explained(layer, *case):
    return implied_attentions(functional(layer, *case), X)[layer.name].outputs()


ROADS = {
    "functional": lambda *case: functional(*case)(X),
    "compiled": lambda *case: functional(*case).predict(X, verbose=0),
    "inputs": with_inputs_for_masks,
    "cut": cut,
    "nested": nested,
    "own model": lambda *case: Own(*case)(X),
    "own model, compiled": lambda *case: Own(*case).predict(X, verbose=0),
    "call": called_alone,
    "cloned": cloned,
    "saved": lambda *case: reloaded(functional(*case), Path())(X),
    "for inference": lambda *case: lambdanet.for_inference(functional(*case))(X),
    "explained": explained,
    "reference": lambda layer, *case: functional(by_reference(layer), *case)(X),
}
if K.ENGINE == "tensorflow":
    ROADS["exported"] = exported


def in_steps(layer, length):
    inputs = Input([length, SIZE, 4])
    y = layers.TimeDistributed(layer)(masked(inputs, True))
    steps = np.stack([X, X[::-1]], axis=1)
    return Model(inputs, y).predict(steps, verbose=0)[:, 0]


def without_state(layer, *_):
    variables = layer.trainable_variables, layer.non_trainable_variables
    outputs, _ = layer.stateless_call(*variables, masked(X, True))
    return outputs


# Of Keras's mask alone.
KERAS_ROADS = {
    "sequential": lambda layer, *_: keras.Sequential([layers.Masking(), layer])(X),
    # Keras calls layer by layer where the input is a dict.
    "sequential by code": lambda layer, *_: keras.Sequential(
        [Pick(), layers.Masking(), layer]
    )({"x": X}),
    "steps": lambda layer, *_: in_steps(layer, 2),
    "any steps": lambda layer, *_: in_steps(layer, None),
    "call with a mask": lambda layer, *_: layer.call(
        K.convert_to_tensor(X), mask=K.convert_to_tensor(VISIBLE)
    ),
    "stateless_call": without_state,
}
CASES = pairwise(list(ROADS), list(KINDS), list(LAYERS))
CASES += itertools.product(KERAS_ROADS, ["keras"], LAYERS)


def expected_of(layer, is_masked, arguments):
    """The layer alone, with a padding mask that hides what either hides."""
    padding = arguments.get("padding_mask", np.ones_like(VISIBLE))
    padding = padding & VISIBLE if is_masked else padding
    return layer(X, **{**arguments, "padding_mask": padding})


def assert_equal(found, expected):
    found = K.convert_to_numpy(found)
    expected = K.convert_to_numpy(expected).reshape(found.shape)
    np.testing.assert_allclose(found, expected, atol=1e-5)


# Of a model that is called with a mask; its layers have it.
@pytest.mark.filterwarnings("ignore:Layer 'functional:UserWarning")
@pytest.mark.parametrize(("road", "kind", "layer"), CASES)
def test_masks_on_roads(road, kind, layer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    is_masked, arguments = KINDS[kind]
    options = LAYERS[layer]
    if "attention_mask" in arguments:
        options = {**options, "pool_size": 1}
        mask = arguments["attention_mask"][..., :: options.get("strides", 1), :]
        arguments = {**arguments, "attention_mask": mask}
    layer = LambdaLayer(8, 2, scope=5, **options)
    layer.build(X.shape)
    found = {**ROADS, **KERAS_ROADS}[road](layer, is_masked, arguments)
    assert_equal(found, expected_of(layer, is_masked, arguments))


@pytest.mark.parametrize("count", [3, SIZE])
@pytest.mark.parametrize("kind", ["keras", "padding", "both paddings"])
def test_masks_of_chunks(kind, count):
    is_masked, arguments = KINDS[kind]
    multi_head = count == SIZE
    layer = LambdaLayer(
        8, 2, scope=5, causal=True, intra_depth=2, multi_head=multi_head
    )
    layer.build(X.shape)
    state = layer.initial_state(SIZE)
    outputs = []
    for chunk in np.split(POSITIONS, count):
        x = masked(X[:, chunk], is_masked)
        masks = {name: mask[:, chunk] for name, mask in arguments.items()}
        y, state = layer(x, **masks, initial_state=state, return_state=True)
        outputs.append(K.convert_to_numpy(y))
    assert_equal(
        np.concatenate(outputs, axis=1), expected_of(layer, is_masked, arguments)
    )


@pytest.mark.parametrize(
    "before",
    [
        layers.Bidirectional(layers.GRU(4, return_sequences=True)),
        layers.BatchNormalization(),
        lambdanet.ChannelAffine(),
        lambdanet.StochasticDepth(0.1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_before_pass_the_mask_on(before):
    layer = LambdaLayer(8, 2, scope=5)
    inputs = Input([SIZE, 4])
    x = before(masked(inputs, True), training=False)
    model = Model(inputs, layer(x))
    expected = layer(Model(inputs, x)(X), padding_mask=VISIBLE)
    assert_equal(model.predict(X, verbose=0), expected)
    assert_equal(lambdanet.for_inference(model)(X), expected)


def test_mask_of_images_is_refused_in_steps():
    """Also where Keras calls the layer past the checks of `__call__`."""
    x = layers.Masking()(np.ones([2, 3, 4, 2, 4], "float32"))
    message = r"mask must be of the shape \[b, m\] = \[2, 8\]"
    for mask in (compat.mask_of(x), np.ones([2, 3], bool)):
        with pytest.raises(InputError, match=message):
            layers.TimeDistributed(LambdaLayer(8, scope=3))(x, mask=mask)


WORDS = np.where(VISIBLE, 1 + POSITIONS % 4, 0)
OTHERS = np.where(PADDING, 1 + POSITIONS % 3, 0)


def call_by_masks(call, layer, x, context):
    """Calls a layer with the padding masks that Keras keeps with tensors."""
    if call == "context":
        return layer(x, context=context)
    outputs, _ = layer(x, return_state=True)
    return outputs


@pytest.mark.parametrize("way", ["eager", "functional", "saved"])
@pytest.mark.parametrize("call", ["context", "state"])
def test_embeddings_mask_calls(call, way, tmp_path):
    embedding = layers.Embedding(5, 4, mask_zero=True)
    layer = LambdaLayer(8, 2, scope=5, causal=call == "state")
    layer.build(X.shape)

    def compute(words, others):
        return call_by_masks(call, layer, embedding(words), embedding(others))

    arrays = [WORDS, OTHERS]
    if way == "eager":
        found = compute(*map(K.convert_to_tensor, arrays))
    else:
        inputs = [Input(x.shape[1:], dtype="int32") for x in arrays]
        model = Model(inputs, compute(*inputs))
        if way == "saved":
            model = reloaded(model, tmp_path)
        found = model(arrays)
    x, context = (K.convert_to_numpy(embedding(words)) for words in (WORDS, OTHERS))
    if call == "context":
        expected = layer(x, context=context, padding_mask=PADDING)
    else:
        expected = layer(x, padding_mask=VISIBLE)
    assert_equal(found, expected)


@pytest.mark.parametrize(
    ("x", "mask"),
    [
        (X[:2], BAND),
        (X[:2], EXAMPLES[:2]),
        (X, BAND),
        (X, EXAMPLES),
        (
            Input([SIZE, 4]),
            Input(batch_shape=BAND.shape, dtype="bool"),
        ),
    ],
)
def test_masks_of_pairs_given_as_keras_masks_are_refused(x, mask):
    """Also where n = b, so that a mask [n, m] has the shape of a padding mask."""
    layer = LambdaLayer(8, 2, scope=5)
    with refused("^mask must be .*; attention_mask is what each query sees"):
        layer(x, mask=mask)


def test_a_mask_of_a_caller_is_that_of_keras():
    layer = LambdaLayer(8, 2, scope=5)
    x = X[:2]
    expected = layer(x, padding_mask=VISIBLE[:2])
    assert_equal(layer(x, mask=VISIBLE[:2]), expected)
    inputs = Input([SIZE, 4]), Input([SIZE], dtype="bool")
    model = Model(inputs, layer(inputs[0], mask=inputs[1]))
    # As many examples as queries are fine here: the caller of the layer is the model.
    assert_equal(model([X, VISIBLE])[:2], expected)
    ((_, _, kwargs, _),) = compat.layer_calls(model)
    assert kwargs.keys() == {"mask"}
