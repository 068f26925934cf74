# SPDX-License-Identifier: Apache-2.0
"""Skips, counts and names images that cannot be decoded, up to a limit.

Examples are prepared in groups, and a group keeps its place in the data whatever fails in it. Its missing
images are known from the group itself, and no later group moves.
"""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lambdanet.core.errors import InputError, escape_unprintable, invalid

DEFAULT_LIMIT = 100
DEFAULT_SHARE = 0.1
# What macOS, Windows, NAS, ext4 and Python make, in small letters; names that begin with a dot are hidden.
OF_SYSTEMS = {
    *("__macosx", "icon\r"),
    *("$recycle.bin", "system volume information", "thumbs.db", "desktop.ini"),
    *("@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot"),
    *("lost+found", "__pycache__"),
}
PARALLEL_GROUPS = 2  # each prepares its images on all threads

# The fields are "name", of the picture or of the file with the record of that "number", and the fields that
# `image` and `label` of a `sources.Source` read.
Example = dict[str, tf.Tensor]
Pair = tuple[tf.Tensor, tf.Tensor]  # an image and its label, or those of a batch
# (example, key) -> (preprocessed image, label); a key is, for example, the place of the example.
Prepare = Callable[[Example, Any], Pair]


class Group(NamedTuple):
    """Examples that were prepared together."""

    # Of the valid examples in the group, in order, int64 [g]; a fallback's follow `size`.
    places: tf.Tensor
    images: tf.Tensor  # of the valid examples [g, ...]
    labels: tf.Tensor  # of the valid examples, [g] or [g, n]
    names: tf.Tensor  # of all examples in the group, string [size]


def prepare_in_groups(
    examples: tf.data.Dataset,
    prepare: Prepare,
    size: int,
    fallback: Callable[[Any], tf.data.Dataset] | None = None,
) -> tf.data.Dataset:
    """Prepares examples in groups, and leaves out those that fail.

    Args:
      examples: pairs of an example and its key.
      prepare: (example, key) -> (preprocessed image, label).
      size: the number of examples in a group.
      fallback: the keys of a group without valid examples -> a dataset of pairs that replace it. With it, a
        last group of fewer examples is left out.

    Returns:
      A dataset of `Group`s, without state and without Python.
    """
    prepare = tf.function(prepare, autograph=False)  # traced once for two datasets

    @tf.autograph.experimental.do_not_convert
    def prepare_group(group: Example, keys: Any) -> tf.data.Dataset:
        pairs = tf.data.Dataset.from_tensor_slices((group, keys))
        valid = _prepare_valid(pairs, prepare, 0, size)
        candidates = [valid]
        if fallback:
            # Made only where it is read.
            others = tf.data.Dataset.from_tensors((keys,)).flat_map(fallback)
            candidates.append(_prepare_valid(others, prepare, size, size))
        candidates.append(zeros_of(valid.element_spec))  # no examples
        names = names_of(group)
        # Each candidate has one element, or none where all of its examples fail.
        first = functools.reduce(tf.data.Dataset.concatenate, candidates).take(1)
        return first.map(
            lambda places, images, labels: Group(places, images, labels, names)
        )

    return examples.batch(size, drop_remainder=fallback is not None).interleave(
        prepare_group,
        PARALLEL_GROUPS,
        num_parallel_calls=PARALLEL_GROUPS,
        deterministic=True,
    )


def names_of(group: Example) -> tf.Tensor:
    """Returns the name of an example, or the names of a group; a record has its number after its file."""
    if "number" not in group:
        return group["name"]
    return tf.strings.join([group["name"], tf.strings.as_string(group["number"])], ":")


def zeros_of(element_spec: Any) -> tf.data.Dataset:
    """Returns one element of zeros; a side that is not known is 0."""
    zeros = []
    for spec in element_spec:
        sides = [side or 0 for side in spec.shape]
        zeros.append(tf.zeros(sides, spec.dtype))
    return tf.data.Dataset.from_tensors(tuple(zeros))


def _prepare_valid(
    pairs: tf.data.Dataset, prepare: Prepare, first: int, size: int
) -> tf.data.Dataset:
    """Returns one element of the places, images and labels of valid examples; none where all fail."""
    places = tf.data.Dataset.range(first, first + size)
    numbered = tf.data.Dataset.zip((places, pairs))  # `enumerate` takes a millisecond
    prepared = numbered.map(
        lambda n, pair: (n, *prepare(*pair)), tf.data.AUTOTUNE, deterministic=True
    )
    return prepared.ignore_errors().batch(size)


def is_of_system(path: str) -> bool:
    """Returns whether a file or folder is one that an operating system, a NAS or Python makes by itself."""
    return os.path.basename(path).casefold() in OF_SYSTEMS


def describe_left_out(folder: str, files: Sequence[str], total: int) -> str:
    """Returns a line on the files in a folder that are no pictures, with an example."""
    heic = any(file.lower().endswith((".heic", ".heif")) for file in files)
    hint = " (HEIC has to be converted, to JPEG for example)" if heic else ""
    return f"{len(files)} of {total} files in {folder!r} are no pictures, such as {files[0]!r}{hint}"


def check_number(names: Sequence[str], limit: int) -> None:
    """Raises `InputError` for more names of bad records than a limit."""
    if len(names) > limit:
        last = escape_unprintable(names[-1])
        raise InputError(
            f"{len(names)} records cannot be read, the last of them {last}; max_bad_records is {limit}"
        )


