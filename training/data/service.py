# SPDX-License-Identifier: Apache-2.0
"""Training data from a tf.data service: other machines decode and augment the images.

A dispatcher and its workers, which are part of TensorFlow, run beside the training and read the data under
the same paths. The dispatcher hands out files (pictures, where those are the files) as workers become free:
in each pass over the data one worker reads each image, and the images of a worker that fails are missing from
that pass. Passes follow each other without a break, whereas an epoch of training is a number of steps, so the
two drift apart by the images in transit. The order depends on the speed of the workers and cannot be
repeated: a resumed run begins a new pass. Of pictures in folders, workers read JPEG, PNG and still WebP;
others count as bad records.
"""

import tensorflow as tf

from lambdanet.configs.recipe import Recipe
from lambdanet.errors import invalid
from lambdanet.training.data import preprocess
from lambdanet.training.data.bad_records import BadRecords, Example, drop_unreadable, prepare_in_groups
from lambdanet.training.data.batches import repeat_each
from lambdanet.training.data.network import SCHEME, check_reachable
from lambdanet.training.data.shards import Shard
from lambdanet.training.data.sources import Source

JOB = "lambdanet"  # shared by the machines of a run


def check_service(address: str, recipe: Recipe) -> None:
    """Checks that a tf.data service answers, and that it can serve a recipe.

    Raises:
      InputError: it is no such address, no server answers, or the recipe mixes in pseudo-labels.
    """
    host, _, port = address.removeprefix(SCHEME).rpartition(":")
    accepted = "grpc://HOST:PORT, the address of a dispatcher"
    if not address.startswith(SCHEME) or not host or not port.isdigit():
        raise invalid("data_service", accepted, address)
    if recipe.num_pseudo_labels:
        raise invalid("data_service", "empty with pseudo_labels, which it cannot mix in", address)
    try:
        check_reachable(address)
    except OSError as error:
        raise invalid("data_service", accepted, address, f"no server answers: {error}") from None


def batches(
    recipe: Recipe, source: Source, address: str, shard: Shard, bad_records: BadRecords
) -> tf.data.Dataset:
    """Returns endless batches of uint8 images and labels, prepared by a tf.data service.

    Args:
      recipe: the augmentation and the batch size.
      source: the images; their files have the same paths on the workers.
      address: the address of the dispatcher, grpc://HOST:PORT.
      shard: this machine; each reads what the others have not read.
      bad_records: the count of unreadable images.

    Raises:
      InputError: as `check_service` does.
    """
    check_service(address, recipe)
    size = recipe.global_batch_size // shard.replicas

    def prepare(example: Example, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return preprocess.for_training(source.image(example), recipe, seed), source.label(example)

    def with_seed(example: Example) -> tuple[Example, tf.Tensor]:
        return example, tf.random.uniform([2], maxval=1 << 62, dtype=tf.int64)

    split = recipe.train_split
    read = drop_unreadable(source.stream(split), source.num_examples(split)).repeat()
    examples = repeat_each(read, recipe.repeated_augmentation).map(with_seed)
    groups = prepare_in_groups(examples, prepare, size, drop_remainder=True)
    options = tf.data.Options()
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    dealt = groups.with_options(options).apply(
        tf.data.experimental.service.distribute(
            tf.data.experimental.service.ShardingPolicy.DYNAMIC,
            address,
            job_name=JOB if shard.count > 1 else None,
        )
    )
    nonempty = dealt.filter(lambda group: tf.size(group.places) > 0)
    return bad_records.full_batches(nonempty, size, recipe.num_classes)
