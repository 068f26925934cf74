# SPDX-License-Identifier: Apache-2.0
"""Downloads from the Hugging Face hub, checked against the commit and the sha256 that the hub reports.

The standard library is enough: a file of a public repository needs no client, and its hash is checked here.
The hub answers a request for a large file with a redirect whose headers X-Repo-Commit and X-Linked-ETag have
the commit and the file's sha256.
"""

import contextlib
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from lambdanet.errors import InputError
from lambdanet.files import atomic_file

HUB = "https://huggingface.co"
NEWEST = "main"  # the revision of a repository if none is known
CHUNK = 1 << 20  # bytes
TIMEOUT = 30  # seconds without a byte


class Source(NamedTuple):
    """The file that weights were made from.

    Attributes:
      location: its address on the hub, or its name if it is a local file.
      sha256: the hash of its bytes.
      revision: its commit, as the hub reported it; empty if it did not, and for a local file.
    """

    location: str
    sha256: str
    revision: str = ""


class MissingFile(InputError):
    """A file that the hub does not have, or does not show to everybody."""


def url(repository: str, file: str, revision: str) -> str:
    """Returns the address of a file; $HF_ENDPOINT names a mirror of the hub."""
    endpoint = (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    return f"{endpoint}/{repository}/resolve/{revision}/{file}"


def fetch(address: str, path: Path, revision: str = "", sha256: str = "") -> Source:
    """Downloads a file of the hub, which appears at its path once it is complete and checked.

    Args:
      address: the address, from `url`.
      path: the path to write to.
      revision: the full commit that the file must have; empty for any.
      sha256: the hash that the file must have; empty for the one that the hub reports, if it does.

    Raises:
      MissingFile: the hub has no such file.
      InputError: the hub has another one.
      ConnectionError: the hub cannot be reached, or the download is incomplete.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as partial:
        with _reading(address) as (response, headers):
            length = response.headers.get("Content-Length")
            found, size = _copy(response, partial, int(length) if length else None)
        if length and int(length) != size:
            raise ConnectionError(f"{address} is incomplete, {size} of {length} bytes; try again")
        linked = headers.get("x-linked-etag", "").strip('"')
        source = Source(address, found, headers.get("x-repo-commit", ""))
        _check(source, revision, sha256 or (linked if re.fullmatch("[0-9a-f]{64}", linked) else ""))
    return source


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, keeps the headers of each, and never leaves https."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        self.headers.update({name.lower(): value for name, value in headers.items()})
        if req.type == "https" and not newurl.startswith("https:"):
            raise urllib.error.URLError(f"it redirects to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextlib.contextmanager
def _reading(address: str) -> Iterator[tuple[http.client.HTTPResponse, Mapping[str, str]]]:
    """Yields the response, and its headers; those of the redirects before it take precedence."""
    redirects = _Redirects()
    request = urllib.request.Request(address, headers={"User-Agent": "lambdanet"})
    try:
        with urllib.request.build_opener(redirects).open(request, timeout=TIMEOUT) as response:
            own = {name.lower(): value for name, value in response.headers.items()}
            yield response, own | redirects.headers
    except urllib.error.HTTPError as error:
        with error:
            if error.code in (401, 403, 404):
                raise MissingFile(f"there is no {address} (HTTP {error.code})") from None
            raise ConnectionError(f"{address} cannot be read now: HTTP {error.code}") from None
    except urllib.error.URLError as error:
        raise ConnectionError(f"{address} cannot be reached: {error.reason}") from None
    except (http.client.HTTPException, TimeoutError, ConnectionResetError) as error:
        raise ConnectionError(f"{address} was interrupted: {error}") from None


def _copy(response: http.client.HTTPResponse, path: Path, length: int | None) -> tuple[str, int]:
    """Writes a response to a path, with a progress bar in a terminal; returns its sha256 and size."""
    digest, size = hashlib.sha256(), 0
    bar = tqdm(desc="fetching", total=length, unit="B", unit_scale=True, disable=None, leave=False)
    with path.open("wb") as file, bar:
        while chunk := response.read(CHUNK):
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            bar.update(len(chunk))
    return digest.hexdigest(), size


def _check(source: Source, revision: str, sha256: str) -> None:
    if sha256 and source.sha256 != sha256:
        raise InputError(f"sha256 of {source.location} must be {sha256}, got {source.sha256}")
    if revision and source.revision not in ("", revision):
        raise InputError(f"commit of {source.location} must be {revision}, got {source.revision}")
