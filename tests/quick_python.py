# SPDX-License-Identifier: Apache-2.0
"""Speeds up tests by caches and patches of Python; `make weekly` runs a hundred tests without them."""

import atexit
import functools
import gc
import inspect
import os
import sys
import typing
import weakref

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

# Keras asks for the arguments of the same functions at each layer.
getfullargspec = inspect.getfullargspec
arguments_of = weakref.WeakKeyDictionary()


def remembered_arguments(thing):
    function = getattr(thing, "__func__", thing)
    if not inspect.isfunction(function):
        return getfullargspec(thing)
    if function not in arguments_of:
        arguments_of[function] = getfullargspec(function)
    return arguments_of[function]


inspect.getfullargspec = remembered_arguments

# Beside TensorFlow, Triton crashes the process; PyTorch for CUDA brings it, and can do without.
sys.modules["triton"] = None

# Optional packages, and the package that imports them for functions that no test calls.
OPTIONAL = {"jax": "tensorflow", "googleapiclient": "tensorflow", "pandas": "tf_keras"}
# TensorFlow imports Keras, which imports JAX
if os.environ.get("KERAS_BACKEND") == "jax":
    del OPTIONAL["jax"]


class HideOptional:
    """Reports optional packages as not installed during the import of the package that would use them."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        importer = sys.modules.get(OPTIONAL.get(name))
        if importer and importer.__spec__._initializing:
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, HideOptional)
