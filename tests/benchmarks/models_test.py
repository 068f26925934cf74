# SPDX-License-Identifier: Apache-2.0
"""Tests of the benchmarks of models."""

import csv
from unittest import mock

import keras
import numpy as np
import pytest
from programs.small_model import one_convolution
from refusals import refused
from refused_commands import assert_refused

from benchmarks import models
from benchmarks.interleaved import comparison, model_contenders, peers
from benchmarks.interleaved.cases import ModelCase
from benchmarks.interleaved.model_contenders import Network
from lambdanet import command_line
from lambdanet.models.names import ModelInfo


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resnet_50@160", ("resnet_50", {}, 160)),
        ("resnet_50_llll:key_dim=8", ("resnet_50_llll", {"key_dim": 8}, 0)),
        (
            "resnet_50_clll:scope=None,key_dim=4@96",
            ("resnet_50_clll", {"scope": None, "key_dim": 4}, 96),
        ),
    ],
)
def test_parse_network_with_options_and_size(text, expected):
    network = Network.parse(text)
    assert (network.name, network.options, network.size) == expected


@pytest.mark.parametrize("end", ["@big", "@0", ":scope", ":scope=x"])
def test_parse_network_rejects_wrong_texts(end):
    with refused(f"model must be NAME, .*, got 'resnet_50{end}'"):
        Network.parse(f"resnet_50{end}")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_training_changes_weights(monkeypatch, dtype):
    built = []

    def create(*args, **kwargs):
        built.append(one_convolution(*args, **kwargs))
        return built[-1]

    monkeypatch.setattr(model_contenders.zoo, "create_model", create)
    for backward in (False, True):
        run = model_contenders.build(
            "model/resnet_50@16", ModelCase(4, backward, dtype)
        )
        before = built[-1].get_weights()
        run()
        changed = [
            not np.array_equal(a, b)
            for a, b in zip(before, built[-1].get_weights(), strict=True)
        ]
        assert any(changed) == backward
    assert all(changed[:2])  # kernel and bias of the convolution
    assert built[-1].input_shape == (None, 16, 16, 3)
    assert built[-1].layers[1].compute_dtype == dtype
    assert keras.mixed_precision.global_policy().name == "float32"


def scripted_process(python, name, threads, environment):
    """The second model has half the speed and three times the memory; timm is slower."""
    slow, about = (
        "llll" in name,
        {"library": "script 1.0", "device": "paper", "counts_memory": True},
    )
    seconds = {"timm": 4, "timm_compiled": 8}.get(
        name.partition("/")[0], 2 if slow else 1
    )
    built = []

    def request(do, timeout, **arguments):
        if do == "build":
            built.append(ModelCase(**arguments["case"]).backward)
        if do == "memory":
            return {"bytes": (3 if slow else 1) * 2**20}
        return {"seconds": seconds * (0.3 if built[-1] else 0.1)}

    return mock.Mock(request=request, about=lambda: about)


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(comparison, "ContenderProcess", scripted_process)
    monkeypatch.setattr(comparison, "SETTLE_SECONDS", 0)
    info = ModelInfo(
        "resnet_50", 25_000_000, 4_000_000_000, 224, "source", (), (), (), 2048
    )
    monkeypatch.setattr(model_contenders.zoo, "model_info", lambda *_, **__: info)


def test_models_are_compared_with_the_first(scripted, tmp_path, capsys):
    words = [
        "resnet_50",
        "resnet_50_llll",
        "--batch_size=6",
        "--repeats=3",
    ]
    assert command_line.main(models.COMMAND, [*words, f"--out={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "models.csv").read_text().splitlines()))
    assert [(row["model"], row["pass"]) for row in rows] == [
        *(("resnet_50", "train"), ("resnet_50_llll", "train")),
        *(("resnet_50", "infer"), ("resnet_50_llll", "infer")),
    ]
    columns = {
        "ms_median": [300, 600, 100, 200],
        "images_per_second": [20, 10, 60, 30],
        "times_as_fast_as_first": [1, 0.5, 1, 0.5],
        "peak_as_share_of_first": [1, 3, 1, 3],
    }
    for name, expected in columns.items():
        assert [float(row[name]) for row in rows] == pytest.approx(expected)
    assert "training step, 6 images; x and share relative to resnet_50\n" in shown
    assert max(map(len, shown.splitlines())) <= 120


def test_peers_are_measured_beside_each_model(scripted, tmp_path):
    words = [
        "resnet_50_llll",
        "halonet26t",
        "--peers",
        "--passes=infer",
    ]
    assert (
        command_line.main(models.COMMAND, [*words, "--repeats=1", f"--out={tmp_path}"])
        == 0
    )
    rows = csv.DictReader((tmp_path / "models.csv").read_text().splitlines())
    speeds = {row["model"]: float(row["times_as_fast_as_first"]) for row in rows}
    peers = {"timm/halonet26t": 0.5, "timm_compiled/halonet26t": 0.25}
    assert speeds == {"resnet_50_llll": 1, "halonet26t": 2, **peers}


# Of PyTorch for CUDA, in a process with TensorFlow.
@pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")
@pytest.mark.parametrize("backward", [False, True])
def test_timm_contender_trains_only_in_training(timm, monkeypatch, backward):
    built = []

    def compile_model(model):
        built.append(model)
        return model

    monkeypatch.setattr("torch.compile", compile_model)
    run = peers.build("timm_compiled/test_resnet", ModelCase(2, backward))
    before = [parameter.detach().clone() for parameter in built[0].parameters()]
    run()
    changed = [
        not a.equal(b) for a, b in zip(before, built[0].parameters(), strict=True)
    ]
    assert any(changed) == backward and built[0].training == backward


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resnet_50", "--peers"], "without options, .* got 'resnet_50'"),
        ([], "`models` needs MODEL..."),
        (["resnet_50", "--passes=both"], "unknown pass 'both'; accepted: infer, train"),
        (["resnet_50", "--batch_size=0"], "batch_size must be a positive integer"),
    ],
)
def test_wrong_arguments_are_rejected(words, message, capsys):
    status = command_line.main(models.COMMAND, words)
    assert assert_refused(status, message, capsys) == ""
