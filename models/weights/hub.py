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
DATASET = re.compile(
    r"hf:(//datasets/)?(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w.-]*))*"
)


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
    except Exception as error:
        refusal = _refusal(error, address)
        cached = find_cached(repository, file, revision)
        if isinstance(refusal, InputError) or not cached:
            raise refusal from None
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


def fetch_dataset(name: str, split: str) -> tuple[str, str]:
    """Returns the folder of a dataset in the cache of huggingface_hub, and its name with the commit.

    Args:
      name: "hf:USER/REPO" or "hf:USER/REPO@REVISION", also with "hf://datasets/"; of several revisions, as in
        a name that was returned, the last. What the cache lacks is downloaded.
      split: the split whose Parquet files may be in any one folder of the repository.

    Raises:
      InputError: the name has another form, the hub has no such dataset for this account, it has Parquet
        files in several folders, or the cache cannot be written.
      ConnectionError: it is not complete in the cache, and the hub cannot be reached.
    """
    match = DATASET.fullmatch(name)
    if not match:
        raise invalid("data_dir", "hf:USER/REPO or hf:USER/REPO@REVISION", name)
    print(f"fetching dataset {name}", flush=True)
    try:
        folder = client.snapshot_download(
            match["repository"], repo_type="dataset", revision=match["revision"]
        )
    except Exception as error:
        raise _refusal(error, f"dataset {name}") from None
    root = Path(folder)
    files = root.rglob(f"{split}-*.parquet")
    found = {str(file.parent.relative_to(root)) for file in files}
    if len(found) > 1:
        raise invalid(f"folders of Parquet files in {name}", "one", sorted(found))
    if not name.endswith(root.name):
        name = f"{name}@{root.name}"
    return str(root.joinpath(*found)), name


def _refusal(error: Exception, address: str) -> Exception:
    """Returns the error for one of the client, or of its HTTP library, which differs between versions."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403, 404):
        return MissingFile(f"there is no {address} for this account (HTTP {status})")
    if isinstance(error, OSError) and error.filename:
        return InputError(f"HF_HOME cannot be written: {one_line(error)}")
    reason = f"HTTP {status}" if status else one_line(error.__cause__ or error)
    return ConnectionError(f"{address} cannot be fetched: {reason}")
