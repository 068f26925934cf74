# SPDX-License-Identifier: Apache-2.0
"""Downloads from a local server that imitates the hub and its failures."""

import hashlib
import socket

import pytest
from hub_server import COMMIT, serving
from terminal import terminal_as_stderr

from lambdanet.errors import InputError
from lambdanet.models.weights import hub

CONTENT = bytes(range(256)) * 12_000  # 3 MB: more than a piece
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server(monkeypatch):
    with serving() as running:
        running.files["timm/net.tag/model.safetensors"] = CONTENT
        monkeypatch.setenv("HF_ENDPOINT", running.address + "/")
        yield running


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "model.safetensors"


def address(revision="main", file="model.safetensors"):
    return hub.url("timm/net.tag", file, revision)


def test_fetch_returns_commit_and_hash(server, path):
    download = hub.fetch(address(), path)
    assert path.read_bytes() == CONTENT
    assert download == hub.Source(address(), SHA256, COMMIT)
    assert server.requests == [
        "/timm/net.tag/resolve/main/model.safetensors",
        "/cdn/timm/net.tag/model.safetensors",
    ]
    hub.fetch(address(COMMIT), path, COMMIT, SHA256)  # over the one that is there


def test_progress_bar_only_in_a_terminal(server, path, capsys):
    hub.fetch(address(), path)
    assert capsys.readouterr().err == ""
    with terminal_as_stderr() as shown:
        hub.fetch(address(), path)
    assert b"fetching:   0%|" in shown and b"/3.07M [" in shown
    assert shown.endswith(b"\r")  # nothing of it stays


def test_url_without_a_mirror(monkeypatch):
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert address() == "https://huggingface.co/timm/net.tag/resolve/main/model.safetensors"


@pytest.mark.parametrize(
    ("trouble", "arguments", "error", "message"),
    [
        (
            "cut",
            {},
            ConnectionError,
            f"is incomplete, {len(CONTENT) // 2} of {len(CONTENT)} bytes; try again",
        ),
        ("busy", {}, ConnectionError, "cannot be read now: HTTP 503"),
        ("hang up", {}, ConnectionError, "Remote end closed connection"),
        ("lie", {}, InputError, f", got {SHA256}"),
        ("", {"sha256": "0" * 64}, InputError, f"must be {'0' * 64}, got {SHA256}"),
        ("silent", {"sha256": "0" * 64}, InputError, f"must be {'0' * 64}, got {SHA256}"),
        ("", {"revision": "f" * 40}, InputError, f"must be {'f' * 40}, got {COMMIT}"),
    ],
)
def test_failed_download_leaves_nothing(server, path, trouble, arguments, error, message):
    server.trouble = trouble
    with pytest.raises(error) as raised:
        hub.fetch(address(), path, **arguments)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert list(path.parent.iterdir()) == []


def test_mirror_without_headers(server, path):
    server.trouble = "silent"
    assert hub.fetch(address(), path) == hub.Source(address(), SHA256)


@pytest.mark.parametrize("there", [("no_such_revision",), ("main", "other.bin")])
def test_a_file_that_does_not_exist(server, path, there):
    with pytest.raises(InputError, match=r"there is no http://.* \(HTTP 404\)"):
        hub.fetch(address(*there), path)


def test_no_network(monkeypatch, path):
    with socket.socket() as closed:  # bound, but not listening
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(ConnectionError, match="cannot be reached: .*refused"):
            hub.fetch(address(), path)
    assert list(path.parent.iterdir()) == []


def test_a_redirect_away_from_https_is_not_followed():
    request = hub.urllib.request.Request("https://huggingface.co/x")
    with pytest.raises(hub.urllib.error.URLError, match="not https"):
        hub._Redirects().redirect_request(request, None, 302, "Found", {}, "http://elsewhere/x")
