# SPDX-License-Identifier: Apache-2.0
"""The tests that `make check` chooses, the nearest first."""

import changed
import pytest
import source_tree
from source_tree import FLOORS, ROOT


def _near(*names: str) -> list[str]:
    """Returns the names of the tests near some files, without those that are near every file."""
    tests = [
        source_tree.name_of_test(path)
        for path in changed.tests_near(ROOT / name for name in names)
    ]
    assert tests[: len(changed.ALWAYS)] == [*changed.ALWAYS] and len(tests) == len(
        {*tests}
    )
    return tests[len(changed.ALWAYS) :]


@pytest.mark.parametrize(
    ("files", "first"),
    [
        (["tests/ops/reference_test.py"], "ops/reference_test"),
        (["lambdanet/layers/lambda_layer.py"], "layers/lambda_layer_test"),
        # A link in lambdanet/.
        (["training/run/checkpoints.py"], "training/run/checkpoints_test"),
        (["lambdanet/ops/blocking.py"], "ops/"),
        (["tests/naive_layers.py"], "layers/"),
        (["tests/programs/hold_lock.py"], "training/run/run_lock_test"),
        (
            ["lambdanet/ops/position_lambdas.py", "tests/cli/cli_test.py"],
            "cli/cli_test",
        ),
    ],
)
def test_nearest_test_of_files(files, first):
    assert any(name.startswith(first) for name in _near(*files)[:2])


@pytest.mark.parametrize("floor", FLOORS)
def test_every_module_has_a_test(floor):
    for path in source_tree.files_of(floor):
        assert _near(path.relative_to(ROOT).as_posix()), f"no test is near {path}"
