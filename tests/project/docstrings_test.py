# SPDX-License-Identifier: Apache-2.0
"""Docstrings: their examples run and have the results that they print."""

import ast
import doctest
import importlib
import inspect
import signal
import tarfile

import numpy as np
import pytest
import source_tree
import tensorflow as tf
from source_tree import FILES, ROOT

import lambdanet
from lambdanet import configs
from lambdanet.backend import device, keras
from lambdanet.training.run import build

# Programs, which take long: they train, measure, compile or write models. Their own tests run them.
PROGRAMS = {
    "lambdanet.training.serving.export:export",
    "lambdanet.training.serving.export:export_saved_model",
    "lambdanet.training.serving.export:export_weights",
    "lambdanet.training.serving.predict:predict",
    "lambdanet.training.run.loop:train",
    "lambdanet.training.check:check",
    "lambdanet.training.evaluate:evaluate",
    "lambdanet.training.convert:convert",
    "lambdanet.training.beam.pseudo_labels:pseudo_label",
    "lambdanet.training.beam.predict:predict_files",
    "lambdanet.tpu_estimates.check:tpu_check",
    "lambdanet.tpu_estimates.hlo:parse",
    "lambdanet.tpu_estimates.largest_batch:largest_batch",
    "lambdanet.tpu_estimates.steps:recipe_step",
    "benchmarks.input:benchmark_input",
    "benchmarks.layers:benchmark_layers",
    "benchmarks.models:benchmark_models",
    "benchmarks.rates:measure_rates",
}


def _examples() -> dict[str, str]:
    """Returns the docstrings with examples, as `module:name`."""
    found = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            if documented and ">>>" in (text := ast.get_docstring(node) or ""):
                found[f"{source_tree.module_of(path)}:{getattr(node, 'name', '')}"] = (
                    text
                )
    return found


EXAMPLES = _examples()


class Checker(doctest.OutputChecker):
    """Accepts any result where the example prints none."""

    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)


@pytest.fixture(scope="module")
def names():
    return {
        **{name: getattr(lambdanet, name) for name in lambdanet.__all__},
        "lambdanet": lambdanet,
        "configs": configs,
        "device": device,
        "keras": keras,
        "np": np,
        "tf": tf,
        "recipe": configs.get_recipe("digits"),
        "model": lambdanet.create_model("lambda_resnet_tiny", num_classes=1000),
        "images": tf.zeros([1, 32, 32, 3]),
        "examples": tf.data.Dataset.from_tensors(({"name": "a picture"}, 0)),
        "decode": lambda example, key: (tf.zeros([8, 8, 3]), key),
        "build_model": build.build_model,
        "build_optimizer": build.build_optimizer,
        "work": lambda: signal.raise_signal(signal.SIGTERM),
    }


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - PROGRAMS))
def test_example_runs(name, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    if "runs/digits" in EXAMPLES[name]:
        with tarfile.open(ROOT / "tests/saved/run.tar.gz") as archive:
            archive.extractall(tmp_path / "runs", filter="data")
        (tmp_path / "runs/run").rename(tmp_path / "runs/digits")
    module = importlib.import_module(name.partition(":")[0])
    test = doctest.DocTestParser().get_doctest(
        EXAMPLES[name], {**names, **vars(module)}, name, None, None
    )
    runner = doctest.DocTestRunner(
        Checker(), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert runner.run(test).failed == 0


@pytest.mark.parametrize("name", sorted(PROGRAMS & EXAMPLES.keys()))
def test_example_of_a_program_has_its_arguments(name):
    module, _, function = name.partition(":")
    signature = inspect.signature(getattr(importlib.import_module(module), function))
    code = "".join(
        example.source
        for example in doctest.DocTestParser().get_examples(EXAMPLES[name])
    )
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    calls = [call for call in calls if ast.unparse(call.func) == function]
    assert calls
    for call in calls:
        signature.bind(
            *call.args, **{keyword.arg: keyword.value for keyword in call.keywords}
        )