class BadRecords:
    """Counts and prints the records that were skipped.

    Args:
      limit: the number of different records to skip, and of files that are no pictures to leave out, before
        the run ends; None: `DEFAULT_LIMIT`, and `DEFAULT_SHARE` of the files in each folder.

    Attributes:
      names: the names of the skipped records.

    Example:
      >>> bad = BadRecords(limit=10)
      >>> batches = bad.full_batches(prepare_in_groups(examples, decode, 32), 32, num_classes=10)
    """

    def __init__(self, limit: int | None = None):
        if limit is not None and limit < 0:
            raise invalid("max_bad_records", "an integer from 0", limit)
        self.limit = DEFAULT_LIMIT if limit is None else limit
        self.names: list[str] = []
        self._max_files = limit
        self._left_out: dict[str, int] = {}  # by folder
        self._problem = ""
        self._lock = threading.Lock()

    def full_batches(
        self, groups: tf.data.Dataset, size: int, num_classes: int
    ) -> tf.data.Dataset:
        """Returns the images and labels of groups; a valid example takes the place of each bad one.

        An integer label that is not below `num_classes` ends the run.
        """

        def fill(group: Group) -> Pair:
            images, labels = self._checked(group, num_classes, nonempty=True)
            count = tf.size(group.places)

            def repeat_some() -> Pair:
                slots = tf.range(size) % tf.maximum(count, 1)
                places = tf.cast(group.places, tf.int32)[:, tf.newaxis] % size
                slots = tf.tensor_scatter_nd_update(slots, places, tf.range(count))
                return tf.gather(images, slots), tf.gather(labels, slots)

            full = tf.cond(count < size, repeat_some, lambda: (images, labels))
            return tuple(
                tf.ensure_shape(field, [size, *field.shape[1:]]) for field in full
            )

        return groups.map(fill, tf.data.AUTOTUNE)

    def valid_only(self, groups: tf.data.Dataset, num_classes: int) -> tf.data.Dataset:
        """Returns the images and labels of groups without the bad ones; labels as in `full_batches`."""
        checked = groups.map(
            lambda group: self._checked(group, num_classes), tf.data.AUTOTUNE
        )
        return checked.filter(lambda images, labels: tf.shape(labels)[0] > 0)

    def leave_out(self, *folders: tuple[str, Sequence[str], int]) -> None:
        """Prints the files in folders that are no pictures, once per folder.

        What systems make by themselves (`is_of_system`) does not count towards the limit.

        Args:
          *folders: of each the path, the files in it that are left out, and the number of all its files.

        Raises:
          InputError: there are too many such files.
        """
        new = {}
        for path, files, total in folders:
            if files and path not in self._left_out:
                new[path] = (files, total)
        for path, (files, _) in new.items():
            self._left_out[path] = sum(not is_of_system(file) for file in files)
        count = sum(self._left_out.values())
        for path, (files, total) in new.items():
            found = describe_left_out(path, files, total)
            too_many = self._left_out[path] > DEFAULT_SHARE * total
            if self._max_files is not None:
                too_many = count > self._max_files
            if too_many:
                raise InputError(
                    f"{found}; --max_bad_records={count} or more leaves them out"
                )
            print(f"left out: {found}", flush=True)

    def skip(self, name: str) -> None:
        """Counts a record, and prints its name unless that was done before; `InputError` above the limit."""
        if name in self.names:
            return  # in an earlier epoch
        self.names.append(name)
        count = len(self.names)
        print(
            f"skipped {escape_unprintable(name)}: it cannot be read "
            f"({count} of at most {self.limit} bad records)",
            flush=True,
        )
        check_number(self.names, self.limit)

    @contextlib.contextmanager
    def as_input_errors(self) -> Iterator[None]:
        """Raises the `InputError` of a bad record again, where TensorFlow turned it into its own error."""
        try:
            yield
        except tf.errors.OpError:
            if self._problem:
                raise InputError(self._problem) from None
            raise

    def _checked(self, group: Group, num_classes: int, nonempty: bool = False) -> Pair:
        """Reports the bad records of a group, then returns its images and labels.

        With `nonempty`, a group without valid examples ends the run.
        """
        places, images, labels, names = group
        wrong = tf.zeros([0], tf.int64)
        if labels.dtype.is_integer and labels.shape.rank == 1:
            wrong = tf.where((labels < 0) | (labels >= num_classes))[:, 0]

        def report() -> tf.Operation:
            arguments = [places, names, wrong, tf.gather(labels, wrong), nonempty]
            return tf.group(
                tf.numpy_function(self._report, arguments, [], stateful=True)
            )

        num_valid = tf.math.count_nonzero(places < tf.size(names, tf.int64))
        is_bad = (num_valid < tf.size(names, tf.int64)) | (tf.size(wrong) > 0)
        with tf.control_dependencies([tf.cond(is_bad, report, tf.no_op)]):
            return tf.identity(images), tf.identity(labels)

    def _report(
        self,
        places: np.ndarray,
        names: np.ndarray,
        wrong: np.ndarray,
        labels: np.ndarray,
        nonempty: bool,
    ) -> None:
        """Skips the bad records of a group; of its images, `wrong` have `labels` outside of the classes."""
        with self._lock:
            try:
                if self._problem:
                    raise InputError(self._problem)
                for name in np.delete(names, places[places < len(names)]).tolist():
                    self.skip(name.decode(errors="replace"))
                if nonempty and not len(places):
                    raise InputError(
                        f"none of the {len(names)} images of a batch can be read"
                    )
                if len(wrong):
                    place = min(places[wrong[0]], len(names))
                    name = np.append(names, b"of a fallback")[place]
                    name = name.decode(errors="replace")
                    accepted = "the number of a class, from 0 on"
                    raise invalid(f"label of record {name!r}", accepted, int(labels[0]))
            except InputError as error:
                self._problem = str(error)
                raise
