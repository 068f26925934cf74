# SPDX-License-Identifier: Apache-2.0
"""Files from the Hugging Face hub: read whole, with the commit and the hash that the hub tells of them.

The standard library does: one file of a public repository needs no client, and the hash of every byte is
compared here. The hub answers a request for a large file with a redirect that carries, in X-Repo-Commit and
X-Linked-ETag, the commit and the file's sha256.
"""

import contextlib
import dataclasses
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from tqdm import tqdm

from lambdanet.errors import InputError

HUB = "https://huggingface.co"
CHUNK = 1 << 20  # bytes
TIMEOUT = 30  # seconds without a byte


@dataclasses.dataclass(frozen=True)
class Download:
    """A file as it came.

    Attributes:
      url: that it was asked for.
      revision: the commit that it is of, as the hub told; empty where it did not.
      sha256: of its bytes.
      size: in bytes.
    """

    url: str
    revision: str
    sha256: str
    size: int


def url(repository: str, file: str, revision: str) -> str:
    """Returns the address of a file; $HF_ENDPOINT names a mirror of the hub."""
    endpoint = (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    return f"{endpoint}/{repository}/resolve/{revision}/{file}"


def fetch(address: str, path: Path, revision: str = "", sha256: str = "") -> Download:
    """Writes a file of the hub to a path, once it is here whole and is the one that was meant.

    Args:
      address: from `url`.
      path: to write to; it appears when everything is checked.
      revision: the full commit that it has to be of; empty for any.
      sha256: that it has to have; empty for the one that the hub tells, if it does.

    Raises:
      InputError: the hub has no such file, or it is not the one that was meant.
      ConnectionError: the hub cannot be reached, or the file did not come whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with _reading(address) as (response, told):
            length = response.headers.get("Content-Length")
            found, size = _copy(response, partial, int(length) if length else None)
        if length and int(length) != size:
            raise ConnectionError(f"{address} came cut short, {size} of {length} bytes; try again")
        linked = told.get("x-linked-etag", "").strip('"')
        download = Download(address, told.get("x-repo-commit", ""), found, size)
        _check(download, revision, sha256 or (linked if re.fullmatch("[0-9a-f]{64}", linked) else ""))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return download


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects as ever, keeps the headers of each, and never leaves https."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        self.told.update({name.lower(): value for name, value in headers.items()})
        if req.type == "https" and not newurl.startswith("https:"):
            raise urllib.error.URLError(f"it leads to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextlib.contextmanager
def _reading(address: str) -> Iterator[tuple[http.client.HTTPResponse, Mapping[str, str]]]:
    """Yields the response, and its headers with those of the redirects on the way over them."""
    redirects = _Redirects()
    request = urllib.request.Request(address, headers={"User-Agent": "lambdanet"})
    try:
        with urllib.request.build_opener(redirects).open(request, timeout=TIMEOUT) as response:
            own = {name.lower(): value for name, value in response.headers.items()}
            yield response, own | redirects.told
    except urllib.error.HTTPError as error:
        with error:
            if error.code in (401, 403, 404):
                raise InputError(
                    f"there is no {address} (HTTP {error.code}); accepted: a file there"
                ) from None
            raise ConnectionError(f"{address} cannot be read now: HTTP {error.code}") from None
    except urllib.error.URLError as error:
        raise ConnectionError(f"{address} cannot be reached: {error.reason}") from None
    except (http.client.HTTPException, TimeoutError, ConnectionResetError) as error:
        raise ConnectionError(f"{address} broke off: {error}") from None


def _copy(response: http.client.HTTPResponse, path: Path, length: int | None) -> tuple[str, int]:
    """Writes what comes to a path, with a progress bar in a terminal; returns its sha256 and size."""
    digest, size = hashlib.sha256(), 0
    bar = tqdm(desc="fetching", total=length, unit="B", unit_scale=True, disable=None, leave=False)
    with path.open("wb") as file, bar:
        while chunk := response.read(CHUNK):
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            bar.update(len(chunk))
    return digest.hexdigest(), size


def _check(download: Download, revision: str, sha256: str) -> None:
    if sha256 and download.sha256 != sha256:
        raise InputError(
            f"{download.url} is not what was meant: its sha256 is {download.sha256}, not {sha256}"
        )
    if revision and download.revision not in ("", revision):
        raise InputError(f"{download.url} is of the commit {download.revision}; accepted: {revision}")
