# SPDX-License-Identifier: Apache-2.0
"""Two runs in one model_dir: real processes, killed ones, forks, and file systems without locks."""

import contextlib
import errno
import fcntl
import os
import resource
import signal
import socket
import subprocess

import pytest
from helpers import program
from refusals import refused

from lambdanet import configs
from lambdanet.core.files import locked, write_atomic
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


def _owner(pid):
    return f"process {pid} on host '{socket.gethostname()}'"


def _assert_in_use(folder, pid):
    """Asserts that the lock of a folder cannot be taken."""
    message = f"model_dir '{folder}' is in use by {_owner(pid)}"
    with refused(f"^{message}$"), locked(folder):
        raise AssertionError


def test_second_process_is_rejected_until_first_ends(tmp_path):
    folder = tmp_path / "a/run"
    with _holder(folder) as first:
        assert first.stdout.readline() == "held\n"
        with _holder(folder) as second:
            assert second.stdout.read().endswith(f" by {_owner(first.pid)}\n")
        _assert_in_use(folder, first.pid)
        first.stdin.close()
        assert first.wait() == 0
    assert not list(tmp_path.iterdir())  # nothing was written
    with locked(folder):
        assert (folder / ".lock").read_text() == f"{_owner(os.getpid())}\n"


@pytest.mark.parametrize("words", [(), ("fork",)])
def test_killed_process_releases_lock(tmp_path, words):
    """Also if its forked child is still running."""
    with _holder(tmp_path, *words) as first:
        said = first.stdout.readline()
        first.kill()
        assert first.wait() == -signal.SIGKILL
        lock = tmp_path / ".lock"
        assert lock.exists()
        try:
            with locked(tmp_path):
                assert lock.read_text() == f"{_owner(os.getpid())}\n"
        finally:
            if words:
                os.kill(int(said), signal.SIGKILL)  # it is running
    assert not list(tmp_path.iterdir())


def test_existing_files_and_parents_remain(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    with pytest.raises(KeyError), locked(mine / "a/b"):
        raise KeyError
    assert list(tmp_path.rglob("*")) == [mine]
    with locked(mine / "a"):
        (mine / "a/file").touch()
    assert [path.name for path in (mine / "a").iterdir()] == ["file"]


def test_folder_recreated_by_other_run_keeps_its_lock(tmp_path):
    folder = tmp_path / "run"
    with locked(folder):
        folder.rename(tmp_path / "moved")
        with _holder(folder) as second:
            assert second.stdout.readline() == "held\n"
            (tmp_path / "moved/.lock").unlink()
            _assert_in_use(folder, second.pid)


def test_lock_removed_while_taken_is_taken_again(tmp_path, monkeypatch):
    """The holder removes its file between the opening and the locking of the next run."""
    lock = tmp_path / ".lock"
    original = fcntl.flock
    calls = []

    def flock(file, operation):
        if operation != fcntl.LOCK_UN:
            if not calls:
                lock.unlink()
            calls.append(file)
        original(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path):
        assert len(calls) == 2
        assert lock.stat().st_ino == os.fstat(calls[1]).st_ino


def test_file_system_without_locks_prints_warning(tmp_path, monkeypatch, capsys):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path):
        said = capsys.readouterr().out
        assert said.count("\n") == 1
        assert f"model_dir '{tmp_path}' is on a file system without locks" in said
    assert not list(tmp_path.iterdir())


def test_full_disk_is_named_and_changes_no_file(tmp_path):
    history = tmp_path / "history.csv"
    write_atomic(history, "old\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with refused("cannot be written: .lock: .*large"), locked(tmp_path / "run"):
            raise AssertionError
        with refused(f"too large: '{history}'", OSError):
            write_atomic(history, "new\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert history.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [history]


def test_folder_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").touch()
    folder = tmp_path / "file/run"
    with refused(f"model_dir '{folder}' cannot be written: "), locked(folder):
        raise AssertionError


def test_training_in_locked_folder_changes_nothing(tmp_path):
    recipe = configs.get_recipe("digits")
    folder = model_dir.claim(tmp_path / "run", recipe)
    before = sorted(folder.iterdir())
    with locked(folder):
        for _ in range(2):
            with refused(f"is in use by {_owner(os.getpid())}$"):
                train(recipe, folder, str(tmp_path))
    assert sorted(folder.iterdir()) == before
