# SPDX-License-Identifier: Apache-2.0
"""Class names and the most probable classes."""

import numpy as np
import pytest
import tensorflow as tf

import lambdanet
from lambdanet.errors import InputError

NAMES = ["cat", "dog", "bird"]


def test_names_of_imagenet():
    names = lambdanet.class_names("lambda_resnet50ts", "a1h_in1k")
    assert (len(names), names[0], names[207], names[999]) == (
        1000,
        "tench",
        "golden retriever",
        "toilet tissue",
    )
    with pytest.raises(InputError, match="unknown model with published weights 'lambda_resnet_50'"):
        lambdanet.class_names("lambda_resnet_50")
    with pytest.raises(InputError, match="unknown set of weights of lambda_resnet50ts 'mine'"):
        lambdanet.class_names("lambda_resnet50ts", "mine")


def test_most_probable_classes_come_first():
    """e^(ln 6), e^(ln 3), e^0 share one in the ratio 6:3:1, also with a large constant added."""
    row = np.log([3.0, 1.0, 6.0])
    for logits in ([row, row + 1000], tf.constant([row, row + 1000])):
        first, second = lambdanet.decode_predictions(logits, NAMES, top=2)
        assert [name for name, _ in first] == ["bird", "cat"]
        np.testing.assert_allclose([probability for _, probability in first], [0.6, 0.3], rtol=1e-6)
        np.testing.assert_allclose([p for _, p in first], [p for _, p in second], rtol=1e-6)
    assert lambdanet.decode_predictions([[0.0, 0.0, -1.0]], NAMES)[0][1][0] == "dog"  # all three, in order
    logits = np.zeros([1, 1000])
    logits[0, 207] = 50
    assert lambdanet.decode_predictions(logits)[0][0][0] == "golden retriever"


def test_names_may_be_an_array():
    (((name, _),),) = lambdanet.decode_predictions([[0.0, 2.0, 1.0]], np.array(NAMES), top=1)
    assert name == NAMES[1]


@pytest.mark.parametrize(
    ("logits", "arguments", "message"),
    [
        ([1.0, 2.0, 3.0], {}, r"the shape of logits must be \[b, 3\], one per class name, got \(3,\)"),
        ([[1.0, 2.0]], {}, r"got \(1, 2\)"),
        ([[1.0, np.nan, 0.0]], {}, "logits must be finite, got NaN or infinity"),
        ([[0.2, 0.3, 0.5]], {}, "must be what precedes a softmax, got probabilities, which sum"),
        ([["cat", "dog", "bird"]], {}, r"logits must be a matrix of numbers, got \[\['cat'"),
        ([[1.0], [2.0, 3.0]], {}, "logits must be a matrix of numbers, got"),
        ([[1.0, 2.0, 3.0]], {"top": 0}, "top must be a positive integer, got 0"),
    ],
)
def test_what_is_not_decoded(logits, arguments, message):
    with pytest.raises(InputError, match=message):
        lambdanet.decode_predictions(logits, NAMES, **arguments)
