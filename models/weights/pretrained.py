# SPDX-License-Identifier: Apache-2.0
"""Published weights in the cache: fetched and converted once, then read.

$LAMBDANET_HOME holds, for a set, MODEL.TAG.safetensors, the weights as Keras's variables with their metadata,
and MODEL.TAG.source.json, the commit and the sha256 of the file that they were first made of. What
`lambdanet.configs.registry.pretrained_weights` does not know of these is held to from the first download on.
"""

import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import tf_keras as keras

from lambdanet.configs.registry import pretrained_weights
from lambdanet.configs.registry.pretrained_weights import PublishedWeights
from lambdanet.errors import InputError
from lambdanet.models.weights import hub, timm_rules, torch_files, weight_files

NEWEST = "main"  # the revision of a repository where none is known
# Whether a file is that of a published set, and what that is known by.
ORIGINS = {
    "yes": "It is the published file: its sha256 is the one that was published.",
    "first download": "It is the file that the hub had at the first download; no sha256 was known before.",
    "no": "It is another file than the published one, such as one trained further; what is published of "
    "accuracy does not hold for it.",
    "not known": "Whether it is the published file cannot be told: no sha256 of that is known here.",
}


@dataclasses.dataclass(frozen=True)
class Source:
    """The file that weights were made of.

    Attributes:
      place: its address, or its name where it was given as a file.
      sha256: of its bytes.
      revision: its commit; empty for a file that was given.
    """

    place: str
    sha256: str
    revision: str = ""


def cached(one: PublishedWeights) -> Path:
    """Returns the path at which the converted weights lie, once they do."""
    return weight_files.cache_dir() / f"{one.model}.{one.tag}{weight_files.SAFETENSORS}"


def locate(model_name: str, name: str | Path, build: Callable[[], keras.Model]) -> Path:
    """Returns the file that is meant by `weights=`; a published set is fetched and converted first.

    Args:
      model_name: of the model that they are for.
      name: a published set, or what `weights.find` takes.
      build: makes the model, with its own number of classes and at its own image size.

    Raises:
      InputError: there is no such file, or what was fetched is not the published one.
      ConnectionError: the set is not in the cache and cannot be fetched; the message says what to do.
    """
    one = pretrained_weights.find(model_name, str(name))
    if one is None:
        return weight_files.find(model_name, name)
    path = cached(one)
    if not path.is_file():
        with tempfile.TemporaryDirectory() as folder:
            checkpoint, source = download(one, Path(folder))
            model = build()
            timm_rules.load(model, torch_files.read(checkpoint))
        store(one, model, metadata(one, source))
    return path


def download(one: PublishedWeights, folder: Path, revision: str = "") -> tuple[Path, Source]:
    """Fetches the file of a published set from the hub.

    Args:
      one: the set.
      folder: to write to.
      revision: of the repository on the hub; default: the one that is known, or else the newest.

    Returns:
      the path of the file, and where it came from.

    Raises:
      InputError: there is no such file, or it is not the one that is known.
      ConnectionError: it cannot be fetched; the message says what to do.
    """
    known_revision, known_sha256 = _known(one)
    if revision and revision != known_revision:
        known_revision, known_sha256 = revision if len(revision) == 40 else "", ""
    address = hub.url(one.repository, one.file, revision or known_revision or NEWEST)
    path = folder / one.file
    print(f"fetching {address}", flush=True)
    try:
        got = hub.fetch(address, path, known_revision, known_sha256)
    except ConnectionError as error:
        raise ConnectionError(
            f"{error}; download it where there is a network, and run "
            f"`lambdanet convert {one.model} --checkpoint=FILE`"
        ) from None
    source = Source(got.url, got.sha256, got.revision)
    if not revision:
        _remember(one, source)
    return path, source


def local(path: Path) -> Source:
    """Returns what is known of a file that was given."""
    with path.open("rb") as file:
        return Source(path.name, hashlib.file_digest(file, "sha256").hexdigest())


def as_published(one: PublishedWeights, source: Source) -> str:
    """Tells whether a file is that of a set: one of `ORIGINS`, by what is known of its sha256."""
    whole, first_sha256 = one.is_whole(source.sha256), _known(one)[1]
    if whole is None and first_sha256:
        return "first download" if source.sha256 == first_sha256 else "no"
    return {True: "yes", False: "no", None: "not known"}[whole]


def store(one: PublishedWeights, model: keras.Model, texts: Mapping[str, str]) -> Path:
    """Writes the weights of a model to the cache, with their metadata; returns the path."""
    path = cached(one)
    path.parent.mkdir(parents=True, exist_ok=True)
    weight_files.save(model, path, texts)
    return path


def metadata(one: PublishedWeights, source: Source) -> dict[str, str]:
    """Returns what is written beside the weights of a published set."""
    texts = {
        weight_files.PUBLISHED: one.tag,
        "repository": one.repository,
        "source": source.place,
        "source_revision": source.revision,
        "source_sha256": source.sha256,
        "as_published": as_published(one, source),
        "input_size": one.input_size,
        "mean": ", ".join(map(str, one.mean)),
        "std": ", ".join(map(str, one.std)),
        "crop_fraction": one.crop_fraction,
        "interpolation": one.interpolation,
        "num_classes": one.num_classes,
        "licence": one.licence,
        "top1": one.top1,
        "top5": one.top5,
    }
    return {key: str(value) for key, value in texts.items() if value != ""}


def _source_file(one: PublishedWeights) -> Path:
    return weight_files.cache_dir() / f"{one.model}.{one.tag}.source.json"


def _known(one: PublishedWeights) -> tuple[str, str]:
    """The commit and the sha256 of the file on the hub: as published here, or as first downloaded."""
    first: Mapping[str, str] = {}
    try:
        first = json.loads(_source_file(one).read_text(encoding="utf-8"))
        return one.revision or first["revision"], one.sha256 or first["sha256"]
    except FileNotFoundError:
        return one.revision, one.sha256
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{str(_source_file(one))!r} cannot be read ({error}); remove it to take the file as it is now"
        ) from None


def _remember(one: PublishedWeights, source: Source) -> None:
    """Writes down what the first download was."""
    path = _source_file(one)
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        text = {"url": source.place, "revision": source.revision, "sha256": source.sha256}
        partial.write_text(json.dumps(text, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
