# SPDX-License-Identifier: Apache-2.0
"""The TensorFlow module of an exported network: pictures in, what its task makes of logits out."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import tensorflow as tf

from lambdanet.backend import keras
from lambdanet.core.errors import InputError, one_line
from lambdanet.models.preprocessing import Preprocessing
from lambdanet.training.data.image_bytes import decode
from lambdanet.training.data.task_outputs import Record

# In the folder of a SavedModel: the names of the classes among its assets, and the configuration and
# preprocessing of the network, whose weights are the first `model_variables`.
CLASS_NAMES = "class_names.txt"
NETWORK = "assets.extra/network.json"
# What TensorFlow and an export write in that folder.
FILES = ("saved_model.pb", "fingerprint.pb", "variables", "assets", "assets.extra")

Outputs = dict[str, tf.Tensor]  # of a signature


class ServingModule(tf.Module):
    """The base of modules that take raw pictures and return named classes.

    It holds the variables of a Keras model and traced functions, but no Keras object, so its SavedModel loads
    without Keras.

    Args:
      name: the name of the module.
      class_names: the class names, by number.
      class_names_file: a file with the names, one per line, to store in the SavedModel.
    """

    # Signature -> method.
    SIGNATURES: ClassVar[dict[str, str]] = {
        "serving_default": "serve_images",
        "serving_bytes": "serve_bytes",
    }

    def __init__(self, name: str, class_names: Sequence[str], class_names_file: str):
        super().__init__(name=name)
        self.class_names_file = tf.saved_model.Asset(class_names_file)
        self._names = list(class_names)

    @tf.function(input_signature=[])
    def class_names(self) -> tf.Tensor:
        """The names of all classes, by number."""
        return tf.constant(self._names)

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """Traces all functions, which saving would trace again otherwise, and returns the signatures."""
        for name in ("class_names", *self.SIGNATURES.values()):
            setattr(self, name, getattr(self, name).get_concrete_function())
        return {name: getattr(self, method) for name, method in self.SIGNATURES.items()}


class PictureModule(ServingModule):
    """A network that takes raw pictures and returns what its task makes of its logits.

    Args:
      model: a model from normalized float32 images [b, input_size, input_size, c] to logits [b, n], or where
        its task takes pictures of any size, as they are, from [b, h, w, c] to [b, h, w, n].
      preprocessing: the preprocessing of the pictures; a mean with one channel makes them gray.
      outputs: a `TaskOutputs`, with the names of the classes.
      class_names_file: as in `ServingModule`.
      record: what is read of the export by `read_record`.

    Raises:
      InputError: the model does not accept such images, or does not return one logit per class name.
    """

    def __init__(
        self,
        model: keras.Model,
        preprocessing: Preprocessing,
        outputs: Any,
        class_names_file: str,
        record: Record,
    ):
        super().__init__("classifier", outputs.class_names, class_names_file)
        self._outputs = outputs
        constants = {"task_record": json.dumps(record), **outputs.settings}
        for name, value in constants.items():
            function = tf.function(partial(tf.constant, value), input_signature=[])
            setattr(self, name, function.get_concrete_function())
        channels = len(preprocessing.mean)
        size = preprocessing.input_size
        sides = [None, None] if outputs.any_size else [size, size]
        self._input_shape = [*sides, channels]
        self._noise_shape = [2, size, size, channels]

        def prepare(images: tf.Tensor) -> tf.Tensor:
            images = tf.image.rgb_to_grayscale(images) if channels == 1 else images
            if outputs.any_size:
                return preprocessing.normalize(tf.cast(images, tf.float32) / 255.0)
            return preprocessing(images)

        self._prepare = prepare

        # The model is in this closure, because an attribute would become part of the SavedModel.
        @tf.function(
            input_signature=[tf.TensorSpec([None, *self._input_shape], tf.float32)]
        )
        def logits(images: tf.Tensor) -> tf.Tensor:
            return model(images, training=False)

        self._logits = self._checked(logits)
        # TensorFlow's, of the variables of Keras: first the weights, which are constants in part.
        weights = [weight.value for weight in model.weights]
        known = set(map(id, weights))
        others = [x for x in self._logits.variables if id(x) not in known]
        self.model_variables = [*weights, *others]

    def _checked(
        self, logits: tf.types.experimental.GenericFunction
    ) -> tf.types.experimental.ConcreteFunction:
        """Returns the trace of a function after a test of its output."""
        outputs = self._outputs
        num_logits = outputs.num_logits
        try:
            traced = logits.get_concrete_function()
        except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
            shape = ", ".join(map(str, self._input_shape))
            raise InputError(
                f"the model must accept images [b, {shape}]: {one_line(error)}"
            ) from error
        output = traced.structured_outputs
        sides = [None, None] if outputs.any_size else []
        if not tf.TensorShape([None, *sides, num_logits]).is_compatible_with(
            getattr(output, "shape", [])
        ):
            raise InputError(
                f"the output of the model must be logits [b, {num_logits}] for {num_logits} class names, "
                f"got {getattr(output, 'shape', output)}"
            )
        noise = tf.random.stateless_normal(self._noise_shape, seed=(0, 0))
        values = tf.cast(traced(noise), tf.float32)
        if not tf.reduce_all(tf.math.is_finite(values)):
            raise InputError(
                "the output of the model must be logits, got values that are not finite"
            )
        is_positive = tf.reduce_all(values >= 0)
        sums = tf.reduce_sum(values, -1)
        if num_logits and is_positive and tf.reduce_all(tf.abs(sums - 1) < 1e-3):
            raise InputError(
                "the output of the model must be logits, got probabilities, which sum to 1"
            )
        return traced

    def _serve(self, images: tf.Tensor) -> Outputs:
        # TensorFlow's oneDNN convolutions return a wrong shape for an empty batch.
        message = "there must be at least one image, got none"
        with tf.control_dependencies(
            [tf.debugging.Assert(tf.shape(images)[0] > 0, [message])]
        ):
            logits = self._logits(images)
        return self._outputs.serve(logits)

    @tf.function(
        input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8, name="images")],
        autograph=False,
    )
    def serve_images(self, images: tf.Tensor) -> Outputs:
        """uint8 images [b, h, w, 3] or [b, h, w, 1] -> the outputs of the task."""
        shape = tf.shape(images)
        message = [
            "images must have 3 channels, or 1 if they are gray, got the shape",
            shape,
        ]
        with tf.control_dependencies(
            [tf.debugging.Assert(tf.reduce_any(shape[-1] == [1, 3]), message)]
        ):
            images = tf.tile(images, [1, 1, 1, 3 // shape[-1]])
        return self._serve(
            self._prepare(tf.ensure_shape(images, [None, None, None, 3]))
        )

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")],
        autograph=False,
    )
    def serve_bytes(self, image_bytes: tf.Tensor) -> Outputs:
        """JPEG, PNG or WebP files [b] of any sizes -> the outputs of `serve_images`; see `decode`."""
        images = tf.map_fn(
            lambda contents: self._prepare(decode(contents)),
            image_bytes,
            fn_output_signature=tf.TensorSpec(self._input_shape, tf.float32),
        )
        return self._serve(images)
