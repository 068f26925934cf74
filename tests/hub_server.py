# SPDX-License-Identifier: Apache-2.0
"""A server on this machine that answers as the Hugging Face hub does, for tests of downloads."""

import contextlib
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """The contents of the server, and its faults."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}  # by "repository/file"
        self.commit = COMMIT  # of every repository
        self.token = ""  # that the server demands
        # "busy", "portal", or "cut" body, "lie" of the hash, "moved" commit
        self.trouble = ""
        self.requests: list[str] = []  # methods and paths
        self.address = ""

    def use(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        """Makes the client ask this server, and keep downloads in a folder."""
        monkeypatch.setenv("HF_ENDPOINT", self.address + "/")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        self.requests.append(f"{handler.command} {handler.path}")
        if handler.path.startswith("/cdn/"):  # where the large files are
            self._send(handler, self.files[handler.path.removeprefix("/cdn/")])
            return
        repository, _, rest = handler.path.removeprefix("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        content = self.files.get(f"{repository}/{file}")
        if self.trouble == "portal":
            self._send(handler, b"<html>Log in</html>")
        elif (
            self.token
            and handler.headers.get("Authorization") != f"Bearer {self.token}"
        ):
            self._end(handler, 401, {"X-Error-Code": "RepoNotFound"})
        elif content is None or revision not in ("main", self.commit):
            self._end(
                handler,
                404,
                {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.commit},
            )
        elif self.trouble == "busy":
            self._end(handler, 503, {})
        else:
            sent = content + b"!" if self.trouble == "lie" else content
            headers = {
                "Location": self.address.replace("127.0.0.1", "localhost")
                + f"/cdn/{repository}/{file}",
                "X-Repo-Commit": "f" * 40 if self.trouble == "moved" else self.commit,
                "X-Linked-Size": str(len(content)),
                "X-Linked-ETag": f'"{hashlib.sha256(sent).hexdigest()}"',
            }
            self._end(handler, 302, headers)

    def _end(
        self,
        handler: http.server.BaseHTTPRequestHandler,
        status: int,
        headers: dict[str, str],
    ) -> None:
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": "0"}.items():
            handler.send_header(name, value)
        handler.end_headers()

    def _send(
        self, handler: http.server.BaseHTTPRequestHandler, content: bytes
    ) -> None:
        handler.send_response(200)
        handler.send_header("ETag", '"of the storage"')
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(
                content[: len(content) // 2] if self.trouble == "cut" else content
            )


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    """Yields a hub that answers at `hub.address` for as long as the context lasts."""
    hub = Hub()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.answer(self)

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}
    )
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
