# SPDX-License-Identifier: Apache-2.0
"""A server on this machine that answers as the Hugging Face hub does, for tests of downloads."""

import contextlib
import hashlib
import http.server
import threading
from collections.abc import Iterator

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """The contents of the server, and its faults.

    Attributes:
      files: the bytes of each file, by "repository/file".
      commit: the commit of every repository.
      trouble: "" for none; "cut" ends in the middle of a body; "busy" answers 503; "lie" sends another
        sha256; "silent" sends neither commit nor sha256; "hang up" closes the connection.
      requests: the paths that were asked for.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.commit = COMMIT
        self.trouble = ""
        self.requests: list[str] = []
        self.address = ""

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        self.requests.append(handler.path)
        if handler.path.startswith("/cdn/"):  # where the large files are
            self._send(handler, self.files[handler.path.removeprefix("/cdn/")])
            return
        repository, _, rest = handler.path.removeprefix("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        content = self.files.get(f"{repository}/{file}")
        if content is None or revision not in ("main", self.commit):
            handler.send_error(404)
        elif self.trouble == "busy":
            handler.send_error(503)
        else:
            handler.send_response(302)
            handler.send_header("Location", f"{self.address}/cdn/{repository}/{file}")
            if self.trouble != "silent":
                sent = content + b"!" if self.trouble == "lie" else content
                handler.send_header("X-Repo-Commit", self.commit)
                handler.send_header("X-Linked-Size", str(len(content)))
                handler.send_header("X-Linked-ETag", f'"{hashlib.sha256(sent).hexdigest()}"')
            handler.send_header("Content-Length", "0")
            handler.end_headers()

    def _send(self, handler: http.server.BaseHTTPRequestHandler, content: bytes) -> None:
        if self.trouble == "hang up":
            return
        handler.send_response(200)
        handler.send_header("ETag", '"of the storage"')
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[: len(content) // 2] if self.trouble == "cut" else content)


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    """Yields a hub that answers at `hub.address` for as long as the context lasts."""
    hub = Hub()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.answer(self)

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
