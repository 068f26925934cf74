# SPDX-License-Identifier: Apache-2.0
"""Images that cannot be decoded are skipped, counted and named, up to a limit.

Examples are prepared in groups, each of which keeps its place whatever fails in it: what a group lacks is
then known, and no later group moves. A group is a dictionary:

    places  int64 [g]        which of the group's examples are good, in order
    images  [g, ...]         theirs
    labels  [g] or [g, n]    theirs
    names   string [size]    of all examples of the group
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lambdanet.errors import InputError

DEFAULT_LIMIT = 100
DEFAULT_SHARE = 0.1
UNKNOWN = "a record whose file is damaged"
AT_A_TIME = 2  # groups that are prepared; within one, images are, by as many threads as there are

Example = dict[str, tf.Tensor]  # with "name", and perhaps its "number" in the file of that name
# An example and what tells it from others, such as its place -> its image as a model takes it, and its label.
Prepare = Callable[[Example, Any], tuple[tf.Tensor, tf.Tensor]]
Group = dict[str, tf.Tensor]


def readable(examples: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the examples without those that a damaged file lacks.

    They are numbered on the way: what TFDS reads from a damaged file else fails for ever, and never ends.
    """
    return examples.enumerate().ignore_errors().map(lambda number, example: example)


def filled_up(examples: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Returns as many examples as there should be; for those that a damaged file lacks, `UNKNOWN`."""
    blank = {
        key: tf.constant(UNKNOWN) if key == "name" else tf.zeros(spec.shape, spec.dtype)
        for key, spec in examples.element_spec.items()
    }
    return readable(examples).concatenate(tf.data.Dataset.from_tensors(blank).repeat()).take(count)


def grouped(
    examples: tf.data.Dataset,
    prepare: Prepare,
    size: int,
    drop_remainder: bool = False,
    instead: Callable[[Any], tf.data.Dataset] | None = None,
) -> tf.data.Dataset:
    """Returns the examples in groups, prepared as far as that is possible. It holds no state and no Python.

    Args:
      examples: pairs, the second of which tells an example from others.
      prepare: what may fail.
      size: examples in a group.
      drop_remainder: whether the last group has to be whole.
      instead: gives other pairs in the place of a group in which nothing is good, from the second of its
      pairs.
    """

    @tf.autograph.experimental.do_not_convert
    def attempt(group: Example, keys: Any) -> tf.data.Dataset:
        def prepared(pairs: tf.data.Dataset) -> tf.data.Dataset:
            def one(place: tf.Tensor, pair: tuple[Example, Any]) -> tuple[tf.Tensor, ...]:
                return place, *prepare(*pair)

            good = pairs.enumerate().map(one, tf.data.AUTOTUNE, deterministic=True).ignore_errors()
            return good.batch(size).map(lambda *fields: (*fields, names))

        names = group["name"]
        if "number" in group:  # of a record in the file of that name
            names = tf.strings.join([names, tf.strings.as_string(group["number"])], ":")
        good = prepared(tf.data.Dataset.from_tensor_slices((group, keys)))
        _, images, labels, _ = good.element_spec
        nothing = tuple(tf.zeros([0, *spec.shape[1:]], spec.dtype) for spec in (images, labels))
        last = tf.data.Dataset.from_tensors((tf.zeros([0], tf.int64), *nothing, names))
        others = prepared(instead(keys)).concatenate(last) if instead else last
        return good.concatenate(others).take(1)

    groups = examples.batch(size, drop_remainder).interleave(
        attempt, AT_A_TIME, num_parallel_calls=AT_A_TIME, deterministic=True
    )
    return groups.map(
        lambda places, images, labels, names: {
            "places": places,
            "images": images,
            "labels": labels,
            "names": names,
        }
    )


def describe_left_out(folder: str, files: Sequence[str], total: int) -> str:
    """Says how many of the files in a folder are no pictures, with an example."""
    return f"{len(files)} of {total} files in {folder!r} are no pictures, such as {files[0]!r}"


class BadRecords:
    """Counts the records that were skipped, and says which they are.

    Args:
      limit: how many different ones are skipped before the run ends, and how many files are left out that are
        no pictures; None: `DEFAULT_LIMIT`, and `DEFAULT_SHARE` of the files of each folder.

    Attributes:
      names: of those that were skipped.

    Example:
      >>> bad = BadRecords(limit=10)
      >>> images_and_labels = bad.whole(grouped(examples, decode, 32), 32, num_classes=10)
    """

    def __init__(self, limit: int | None = None):
        if limit is not None and limit < 0:
            raise InputError(f"max_bad_records is {limit}; accepted: an integer from 0 on")
        self.limit = DEFAULT_LIMIT if limit is None else limit
        self.names: list[str] = []
        self._allowed = limit
        self._left_out: dict[str, int] = {}  # by folder
        self._problem = ""
        self._lock = threading.Lock()

    def whole(self, groups: tf.data.Dataset, size: int, num_classes: int) -> tf.data.Dataset:
        """Returns the images and labels of groups, in which others come twice for those that are bad.

        Args:
          groups: of `grouped`.
          size: of every group.
          num_classes: an integer label outside of them ends the run.
        """

        def fill(group: Group) -> tuple[tf.Tensor, tf.Tensor]:
            images, labels = self._told(group, num_classes, some=True)
            count = tf.size(group["places"])

            def some_twice() -> tuple[tf.Tensor, tf.Tensor]:
                slots = tf.range(size) % tf.maximum(count, 1)
                places = tf.cast(group["places"], tf.int32)[:, tf.newaxis]
                slots = tf.tensor_scatter_nd_update(slots, places, tf.range(count))
                return tf.gather(images, slots), tf.gather(labels, slots)

            images, labels = tf.cond(count < size, some_twice, lambda: (images, labels))
            return tf.ensure_shape(images, [size, *images.shape[1:]]), tf.ensure_shape(
                labels, [size, *labels.shape[1:]]
            )

        return groups.map(fill, tf.data.AUTOTUNE)

    def good(self, groups: tf.data.Dataset, num_classes: int) -> tf.data.Dataset:
        """Returns the images and labels of groups, without those that are bad, as `whole` does."""
        told = groups.map(lambda group: self._told(group, num_classes), tf.data.AUTOTUNE)
        return told.filter(lambda images, labels: tf.shape(labels)[0] > 0)

    def leave_out(self, *folders: tuple[str, Sequence[str], int]) -> None:
        """Names the files of folders that are no pictures, of each folder once.

        Args:
          *folders: the path of each, the files in it that are left out, and the number of all files.

        Raises:
          InputError: they are too many.
        """
        new = [folder for folder in folders if folder[1] and folder[0] not in self._left_out]
        self._left_out |= {path: len(files) for path, files, _ in new}
        count = sum(self._left_out.values())
        for path, files, total in new:
            found = describe_left_out(path, files, total)
            if count > self._allowed if self._allowed is not None else len(files) > DEFAULT_SHARE * total:
                raise InputError(f"{found}; --max_bad_records={count} or more leaves them out")
            print(f"left out: {found}", flush=True)

    def skip(self, name: str) -> None:
        """Counts a record, and names it unless it came before.

        Raises:
          InputError: it is one too many.
        """
        if name in self.names and name != UNKNOWN:
            return  # in an earlier epoch
        self.names.append(name)
        count = len(self.names)
        print(f"skipped {name}: it cannot be read ({count} of at most {self.limit} bad records)", flush=True)
        if count > self.limit:
            raise InputError(
                f"{count} records cannot be read, the last of them {name}; accepted: max_bad_records, which "
                f"is {self.limit}"
            )

    @contextlib.contextmanager
    def ending_runs(self) -> Iterator[None]:
        """Turns the error that TensorFlow makes of a record that ends the run into an `InputError`."""
        try:
            yield
        except tf.errors.OpError:
            if self._problem:
                raise InputError(self._problem) from None
            raise

    def _told(self, group: Group, num_classes: int, some: bool = False) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the images and labels of a group, `some` at least, once what is wrong with it is told."""
        labels, names, places = group["labels"], group["names"], group["places"]
        wrong = tf.zeros([0], tf.int32)
        if labels.dtype.is_integer:
            wrong = tf.where((labels < 0) | (labels >= num_classes))[:, 0]
        missing = tf.size(places) < tf.size(names)

        def report() -> tf.Operation:
            if labels.dtype.is_integer:
                of_no_class = [tf.gather(names, tf.gather(places, wrong)), tf.gather(labels, wrong)]
            else:
                of_no_class = [tf.zeros([0], tf.string), tf.zeros([0], tf.int64)]
            return tf.group(
                tf.numpy_function(self._report, [places, names, *of_no_class, some], [], stateful=True)
            )

        with tf.control_dependencies([tf.cond(missing | (tf.size(wrong) > 0), report, tf.no_op)]):
            return tf.identity(group["images"]), tf.identity(labels)

    def _report(
        self, places: np.ndarray, names: np.ndarray, of_no_class: np.ndarray, labels: np.ndarray, some: bool
    ) -> None:
        with self._lock:
            try:
                if self._problem:
                    raise InputError(self._problem)
                for name in np.delete(names, places).tolist():
                    self.skip(name.decode(errors="replace"))
                if some and not len(places):
                    raise InputError(f"none of the {len(names)} images of a batch can be read")
                for name, label in zip(of_no_class.tolist(), labels.tolist(), strict=True):
                    raise InputError(
                        f"record {name.decode(errors='replace')!r} has the label {label}, outside of the "
                        f"classes"
                    )
            except InputError as error:
                self._problem = str(error)
                raise
