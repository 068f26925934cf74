# SPDX-License-Identifier: Apache-2.0
"""The tests that `make check` chooses: those that import a changed module, the nearest first."""

import changed
import pytest
import source_tree
from source_tree import FLOORS, ROOT


def _near(*names: str) -> list[str]:
    """Returns the names of the tests near some files, without those that are near every file."""
    tests = [source_tree.name_of_test(path) for path in changed.tests_near(ROOT / name for name in names)]
    assert tests[: len(changed.ALWAYS)] == [*changed.ALWAYS]
    return tests[len(changed.ALWAYS) :]


@pytest.mark.parametrize(
    ("file", "first"),
    [
        ("tests/ops/reference_test.py", "ops/reference_test"),
        ("lambdanet/ops/position_lambdas.py", "ops/position_lambdas_test"),
        ("lambdanet/layers/lambda_layer.py", "layers/lambda_layer_test"),  # imported by way of `lambdanet`
        ("training/run/checkpoints.py", "training/run/checkpoints_test"),  # a link in lambdanet/
        ("tests/naive_attention.py", "layers/attention_test"),
        ("tests/programs/hold_lock.py", "training/run/run_lock_test"),
    ],
)
def test_nearest_test_of_a_file(file, first):
    assert first in _near(file)[:2]


def test_tests_near_a_file_that_is_no_module_contain_its_name():
    assert "project/packaging_test" in _near("setup.cfg")


def test_module_that_no_test_imports_has_those_of_its_users():
    assert not any("lambdanet.ops.blocking" in source_tree.imports(test) for test in source_tree.tests())
    assert {"ops/position_lambdas_test", "layers/halo_attention_test"} <= {
        *_near("lambdanet/ops/blocking.py")
    }


def test_changed_tests_come_before_those_of_changed_modules():
    names = _near("lambdanet/ops/position_lambdas.py", "tests/cli/cli_test.py")
    assert names[:2] == ["cli/cli_test", "ops/position_lambdas_test"]
    assert len(names) == len({*names})


@pytest.mark.parametrize("floor", FLOORS)
def test_every_module_has_a_test(floor):
    for path in source_tree.files_of(floor):
        assert _near(path.relative_to(ROOT).as_posix()), f"no test is near {path}"
