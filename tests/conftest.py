# SPDX-License-Identifier: Apache-2.0
"""Makes TensorFlow quiet, lets parallel test workers share the cores, and frees models between files."""

import gc
import importlib.util
import os
import sys
import warnings

import pytest

# Set before anything imports TensorFlow, and inherited by the commands that tests start.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
_CORES_EACH = max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(_CORES_EACH))


@pytest.fixture(autouse=True, scope="module")
def free_models():
    """Drops the graphs and layer names that Keras keeps, after the last test of each file."""
    yield
    if "tf_keras" in sys.modules:
        sys.modules["tf_keras"].backend.clear_session()
        gc.collect()


@pytest.fixture(scope="session")
def timm():
    """The module timm, with which networks and pictures are compared; the extra `timm` brings it."""
    pytest.importorskip("torch")
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    from lambdanet.models.timm_import import import_timm

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the imports
        return import_timm()
