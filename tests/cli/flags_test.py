# SPDX-License-Identifier: Apache-2.0
"""Every flag of every command has an effect beside each other one, or is refused."""

import itertools

import pytest
from all_commands import COMMANDS
from refusals import refused

from lambdanet.core.command_line import check_combination, parse, run_command

# Flags of which each has an effect beside each other one, in sets that are as large as possible; "*" is an
# argument, and values are 1 where it does not matter. All other pairs must be refused.
TOGETHER = """
lambdanet list: * sizes pretrained format
lambdanet info: *
lambdanet info: environment
lambdanet convert: *=lambda_resnet26t checkpoint as_published class_map
lambdanet convert: *=lambda_resnet26t revision as_published class_map
lambdanet convert: *=lambda_resnet26t checkpoint out class_map
lambdanet convert: *=lambda_resnet26t revision out class_map
lambdanet recipe: * set
lambdanet check: recipe data_dir out overwrite set
lambdanet train: recipe model_dir data_dir max_bad_records backend distribute=tpu class_map tpu save_every \
    steps_per_execution accept_new_data callback deterministic set
lambdanet evaluate: model_dir data_dir max_bad_records backend split out flip window overlap \
    overwrite
lambdanet export: out model_dir data_dir format=onnx opset any_size batch_size calibrate \
    overwrite
lambdanet export: out model weights class_names format=onnx opset any_size batch_size overwrite
lambdanet export: out model weights class_names format=litert_int8_full calibration batch_size \
    overwrite
lambdanet explain: * out saved_model layers top overwrite
lambdanet explain: * out model_dir layers top overwrite
lambdanet explain: * out model weights layers top overwrite
lambdanet predict: * saved_model out top window overlap overwrite
lambdanet predict-many: * saved_model out format=csv top split data_dir batch_size shard_size \
    max_bad_records num_workers beam_options
lambdanet pseudo-label: data saved_model out min_confidence per_class label_mode seed split data_dir \
    batch_size shard_size max_bad_records num_workers beam_options
lambdanet tpu-check: recipe topology mode batch_size backend=jax fit set top json cache
lambdanet tpu-check: model topology mode batch_size backend=jax fit set top json cache
lambdanet tpu-check: model=a:b topology mode batch_size model_parallel=2 backend=jax fit top json cache
lambdanet tpu-check: experiment topology mode batch_size backend=tensorflow fit set top json cache
lambdanet tpu-check: list_topologies
python -m lambdanet.detection.check: annotations images num_classes masks
python -m lambdanet.detection.evaluate: saved_model annotations images out overwrite
python -m lambdanet.detection.export: model_dir out checkpoint input_size annotations experiment \
    overwrite
python -m lambdanet.detection.predict: * saved_model out min_confidence overwrite
python -m lambdanet.detection.shapes: out train val seed
python -m lambdanet.detection.train: experiment mode=train model_dir config_file params_override tpu \
    tf_data_service enable_async_checkpointing
python -m benchmarks.layers: maps scopes passes contenders repeats max_seconds dtype peers out \
    overwrite
python -m benchmarks.models: * passes batch_size repeats max_seconds dtype peers out overwrite
python -m benchmarks.input: images repeats
python -m benchmarks.rates: maps repeats
python -m benchmarks.tables: * format
python -m benchmarks.tpu_speeds: table rows format=csv
python -m benchmarks.tpu_speeds: rows format=csv chips
python -m benchmarks.device: out parts minutes overwrite
"""
# What lacks another flag.
LACKING = """
lambdanet convert: *=lambda_resnet26t as_published
lambdanet recipe: set
lambdanet check: overwrite
lambdanet evaluate: model_dir overlap
lambdanet predict: * saved_model overlap
lambdanet evaluate: model_dir overwrite
lambdanet predict: * saved_model overwrite
lambdanet export: out
lambdanet export: out model
lambdanet export: out model_dir opset
lambdanet export: out model_dir batch_size
lambdanet export: out model_dir format=litert_int8_full any_size
lambdanet export: out model weights format=litert calibration
lambdanet predict-many: * saved_model out format=tfrecord top
python -m lambdanet.detection.train: experiment mode=eval model_dir enable_async_checkpointing
"""
REFUSED = "needs|left out|must be (none|empty|1, except|tensorflow with)"


def _lines(text, command):
    """Yields the flags of each line of a command, with their values."""
    for row in text.splitlines():
        name, _, line = row.partition(": ")
        if name == command.invocation:
            yield dict(f"{word}=1".split("=")[:2] for word in line.split())


def _words(values):
    """Returns a command line with flags and their values."""
    return [x if name == "*" else f"--{name}={x}" for name, x in values.items()]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.invocation)
def test_pairs_of_flags_have_an_effect_or_are_refused(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAMBDANET_HOME", str(tmp_path / "home"))
    lines = [*_lines(TOGETHER, command)]
    values = {name: value for line in lines for name, value in line.items()}
    names = {flag.name for flag in command.flags}
    assert values.keys() - {"*"} == names
    for line in lines:
        check_combination(command, parse(command, _words(line))[0])
    for line in _lines(LACKING, command):
        with refused(REFUSED):
            run_command(command, _words(line))
    for pair in itertools.combinations(values, 2):
        if any(line.keys() >= {*pair} for line in lines):
            continue
        for line in lines:
            if len(line.keys() & pair) == 1:
                with refused(REFUSED):
                    run_command(command, _words({x: values[x] for x in pair} | line))
