# SPDX-License-Identifier: Apache-2.0
"""Silences TensorFlow, divides the cores between parallel workers, seeds tests, and frees models."""

import collections
import dataclasses
import functools
import gc
import importlib.util
import os
import random
import signal
import sys
import sysconfig
import warnings
import zlib
from pathlib import Path

import environment_header
import lanes
import numpy as np
import pytest
import source_tree
import times
from engines import ENGINES
from source_tree import ROOT
from times import (  # noqa: F401
    pytest_runtest_logreport,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    pytest_sessionfinish,
)

# Set before anything imports TensorFlow, and inherited by the programs that tests start.
_PATH = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _PATH))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Servers on this machine are reached without a proxy.
for _name in ("NO_PROXY", "no_proxy"):
    _HOSTS = ["127.0.0.1", "localhost", os.environ.get(_name)]
    os.environ[_name] = ",".join(filter(None, _HOSTS))
if os.environ.get("KERAS_BACKEND") == "jax":
    os.environ.update(ENGINES["jax"])
# TensorFlow's own allocator for oneDNN never returns memory; the others do.
os.environ.setdefault("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1")
# mimalloc saves a tenth of the processor time; the workers start later, so they use it.
_MIMALLOC = Path(sysconfig.get_path("purelib"), "cmeel.prefix", "lib", "libmimalloc.so")
# Of `make weekly`: without what speeds up Python and TensorFlow here, and which no user has.
_PLAIN = "LAMBDANET_PLAIN" in os.environ
if _MIMALLOC.exists() and not _PLAIN:
    os.environ.setdefault("LD_PRELOAD", str(_MIMALLOC))
    # Zeroing huge pages costs more than it saves.
    os.environ.setdefault("MIMALLOC_ALLOW_THP", "0")
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:  # one process uses all cores anyway
    _CORES_EACH = max(
        1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    )
    # Of TensorFlow, and of PyTorch.
    for _threads in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(_threads, str(_CORES_EACH))

# A shell ignores it for what it runs in the background, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The processor seconds until the first test; imports are most of them.
_START = pytest.StashKey[float]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One more than there are cores, for the time in which one waits, but 2 GiB of memory for each."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min((os.cpu_count() or 1) + 1, max(1, memory // 2**31))


def pytest_report_header():
    return environment_header.lines()


def pytest_terminal_summary(terminalreporter, config):
    """Says what did not run as packages are missing."""
    if "not rest" in config.option.markexpr:
        return
    for path in source_tree.tests():
        if missing := ", ".join(lanes.missing(path)):
            terminalreporter.write_line(f"not run: {path}, which needs {missing}")


def pytest_addoption(parser):
    parser.addoption(
        "--seconds",
        type=float,
        default=float("inf"),
        help="skip the tests that begin once the tests before took this many processor seconds",
    )


def pytest_ignore_collect(collection_path, config):
    """Leaves out files of `make test-rest` in others, and where what they need is not installed."""
    if collection_path.suffix != ".py":
        return None
    is_test = collection_path.name.endswith("_test.py")
    if is_test and not lanes.may_have(collection_path, config.option.markexpr):
        return True
    if lanes.needs(collection_path) is None:
        return None
    if "not rest" in config.option.markexpr or lanes.missing(collection_path):
        return True
    return None


@pytest.hookimpl(tryfirst=True)  # before -m chooses by markers
def pytest_collection_modifyitems(config, items):
    """Marks `rest`, and moves the files with the most slow tests to the front, unless the time is limited."""
    slow = collections.Counter()
    for item in items:
        if "timm" in item.fixturenames:
            item.add_marker("peers")
        is_marked = any(map(item.get_closest_marker, lanes.MARKERS))
        if is_marked or lanes.needs(item.path) is not None:
            item.add_marker("rest")
        if item.get_closest_marker("slow"):
            slow[item.path] += 1
    if config.getoption("seconds") == float("inf"):
        items.sort(key=lambda item: -slow[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skips a test after the time, and seeds what it and its fixtures draw."""
    seconds = item.config.getoption("seconds")
    if times.processor_seconds() - item.config.stash[_START] > seconds:
        pytest.skip(f"{seconds:.0f} seconds are over; make test runs it")
    _seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    """Seeds what a module's fixture draws, and then the test, which draws the same if it is not the first."""
    if fixturedef.scope == "function":
        return (yield)
    _seed(zlib.crc32(fixturedef.argname.encode()))
    result = yield
    _seed(0)
    return result


def _seed(number):
    random.seed(number)
    np.random.seed(number)
    for name in {"keras", "tf_keras"} & sys.modules.keys():
        sys.modules[name].utils.set_random_seed(number)


def pytest_collection_finish(session):
    """Leaves the modules, a million objects, out of garbage collections; `quick_python` makes these rare."""
    session.config.stash[_START] = times.processor_seconds()
    gc.collect()
    gc.freeze()
    if "tensorflow" in sys.modules and not _PLAIN:
        _spare_work()


def _spare_work():
    """Shares one kernel between all variables, and one Python stack between all operations of graphs."""
    from tensorflow.python.ops import gen_resource_variable_ops as ops
    from tensorflow.python.util import tf_stack

    create = ops.var_handle_op
    ops.var_handle_op = lambda *args, debug_name="", **kwargs: create(*args, **kwargs)
    tf_stack.extract_stack = functools.cache(tf_stack.extract_stack)


@pytest.fixture(autouse=True, scope="module")
def free_models():
    """Frees Keras's graphs and their memory after the last test of each file."""
    yield
    _free()


@pytest.fixture
def freed():
    """Does the same after each test that uses it, such as those that build a large model."""
    yield
    _free()


def _free():
    for name in {"keras", "tf_keras"} & sys.modules.keys():
        sys.modules[name].backend.clear_session()
        gc.collect()
        gc.freeze()  # the modules imported since


@pytest.fixture(scope="module")
def quick_graphs():
    """Traces graphs quickly, for tests of a few steps."""
    from programs.quick_graphs import trace_quickly

    trace_quickly()
    yield
    trace_quickly(False)


@pytest.fixture
def double_precision():
    from lambdanet.backend import compat

    with compat.dtype_policy("float64"):
        yield


@pytest.fixture(scope="session")
def timm():
    """The module timm, for comparisons; the extra `timm` installs it."""
    pytest.importorskip("torch")
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    from lambdanet.models.weights.tensor_files import import_timm

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the imports
        return import_timm()


@pytest.fixture
def two_operations(monkeypatch):
    """Lets both policies of RandAugment choose between two operations; each is a part of the graph."""
    from lambdanet.training.data import rand_augment

    for name in ("MODEL_GARDEN", "TIMM"):
        monkeypatch.setattr(
            rand_augment, name, dict(list(getattr(rand_augment, name).items())[:2])
        )


@pytest.fixture
def measured_cpu(monkeypatch):
    """The processor on which the times in tests were measured, with oneDNN, whichever this one is."""
    from lambdanet.backend import device
    from lambdanet.ops.kernels import KERNELS

    training, inference = device._CPU
    row = KERNELS["CPU"]
    cpu = dataclasses.replace(row.device, training=training, inference=inference)
    monkeypatch.setitem(KERNELS, "CPU", dataclasses.replace(row, device=cpu))
