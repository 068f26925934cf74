# SPDX-License-Identifier: Apache-2.0
"""Published weights in the cache: fetched and converted once, then read.

For a set, $LAMBDANET_HOME has MODEL.TAG.safetensors, the weights as Keras's variables with their metadata,
and MODEL.TAG.source.json, the commit and the sha256 of the file that they were first made from. Where
`lambdanet.configs.registry.pretrained_weights` lacks these, every later download must match the first.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from lambdanet.backend import keras
from lambdanet.configs.registry import pretrained_weights
from lambdanet.configs.registry.pretrained_weights import TEST_SETS, PublishedWeights
from lambdanet.core.errors import InputError, invalid
from lambdanet.core.files import cache_dir, writable_dir, write_output
from lambdanet.models.weights import (
    hub,
    repositories,
    tensor_files,
    timm_rules,
    weight_files,
)
from lambdanet.models.weights.hub import Source

# The values of "as_published" in the metadata: whether a file is the published one.
PROVENANCE = {
    "yes": "It is the published file: the sha256 matches.",
    "first download": "It is the file that the hub had at the first download; its sha256 was unknown before.",
    "no": "It is another file than the published one; where and on what it was trained is not known here.",
    "not known": "It is unknown whether it is the published file, whose sha256 is not recorded here.",
}


def cache_path(published: PublishedWeights) -> Path:
    """Returns the path of the converted weights in the cache."""
    return cache_dir() / f"{published.model}.{published.tag}{tensor_files.SAFETENSORS}"


def locate(
    model_name: str,
    name: str | Path,
    build: Callable[..., keras.Model],
    argument: str = "weights",
    others: str = "",
) -> Path:
    """Returns the file of weights that an argument names; fetches and converts one of the hub first.

    Args:
      model_name: the name of the model.
      name: a published set, "hf:USER/REPO", or what `weight_files.find_file` takes.
      build: makes the model at its own image size: `build(num_classes=10)`.
      argument, others: the name of the argument and what else it may be, as for `weight_files.find_file`.

    Raises:
      InputError: there is no such file, or the downloaded one is not the published one.
      ConnectionError: the weights are not in the cache and cannot be fetched; the message has instructions.
    """
    if not isinstance(name, str | Path):
        raise invalid(argument, "a string or a path", name)
    published = pretrained_weights.find(model_name, str(name))
    if str(name).startswith(repositories.PREFIX):
        return repositories.locate(model_name, str(name), build)
    if published is None:
        return weight_files.find_file(model_name, name, argument, others)
    path = cache_path(published)
    if not path.is_file():
        writable_dir(path.parent, name="LAMBDANET_HOME")
        checkpoint, source = download(published)
        model = build()
        timm_rules.load(model, tensor_files.read_tensors(checkpoint))
        record_first_download(published, source)
        weight_files.save(model, path, metadata(published, source))
    return path


def download(published: PublishedWeights, revision: str = "") -> tuple[Path, Source]:
    """Returns the file of a published set from the hub, in the cache of huggingface_hub, and its source.

    Args:
      published: the set.
      revision: the revision of the repository on the hub; default: the known one, or else the newest.

    Raises:
      InputError: there is no such file, or it is not the known one.
      ConnectionError: it cannot be fetched; the message has instructions.
    """
    first = _first_download(published)
    known = published.revision or first.get("revision", "")
    sha256 = (
        (published.sha256 or first.get("sha256", "")) if revision in ("", known) else ""
    )
    try:
        path, source = hub.fetch(
            published.repository, published.file, revision or known or hub.NEWEST
        )
    except ConnectionError as error:
        flag = "" if published.sha256 or first else " --as_published"
        raise ConnectionError(
            f"{error}; download it where there is a network, and run "
            f"`lambdanet convert {published.model} --checkpoint=FILE{flag}`"
        ) from None
    if sha256 not in ("", source.sha256):
        raise invalid(
            f"sha256 of {source.location}", sha256, source.sha256, remedy(published)
        )
    return path, source


def local_source(path: Path) -> Source:
    """Returns the source of weights in a local file."""
    with path.open("rb") as file:
        return Source(path.name, hashlib.file_digest(file, "sha256").hexdigest())


def provenance(published: PublishedWeights, source: Source, num_classes: int) -> str:
    """Returns whether a file is the published one, by its sha256 and classes.

    Args:
      published: the published set.
      source: the file that the weights were made from.
      num_classes: the number of classes of the weights; with another one than the set's, they are others.

    Returns:
      One of `PROVENANCE`.
    """
    if num_classes != published.num_classes:
        return "no"
    matches = published.matches_sha256(source.sha256)
    first = _first_download(published)
    if matches is None and first:
        return "first download" if source.sha256 == first["sha256"] else "no"
    return {True: "yes", False: "no", None: "not known"}[matches]


def metadata(
    published: PublishedWeights, source: Source, num_classes: int | None = None
) -> dict[str, str]:
    """Returns the metadata of weights of the network of a published set.

    Args:
      published: the set.
      source: the file that they were made from. Where it is not the published one, repository, license and
        accuracies are left out.
      num_classes: the number of its classes; default: the set's.
    """
    num_classes = published.num_classes if num_classes is None else num_classes
    origin = provenance(published, source, num_classes)
    values = {
        "source": source.location,
        "source_revision": source.revision,
        "source_sha256": source.sha256,
        "as_published": origin,
        **published.preprocessing,
        "mean": ", ".join(map(str, published.mean)),
        "std": ", ".join(map(str, published.std)),
        "num_classes": num_classes,
    }
    if origin != "no":
        values |= {
            "published": published.tag,
            "repository": published.repository,
            "license": published.license,
            "top1": published.top1,
            "top5": published.top5,
            **{
                _accuracy_key(name): published.accuracies.get(name, "")
                for name in TEST_SETS
            },
        }
    return {key: str(value) for key, value in values.items() if value != ""}


def accuracies(metadata: Mapping[str, str]) -> dict[str, str]:
    """Returns the published top-1 accuracies in the metadata of weights, in percent, by the test set."""
    keys = {"ImageNet": "top1", **{name: _accuracy_key(name) for name in TEST_SETS}}
    return {name: metadata[key] for name, key in keys.items() if key in metadata}


def _accuracy_key(test_set: str) -> str:
    return f"top1_{test_set.lower()}"


def remedy(published: PublishedWeights) -> str:
    """Returns what an error about another file adds, if the sha256 is known from the first download alone."""
    known = published.sha256 or not _first_download(published)
    return (
        ""
        if known
        else f"that of the first download; remove {str(_record(published))!r} to accept another"
    )


def record_first_download(published: PublishedWeights, source: Source) -> None:
    """Records the commit and the sha256 of a file that was converted; every later one must have the same."""
    if not (path := _record(published)).exists():
        record = {
            "url": source.location,
            "revision": source.revision,
            "sha256": source.sha256,
        }
        write_output(path, json.dumps(record, indent=2) + "\n")


def _record(published: PublishedWeights) -> Path:
    return cache_path(published).with_suffix(".source.json")


def _first_download(published: PublishedWeights) -> dict[str, str]:
    """The commit and the sha256 of the file that was converted first; empty before."""
    path = _record(published)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {key: record[key] for key in ("revision", "sha256")}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{str(path)!r} cannot be read ({error}); remove it to accept any file"
        ) from None
