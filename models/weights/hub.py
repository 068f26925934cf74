# SPDX-License-Identifier: Apache-2.0
"""Downloads from the Hugging Face hub, by its own client, checked against the sha256 that the hub reports."""

import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

import huggingface_hub as client  # lazy: its parts are imported when they are used

from lambdanet.core.errors import InputError, invalid, one_line
from lambdanet.core.files import cache_dir

NEWEST = "main"  # the revision of a repository if none is known


class Source(NamedTuple):
    """The file that weights were made from.

    Attributes:
      location: its address on the hub, or its name if it is a local file.
      sha256: the hash of its bytes.
      revision: its commit; empty for a local file.
    """

    location: str
    sha256: str
    revision: str = ""


class MissingFile(InputError):
    """A file that the hub does not have, or not for this account."""


def find_cached(repository: str, file: str, revision: str) -> Path | None:
    """Returns a file in the cache of huggingface_hub, or None; no network is used.

    Raises:
      InputError: the hub has no repositories of such names.
    """
    try:
        found = client.try_to_load_from_cache(repository, file, revision=revision)
    except ValueError as error:
        raise invalid(
            "repository", "USER/REPO as the hub accepts it", repository, one_line(error)
        ) from None
    return Path(found) if isinstance(found, str) else None


def remedy(path: str | Path) -> str:
    """Returns what an error about a damaged file adds if the file is in one of the caches."""
    # Not before it is needed: it reads the environment.
    from huggingface_hub import constants

    path = Path(path).resolve()
    caches = (cache_dir(), Path(constants.HF_HUB_CACHE))
    cached = any(path.is_relative_to(cache.resolve()) for cache in caches)
    return (
        f"; remove {str(path)!r}: weights of the hub are fetched again"
        if cached
        else ""
    )


def fetch(repository: str, file: str, revision: str = NEWEST) -> tuple[Path, Source]:
    """Returns a file of the hub in the cache of huggingface_hub, and its source; downloads it if needed.

    Args:
      repository: USER/REPO; a private one needs a token (`hf auth login`, or $HF_TOKEN).
      file: its name, without a folder.
      revision: the commit, branch or tag.

    Raises:
      MissingFile: the hub has no such file for this account.
      InputError: it is not of the commit, or its sha256 not the reported one, or the cache cannot be written.
      ConnectionError: it is not in the cache and the hub cannot be reached.
    """
    # Of now, not of when it was imported.
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or None
    address = client.hf_hub_url(repository, file, revision=revision, endpoint=endpoint)
    print(f"fetching {address}", flush=True)
    try:
        # Fails at once, where the next line tries for 20 seconds.
        client.get_hf_file_metadata(address)
        found = Path(
            client.hf_hub_download(
                repository, file, revision=revision, endpoint=endpoint
            )
        )
    # Of the client's or of its HTTP library, which differs between versions.
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403, 404):
            raise MissingFile(
                f"there is no {address} for this account (HTTP {status})"
            ) from None
        if isinstance(error, OSError) and error.filename:
            raise InputError(f"HF_HOME cannot be written: {one_line(error)}") from None
        if not (cached := find_cached(repository, file, revision)):
            reason = f"HTTP {status}" if status else one_line(error.__cause__ or error)
            raise ConnectionError(f"{address} cannot be fetched: {reason}") from None
        found = cached
    # The client names it by the sha256 that the hub reports, if it does.
    blob = found.resolve()
    with blob.open("rb") as content:
        source = Source(
            address,
            hashlib.file_digest(content, "sha256").hexdigest(),
            found.parent.name,
        )
    if re.fullmatch("[0-9a-f]{64}", blob.name) and blob.name != source.sha256:
        blob.unlink()
        hint = "it is removed from the cache; try again"
        raise invalid(f"sha256 of {address}", blob.name, source.sha256, hint)
    if re.fullmatch("[0-9a-f]{40}", revision) and revision != source.revision:
        raise invalid(f"commit of {address}", revision, source.revision)
    return found, source
