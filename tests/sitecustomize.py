# SPDX-License-Identifier: Apache-2.0
"""Python imports this file first in every process that tests start: it spares work that changes no result."""

import atexit
import functools
import gc
import typing

# The modules of TensorFlow are a million objects that stay.
gc.set_threshold(20_000)
atexit.register(gc.freeze)

# TensorFlow asks for a protocol's names at each conversion of a tensor; Python 3.12 remembers them itself.
typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)

# Model Garden asks for the types of all fields at each assignment to one.
get_type_hints = typing.get_type_hints
types_of_class = functools.cache(get_type_hints)
typing.get_type_hints = lambda thing, *args, **kwargs: (
    get_type_hints(thing, *args, **kwargs)
    if args or kwargs or not isinstance(thing, type)
    else dict(types_of_class(thing))
)
