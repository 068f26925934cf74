# SPDX-License-Identifier: Apache-2.0
"""Training data from a tf.data service: other machines decode and change the images, as many as it takes.

A dispatcher and workers, which TensorFlow brings along, run beside the training; all of them see the data
under the same paths. The dispatcher deals out files (pictures, where they lie in folders) to the workers as
these ask for more: in each pass over the data every image is seen once, by one of them, and those of a
worker that is lost are not seen in that pass. An epoch of the training is a number of steps; passes follow
each other without a break, so that the two drift apart by what is on its way. The order depends on who is
faster and no seed repeats it: a run that goes on after an interruption begins a new pass.
Of pictures in folders, workers read JPEG, PNG and still WebP; others are named as bad records.
"""

import socket

import tensorflow as tf

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError
from lambdanet.training.data import preprocess
from lambdanet.training.data.bad_records import BadRecords, Example, grouped, readable
from lambdanet.training.data.shards import Share
from lambdanet.training.data.sources import Source

SCHEME = "grpc://"
JOB = "lambdanet"  # that the machines of a run share
SEEDS = 1 << 62
PATIENCE = 10  # seconds until it has to answer


def check(address: str, recipe: Recipe) -> None:
    """Sees that somebody answers at the address of a tf.data service, and that it can serve a recipe.

    Raises:
      InputError: it is no such address, nobody answers, or the recipe mixes in pseudo-labels.
    """
    host, _, port = address.removeprefix(SCHEME).rpartition(":")
    if not address.startswith(SCHEME) or not host or not port.isdigit():
        raise InputError(f"data_service is {address!r}; accepted: grpc://HOST:PORT, of a dispatcher")
    if recipe.num_pseudo_labels:
        raise InputError("data_service cannot mix in pseudo_labels; accepted: one of the two")
    try:  # for which TensorFlow would wait for ever
        socket.create_connection((host, int(port)), PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no tf.data service answers at {address!r} ({error}); accepted: the address of a dispatcher"
        ) from None


def batches(
    recipe: Recipe, source: Source, address: str, share: Share, bad_records: BadRecords
) -> tf.data.Dataset:
    """Returns batches without an end, prepared by a tf.data service: uint8 images and labels.

    Args:
      recipe: what is done to the images.
      source: of the images; its files lie under the same paths on the workers.
      address: of the dispatcher, grpc://HOST:PORT.
      share: of this machine: each takes what the others have not taken.
      bad_records: counts the images that cannot be read.

    Raises:
      InputError: as `check` does.
    """
    check(address, recipe)
    size = recipe.global_batch_size // share.replicas

    def prepare(example: Example, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return preprocess.for_training(source.image(example), recipe, seed), source.label(example)

    def with_seed(example: Example) -> tuple[Example, tf.Tensor]:
        return example, tf.random.uniform([2], maxval=SEEDS, dtype=tf.int64)

    examples = readable(source.stream(recipe.train_split)).repeat().map(with_seed)
    groups = grouped(examples, prepare, size, drop_remainder=True)
    options = tf.data.Options()
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    dealt = groups.with_options(options).apply(
        tf.data.experimental.service.distribute(
            tf.data.experimental.service.ShardingPolicy.DYNAMIC,
            address,
            job_name=JOB if share.count > 1 else None,
        )
    )
    some = dealt.filter(lambda group: tf.size(group["places"]) > 0)
    return bad_records.whole(some, size, recipe.num_classes)
