# SPDX-License-Identifier: Apache-2.0
"""Tests of the command line: help, one-line errors, exit statuses, and no partial output."""

import csv
import functools
import os
import shlex
import subprocess
import sys
from importlib import metadata
from unittest import mock

import pytest
import tensorflow as tf
from PIL import Image
from processes import run_code
from refused_commands import assert_refused
from source_tree import ROOT

import lambdanet
from lambdanet import configs
from lambdanet.cli import COMMANDS, main
from lambdanet.configs.recipe import describe_fields, override
from lambdanet.core import command_line
from lambdanet.core.command_line import parse
from lambdanet.core.errors import unknown

TRAIN = ["train", "--recipe=digits"]
RUN = [*TRAIN, "--model_dir=DIR/x"]
run = functools.partial(subprocess.run, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_overview_lists_every_command(words, capsys):
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    for command in COMMANDS:
        assert any(
            line.split() == f"{command.name} {command.summary}".split()
            for line in lines
        )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_has_usage_flags_and_valid_examples(command, capsys):
    assert main([*command.name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: lambdanet {command.name}")
    assert "examples:\n" in shown
    for option in command.options:
        assert option.help and f"  {option}  " in shown and option.help in shown
    for example in command.examples:
        assert f"{example} ".startswith(f"lambdanet {command.name} ")
        parse(command, shlex.split(example)[len(command.name.split()) + 1 :])


def test_help_and_wrong_arguments_import_no_backend():
    messages = {
        ("list", "zzz*"): "no model matches 'zzz*'",
        ("list", "--format=html"): "unknown format 'html'; accepted: csv, markdown",
        ("info", "resnet_5"): "unknown model 'resnet_5'; did you mean resnet_50",
        ("convert", "resnet_50"): "unknown model with published weights 'resnet_50'",
        (*TRAIN, "--model_dir=x", "--set=model=resnet_51"): "did you mean resnet_50",
        ("export", "--model=resnet_51", "--weights=imagenet", "--out=x"): "resnet_51",
        ("tpu-check", "--model=resnet_51"): "did you mean resnet_50",
        ("tpu-check", "--recipe=digts"): "did you mean digits",
        ("tpu-check", "--model=resnet_50", "--topology=v9"): "'v9'",
    }
    program = "import sys; from lambdanet import cli; cli.main(['train', '-h'])\n"
    program += f"for words in {[*messages]}: print(cli.main(words))\n"
    program += "print(sys.modules.keys() & {'keras', 'tensorflow', 'jax', 'torch'})"
    shown = run_code(program)
    assert shown.stdout.endswith("2\n" * len(messages) + "set()\n")
    for line, message in zip(shown.stderr.splitlines(), messages.values(), strict=True):
        assert message in line


@pytest.mark.parametrize("words", [["train", "--help"], ["recipe"]])
def test_all_fields_and_recipes_are_listed(words, capsys):
    assert main(words) == 0
    shown = capsys.readouterr().out
    for name in configs.list_recipes():
        module, _, row = name.partition(":")
        assert f"  {module}: " in shown and row.partition("@")[0] in shown
    if words != ["recipe"]:
        for field in describe_fields():
            assert f"  {field.name} " in shown and field.help in shown


def test_printed_recipe_can_be_read_again(tmp_path, capsys):
    assert main(["recipe", "digits", "--set=epochs=5"]) == 0
    path = tmp_path / "short.json"
    path.write_text(capsys.readouterr().out)
    assert configs.get_recipe(str(path)) == override(
        configs.get_recipe("digits"), ["epochs=5"]
    )


def test_unknown_lists_at_most_20_names():
    names = [f"n{number:02}" for number in range(21)]
    assert str(unknown("name", "qqq", names[:20])).endswith(
        "; accepted: " + ", ".join(names[:20])
    )
    assert str(unknown("name", "qqq", names)).endswith("n18, n19 and 1 more")


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lambdanet {lambdanet.__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train"], "`train` needs --recipe and --model_dir"),
        ([*TRAIN, "--model_dir"], "Missing value for flag --model_dir"),
        ([*TRAIN, "--save_every=1.5"], "--save_every must be an integer, got '1.5'"),
        (
            [*TRAIN, "--deterministic=maybe"],
            "--deterministic must be true or false, got 'maybe'",
        ),
        (
            [*TRAIN, "--nodeterministic=x"],
            "--nodeterministic=x does not take an argument",
        ),
        (
            ["pseudo-label", "--min_confidence=a: b"],
            "--min_confidence must be a number, got 'a: b'",
        ),
        (
            [*TRAIN, "--qqqqqq"],
            "unknown flag of `train` '--qqqqqq'; see `lambdanet train --help`",
        ),
        (
            [*TRAIN, "--model_dri=DIR/x"],
            "unknown flag of `train` '--model_dri'; did you mean --model_dir",
        ),
        (
            [*RUN, "stray"],
            "unexpected argument 'stray' of `train`; see `lambdanet train --help`",
        ),
        ([*RUN, "--set=epoch=3"], "unknown recipe field 'epoch'; did you mean epochs"),
        (
            [*RUN, "--data_dir=DIR/no"],
            "data_dir must be an existing folder, got 'DIR/no'",
        ),
        (
            [*TRAIN, "--model_dir=DIR/file"],
            "model_dir 'DIR/file' cannot be written: 'DIR/file' is not a dir",
        ),
        (["evaluate", "--model_dir=DIR"], "got 'DIR'; it has no recipe.json"),
        (
            ["evaluate", "--model_dir=DIR", "--backend=torch"],
            "backend must be tensorflow or jax, got 'torch'",
        ),
        (
            [*TRAIN, "--model_dir=DIR/x", "--backend=jax"],
            "backend must be tensorflow, on which this process has imported Keras, got 'jax'",
        ),
        (["predict", "--saved_model=DIR"], "`predict` needs IMAGE_OR_FOLDER..."),
        (["info"], "`info` needs MODEL or --environment"),
        (
            ["list", "halonet_h*", "--pretrained"],
            "no model with published weights matches 'halonet_h*'",
        ),
        (
            ["train", "--epochs=5"],
            "unknown flag of `train` '--epochs'; did you mean --set=epochs=5?",
        ),
        (["train", "--batch_size=5"], "did you mean --set=global_batch_size"),
        (["recipe", "DIR/none.json"], "none.json' does not exist"),
    ],
)
def test_input_error_is_one_line_with_status_2(words, message, tmp_path, capsys):
    (tmp_path / "file").write_text("not a picture")
    assert main([word.replace("DIR", str(tmp_path)) for word in words]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("lambdanet: error: ") and shown.err.count("\n") == 1
    assert message.replace("DIR", str(tmp_path)) in shown.err
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


# Stands for the modules that commands import after they chose the backend, and says what they would find.
IMPORTED_LAST = """
import os, sys
from lambdanet import cli

class Module:
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        print(os.environ["KERAS_BACKEND"], "keras" in sys.modules)
        raise KeyboardInterrupt

for name in ("evaluate", "serving.export"):
    sys.modules[f"lambdanet.training.{name}"] = Module()
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("words", "backend"),
    [(["evaluate", "--backend=jax"], "jax"), (["export", "--out=x"], "tensorflow")],
)
def test_backend_is_chosen_before_keras_is_imported(tmp_path, words, backend):
    words = [*words, f"--model_dir={tmp_path}"]
    done = run_code(IMPORTED_LAST, *words, KERAS_BACKEND="torch")
    assert (done.returncode, done.stdout) == (130, f"{backend} False\n")


def test_backend_in_the_environment_must_train(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    status = main([*TRAIN, f"--model_dir={tmp_path}"])
    message = "KERAS_BACKEND must be tensorflow or jax, got 'torch'"
    assert_refused(status, message, capsys)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (OSError(28, "No space left", "/x"), "error: [Errno 28] No space left: '/x'"),
        (
            ModuleNotFoundError("no sklearn", name="sklearn"),
            "error: no sklearn; install it with pip install 'lambdanet[train]'",
        ),
        (
            ModuleNotFoundError("no official", name="official.vision"),
            "error: no official; install it with pip install 'lambdanet[detection]'",
        ),
        (RecursionError(), None),
        (MemoryError(), None),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), None),
    ],
)
def test_system_error_alone_is_one_line(monkeypatch, capsys, error, message):
    """One that is not expected is left to Python."""
    monkeypatch.setattr(
        "lambdanet.models.names.list_models", mock.Mock(side_effect=error)
    )
    if message is None:
        with pytest.raises(type(error)):
            main(["list"])
        return
    assert main(["list"]) == (130 if message == "interrupted" else 1)
    assert capsys.readouterr().err == f"lambdanet: {message}\n"


def test_list_and_info_print_the_size(capsys):
    assert main(["list", "lambda_resnet_t*", "--format=csv", "--sizes"]) == 0
    header, row = csv.reader(capsys.readouterr().out.splitlines())
    assert dict(zip(header, row, strict=True)) == {
        "model": "lambda_resnet_tiny",
        "parameters (M)": "0.93",
        "FLOPs (G)": "0.01",
        "pixels": "32",
        "source": "for tests and the digits",
        "recipe": "digits",
        "weights": "-",
    }
    assert main(["info", "lambda_resnet_tiny"]) == 0
    info = lambdanet.model_info("lambda_resnet_tiny")
    shown = capsys.readouterr().out
    endpoints = "16 channels at stride 2, 64 channels at stride 4, "
    for part in (f"{info.params:,}", f"{info.flops:,}", endpoints):
        assert part in shown
    assert main(["info", "lambda_unet_3d"]) == 0
    assert "an image of 128x128x128 pixels" in capsys.readouterr().out
    status = main(["explain", "--model=unet_2d", "--out=pages", "a.png"])
    assert_refused(status, "model must be one for classification", capsys)


def test_environment_is_printed(monkeypatch, capsys):
    monkeypatch.setenv("XLA_FLAGS", "--a_flag")
    assert main(["info", "--environment"]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["lambdanet"].startswith(lambdanet.__version__)
    assert (rows["keras"], rows["backend"]) == (metadata.version("keras"), "tensorflow")
    assert rows["devices"].startswith("CPU") and rows["XLA_FLAGS"] == "--a_flag"


def test_list_prints_a_line_per_model(capsys):
    assert main(["list"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["model", "pixels", "source", "recipe", "weights"]
    assert [line.split()[0] for line in lines] == lambdanet.list_models()


def test_closed_pipe_is_not_an_error():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        command = [sys.executable, "-m", "lambdanet.cli", "--help"]
        done = subprocess.run(
            command, cwd=ROOT, stdout=pipe, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (1, "")


PROGRAM = """
import sys
from lambdanet.core.command_line import exit_status
sys.exit(exit_status('x', lambda: {}))
"""


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_stdout_escapes_characters_it_cannot_encode(encoding):
    # \udcff: a byte of a file name that is not UTF-8
    program = PROGRAM.format("print('b\xefld \\udcff')")
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": encoding}
    done = run(command, env=environment, text=False)
    shown = {"ascii": b"b\\xefld", "utf-8": "b\xefld".encode()}[encoding]
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        shown + b" \\udcff\n",
        b"",
    )


@pytest.mark.parametrize(
    ("words", "closed", "status", "shown"),
    [
        ("--help", ">&- 2>&-", 0, ""),
        (
            "nope",
            ">&-",
            2,
            "lambdanet: error: unknown command 'nope'; did you mean info or recipe?\n",
        ),
    ],
)
def test_closed_streams_become_the_null_device(words, closed, status, shown):
    command = f"{shlex.quote(sys.executable)} -m lambdanet.cli {words} {closed}"
    done = run(command, shell=True)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", shown)


def test_closed_stdout_is_not_reused_by_a_file(tmp_path):
    work = f"(f := open({str(tmp_path / 'f')!r}, 'w'), print('lost'), sys.exit(f.fileno()))"
    command = (
        f"{shlex.quote(sys.executable)} -c {shlex.quote(PROGRAM.format(work))} >&-"
    )
    assert run(command, shell=True).returncode > 2


def test_large_picture_gives_no_warning(monkeypatch, tmp_path):
    Image.new("1", (30, 30)).save(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 899)
    opened = functools.partial(Image.open, tmp_path / "large.png")
    assert command_line.exit_status("x", lambda: opened().close()) == 0
    # Suppressed by exit_status alone.
    with pytest.raises(Image.DecompressionBombWarning):
        opened()


def test_model_without_gradients_gives_no_warning(tmp_path, caplog):
    module = tf.Module()
    double = tf.custom_gradient(lambda x: (2 * x, lambda upstream: 3 * upstream))
    module.call = tf.function(double, input_signature=[tf.TensorSpec([])])
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, tmp_path, options=options)
    tf.saved_model.load(tmp_path)
    assert "unsaved custom gradients" in caplog.text
    caplog.clear()
    assert command_line.exit_status("x", lambda: tf.saved_model.load(tmp_path)) == 0
    assert caplog.text == ""
