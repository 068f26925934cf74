# SPDX-License-Identifier: Apache-2.0
"""Downloads from a local server that imitates the hub and its failures."""

import hashlib
import socket
import time

import pytest
from hub_server import COMMIT, serving
from refusals import refused

from lambdanet.core.errors import InputError
from lambdanet.models.weights.hub import MissingFile, Source, fetch, find_cached

CONTENT = bytes(range(256)) * 12_000  # 3 MB
SHA256 = hashlib.sha256(CONTENT).hexdigest()
REPOSITORY, FILE = "timm/net.tag", "model.safetensors"


@pytest.fixture
def server(monkeypatch, tmp_path):
    with serving() as running:
        running.files[f"{REPOSITORY}/{FILE}"] = CONTENT
        running.use(monkeypatch, tmp_path / "cache")
        yield running


def blobs(tmp_path):
    return [
        path
        for path in (tmp_path / "cache").rglob("*")
        if path.is_file() and "blobs" in path.parts
    ]


def test_fetch_returns_commit_and_hash(server):
    address = f"{server.address}/{REPOSITORY}/resolve/main/{FILE}"
    path, source = fetch(REPOSITORY, FILE)
    assert path.read_bytes() == CONTENT
    assert source == Source(address, SHA256, COMMIT)
    assert fetch(REPOSITORY, FILE, COMMIT)[1] == source._replace(
        location=address.replace("main", COMMIT)
    )
    # The second is in the cache.
    assert sum(request.startswith("GET") for request in server.requests) == 1


@pytest.mark.parametrize("offline", [False, True])
def test_a_file_in_the_cache_needs_no_network(server, monkeypatch, offline):
    found = fetch(REPOSITORY, FILE)
    server.trouble = "busy"
    if offline:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with refused("cannot be fetched: .*offline", ConnectionError):
            fetch(REPOSITORY, "other.safetensors")
    assert fetch(REPOSITORY, FILE) == found
    assert find_cached(REPOSITORY, FILE, "main") == found[0]


def test_a_private_repository_needs_a_token(server, monkeypatch):
    server.token = "hf_secret"
    message = r"there is no http://.* for this account \(HTTP 401\)"
    with refused(message, MissingFile):
        fetch(REPOSITORY, FILE)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert fetch(REPOSITORY, FILE)[1].sha256 == SHA256


@pytest.mark.parametrize(
    ("trouble", "revision", "error", "message"),
    [
        ("busy", "main", ConnectionError, "cannot be fetched: HTTP 503"),
        (
            "cut",
            "main",
            ConnectionError,
            "cannot be fetched: .*received 1536000 bytes, expected 3072000",
        ),
        (
            "moved",
            COMMIT,
            InputError,
            f"commit of http.* must be {COMMIT}, got 'f{{40}}'",
        ),
        (
            "portal",
            "main",
            ConnectionError,
            "does not seem to be served by a Hugging Face Hub",
        ),
        ("lie", "main", InputError, f", got '{SHA256}'"),
        (
            "",
            "f" * 40,
            MissingFile,
            f"there is no http://.*{'f' * 40}.* \\(HTTP 404\\)",
        ),
    ],
)
def test_failed_download_leaves_nothing(
    server, monkeypatch, tmp_path, trouble, revision, error, message
):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between attempts
    server.trouble = trouble
    with refused(message, error):
        fetch(REPOSITORY, FILE, revision)
    assert trouble == "moved" or blobs(tmp_path) == []
    server.trouble = ""
    assert fetch(REPOSITORY, FILE)[1].sha256 == SHA256


def test_a_damaged_file_of_the_cache_is_refused_once(server):
    path, _ = fetch(REPOSITORY, FILE)
    path.write_bytes(CONTENT[:-1])
    with refused(f"must be {SHA256}, got .*; it is removed from the cache"):
        fetch(REPOSITORY, FILE)
    assert fetch(REPOSITORY, FILE)[0].read_bytes() == CONTENT


@pytest.mark.parametrize("endpoint", ["", "not a url", "http://", "ftp://x"])
def test_no_network_fails_at_once(server, monkeypatch, endpoint):
    """Without a pause before another attempt."""
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with socket.socket() as closed:  # bound, but not listening
        closed.bind(("127.0.0.1", 0))
        refusing = f"http://127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("HF_ENDPOINT", endpoint or refusing)
        with refused("cannot be fetched: ", ConnectionError):
            fetch(REPOSITORY, FILE)
    assert sum(pauses) < 5


def test_a_cache_that_cannot_be_written(server, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(
        "huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "file")
    )
    with refused("HF_HOME cannot be written: .*file"):
        fetch(REPOSITORY, FILE)
    assert not any(request.startswith("GET") for request in server.requests)
