# SPDX-License-Identifier: Apache-2.0
"""Two runs in one model_dir: real processes, killed ones, forks, and file systems without locks."""

import contextlib
import errno
import fcntl
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from helpers import program

from lambdanet import configs
from lambdanet.errors import InputError
from lambdanet.files import locked
from lambdanet.training.run import model_dir
from lambdanet.training.train import train


@contextlib.contextmanager
def _holder(folder, *words):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(
        **program("hold_lock.py", folder, *words), **pipes
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _in_use(folder, pid):
    return f"model_dir '{folder}' is in use by process {pid} on host '{socket.gethostname()}'"


def test_second_process_is_rejected_until_first_ends(tmp_path):
    folder = tmp_path / "a" / "run"
    with _holder(folder) as first:
        assert first.stdout.readline() == "held\n"
        with _holder(folder) as second:
            assert second.stdout.read() == _in_use(folder, first.pid) + "\n"
        with pytest.raises(InputError) as caught, locked(folder):
            raise AssertionError
        assert str(caught.value) == _in_use(folder, first.pid)
        first.stdin.close()
        assert first.wait() == 0
    assert not list(tmp_path.iterdir())  # nothing was written
    with locked(folder):
        assert (
            folder / ".lock"
        ).read_text() == f"process {os.getpid()} on host '{socket.gethostname()}'\n"


@pytest.mark.parametrize("words", [(), ("fork",)])
def test_killed_process_releases_lock(tmp_path, words):
    """Also if its forked child is still running."""
    with _holder(tmp_path, *words) as first:
        said = first.stdout.readline()
        first.kill()
        assert first.wait() == -signal.SIGKILL and (tmp_path / ".lock").exists()
        try:
            with locked(tmp_path):
                assert (
                    (tmp_path / ".lock")
                    .read_text()
                    .startswith(f"process {os.getpid()} on host")
                )
        finally:
            if words:
                os.kill(int(said), signal.SIGKILL)  # it is running
    assert not list(tmp_path.iterdir())


def test_second_run_in_same_process_is_rejected(tmp_path):
    with locked(tmp_path):
        for _ in range(2):
            with pytest.raises(InputError) as caught, locked(tmp_path):
                raise AssertionError
            assert str(caught.value) == _in_use(tmp_path, os.getpid())
        with locked(tmp_path / "other"):
            pass
    with locked(tmp_path):
        pass


def test_existing_files_and_parents_remain(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(KeyError), locked(tmp_path / "mine" / "a" / "b"):
        raise KeyError
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]
    with locked(tmp_path / "mine" / "a"):
        (tmp_path / "mine" / "a" / "file").touch()
    assert [path.name for path in (tmp_path / "mine" / "a").iterdir()] == ["file"]


def test_folder_recreated_by_other_run_keeps_its_lock(tmp_path):
    with locked(tmp_path / "run"):
        (tmp_path / "run").rename(tmp_path / "moved")
        with _holder(tmp_path / "run") as second:
            assert second.stdout.readline() == "held\n"
            (tmp_path / "moved" / ".lock").unlink()
            with (
                pytest.raises(InputError, match=f"in use by process {second.pid} "),
                locked(tmp_path / "run"),
            ):
                raise AssertionError


def test_lock_removed_while_taken_is_taken_again(tmp_path, monkeypatch):
    """The holder removes its file between the opening and the locking of the next run."""
    original, calls = fcntl.flock, []

    def flock(file, operation):
        if operation != fcntl.LOCK_UN:
            if not calls:
                (tmp_path / ".lock").unlink()
            calls.append(file)
        original(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path):
        assert (
            len(calls) == 2
            and (tmp_path / ".lock").stat().st_ino == os.fstat(calls[1]).st_ino
        )


def test_file_system_without_locks_prints_warning(tmp_path, monkeypatch, capsys):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path):
        said = capsys.readouterr().out
        assert (
            f"model_dir '{tmp_path}' is on a file system without locks" in said
            and said.count("\n") == 1
        )
    assert not list(tmp_path.iterdir())


def test_folder_that_cannot_be_created_is_named():
    message = "model_dir '/proc/lambdanet/run' cannot be written: "
    with pytest.raises(InputError, match=message), locked(Path("/proc/lambdanet/run")):
        raise AssertionError


def test_training_in_locked_folder_changes_nothing(tmp_path):
    model_dir.claim(tmp_path / "run", configs.get_recipe("digits"))
    before = sorted((tmp_path / "run").iterdir())
    with _holder(tmp_path / "run") as first:
        assert first.stdout.readline() == "held\n"
        with pytest.raises(InputError) as caught:
            train(configs.get_recipe("digits"), tmp_path / "run", str(tmp_path))
        assert str(caught.value) == _in_use(tmp_path / "run", first.pid)
    (tmp_path / "run" / ".lock").unlink()
    assert sorted((tmp_path / "run").iterdir()) == before
