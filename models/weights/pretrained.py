# SPDX-License-Identifier: Apache-2.0
"""Published weights in the cache: fetched and converted once, then read.

For a set, $LAMBDANET_HOME has MODEL.TAG.safetensors, the weights as Keras's variables with their metadata,
and MODEL.TAG.source.json, the commit and the sha256 of the file that they were first made from. Where
`lambdanet.configs.registry.pretrained_weights` lacks these, every later download must match the first.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from lambdanet.backend import keras
from lambdanet.configs.registry import pretrained_weights
from lambdanet.configs.registry.pretrained_weights import TEST_SETS, PublishedWeights
from lambdanet.errors import InputError, invalid
from lambdanet.files import write_atomic
from lambdanet.models.weights import hub, repositories, timm_rules, torch_files, weight_files
from lambdanet.models.weights.hub import Source

# The values of "as_published" in the metadata: whether a file is that of a published set.
PROVENANCE = {
    "yes": "It is the published file: the sha256 matches.",
    "first download": "It is the file that the hub had at the first download; its sha256 was unknown before.",
    "no": "It is another file than the published one, such as one trained further; the published accuracy "
    "does not apply to it.",
    "not known": "It is unknown whether it is the published file, whose sha256 is not recorded here.",
}


def cache_path(published: PublishedWeights) -> Path:
    """Returns the path of the converted weights in the cache."""
    return weight_files.cache_dir() / f"{published.model}.{published.tag}{weight_files.SAFETENSORS}"


def locate(model_name: str, name: str | Path, build: Callable[..., keras.Model]) -> Path:
    """Returns the file that `weights=` names; fetches and converts one of the hub first.

    Args:
      model_name: the name of the model.
      name: a published set, "hf:USER/REPO", or what `weight_files.find_file` takes.
      build: makes the model at its own image size: `build(num_classes=10)`.

    Raises:
      InputError: there is no such file, or the downloaded one is not the published one.
      ConnectionError: the weights are not in the cache and cannot be fetched; the message has instructions.
    """
    if not isinstance(name, str | Path):
        raise invalid("weights", "a string or a path", name)
    published = pretrained_weights.find(model_name, str(name))
    if str(name).startswith(repositories.PREFIX):
        return repositories.locate(model_name, str(name), build)
    if published is None:
        return weight_files.find_file(model_name, name)
    path = cache_path(published)
    if not path.is_file():
        with tempfile.TemporaryDirectory() as folder:
            checkpoint, source = download(published, Path(folder))
            model = build()
            timm_rules.load(model, torch_files.read(checkpoint))
        save_to_cache(published, model, metadata(published, source))
    return path


def download(published: PublishedWeights, folder: Path, revision: str = "") -> tuple[Path, Source]:
    """Fetches the file of a published set from the hub.

    Args:
      published: the set.
      folder: the folder to write to.
      revision: the revision of the repository on the hub; default: the known one, or else the newest.

    Returns:
      the path of the file, and its source.

    Raises:
      InputError: there is no such file, or it is not the known one.
      ConnectionError: it cannot be fetched; the message has instructions.
    """
    known_revision, known_sha256 = _known(published)
    if revision and revision != known_revision:
        known_revision, known_sha256 = revision if len(revision) == 40 else "", ""
    address = hub.url(published.repository, published.file, revision or known_revision or hub.NEWEST)
    path = folder / published.file
    print(f"fetching {address}", flush=True)
    try:
        source = hub.fetch(address, path, known_revision, known_sha256)
    except ConnectionError as error:
        raise ConnectionError(
            f"{error}; download it where there is a network, and run "
            f"`lambdanet convert {published.model} --checkpoint=FILE`"
        ) from None
    if not revision:
        _record_first_download(published, source)
    return path, source


def local_source(path: Path) -> Source:
    """Returns the source of weights in a local file."""
    with path.open("rb") as file:
        return Source(path.name, hashlib.file_digest(file, "sha256").hexdigest())


def provenance(published: PublishedWeights, source: Source) -> str:
    """Returns whether a file is that of a set, as one of `PROVENANCE`, according to its sha256."""
    matches, first_sha256 = published.matches_sha256(source.sha256), _known(published)[1]
    if matches is None and first_sha256:
        return "first download" if source.sha256 == first_sha256 else "no"
    return {True: "yes", False: "no", None: "not known"}[matches]


def save_to_cache(published: PublishedWeights, model: keras.Model, metadata: Mapping[str, str]) -> Path:
    """Writes the weights of a model to the cache, with their metadata; returns the path."""
    path = cache_path(published)
    path.parent.mkdir(parents=True, exist_ok=True)
    weight_files.save(model, path, metadata)
    return path


def metadata(published: PublishedWeights, source: Source) -> dict[str, str]:
    """Returns the metadata of the weights of a published set."""
    values = {
        weight_files.PUBLISHED: published.tag,
        "repository": published.repository,
        "source": source.location,
        "source_revision": source.revision,
        "source_sha256": source.sha256,
        "as_published": provenance(published, source),
        "input_size": published.input_size,
        "mean": ", ".join(map(str, published.mean)),
        "std": ", ".join(map(str, published.std)),
        "crop_fraction": published.crop_fraction,
        "interpolation": published.interpolation,
        "num_classes": published.num_classes,
        "license": published.license,
        "top1": published.top1,
        "top5": published.top5,
        **{_accuracy_key(name): published.accuracies.get(name, "") for name in TEST_SETS},
    }
    return {key: str(value) for key, value in values.items() if value != ""}


def accuracies(metadata: Mapping[str, str]) -> dict[str, str]:
    """Returns the published top-1 accuracies in the metadata of weights, in percent, by the test set."""
    keys = {"ImageNet": "top1", **{name: _accuracy_key(name) for name in TEST_SETS}}
    return {name: metadata[key] for name, key in keys.items() if key in metadata}


def without_accuracies(metadata: Mapping[str, str]) -> dict[str, str]:
    """Returns metadata without what holds for published weights alone."""
    return {key: text for key, text in metadata.items() if not key.startswith(("top1", "top5"))}


def _accuracy_key(test_set: str) -> str:
    return f"top1_{test_set.lower()}"


def _source_file(published: PublishedWeights) -> Path:
    return weight_files.cache_dir() / f"{published.model}.{published.tag}.source.json"


def _known(published: PublishedWeights) -> tuple[str, str]:
    """The commit and the sha256 of the file on the hub, from the registry or from the first download."""
    file = _source_file(published)
    try:
        first = json.loads(file.read_text(encoding="utf-8"))
        return published.revision or first["revision"], published.sha256 or first["sha256"]
    except FileNotFoundError:
        return published.revision, published.sha256
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{str(file)!r} cannot be read ({error}); remove it to accept any file") from None


def _record_first_download(published: PublishedWeights, source: Source) -> None:
    path = _source_file(published)
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"url": source.location, "revision": source.revision, "sha256": source.sha256}
    write_atomic(path, json.dumps(record, indent=2) + "\n")
