# SPDX-License-Identifier: Apache-2.0
"""The export of the run of a file."""

import pytest


@pytest.fixture(scope="module")
def served(run, tmp_path_factory):
    from lambdanet.training.serving.export import export

    out = tmp_path_factory.mktemp("served") / "model"
    export(run, out)
    return str(out)
