# SPDX-License-Identifier: Apache-2.0
"""Classes of a source in another order, such as that of the run that it is evaluated with."""

from collections.abc import Sequence

from lambdanet.training.data.class_names import Classes, find_columns, normalized
from lambdanet.training.data.sources import Source


def put_in_order(source: Source, classes: Classes, some: bool = False) -> Sequence[str]:
    """Numbers the classes of a source in an order, and prints a line; in its own order if it has others.

    Args:
      source: the images.
      classes: the classes in the order wanted.
      some: whether the source may have only some of them, as for evaluation.

    Returns:
      The names of the classes in their order.
    """
    own = normalized(source.class_names)
    wanted = normalized(classes.names)
    missing = len(set(wanted) - set(own))
    if own == wanted or set(own) - set(wanted) or (missing and not some):
        return source.class_names
    which = f"{len(own)} of the {len(wanted)} classes" if missing else "the classes"
    print(
        f"the data has {which} of {classes.owner} in another order: matched by name",
        flush=True,
    )
    source.numbers = find_columns(source.class_names, classes.names)
    return classes.names
