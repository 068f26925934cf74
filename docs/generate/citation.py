# SPDX-License-Identifier: Apache-2.0
"""CITATION.cff as BibTeX."""

from collections.abc import Mapping
from pathlib import Path

import yaml

FILE = Path(__file__).parents[2] / "CITATION.cff"


def bibtex() -> str:
    """Returns the entries of the paper and of the software."""
    software = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    paper = software["preferred-citation"]
    names = [
        f"{author['family-names']}, {author['given-names']}"
        for author in paper["authors"]
    ]
    cited = {
        "title": f"{{{paper['title']}}}",
        "author": " and ".join(names),
        "booktitle": paper["collection-title"],
        "year": paper["year"],
        "url": paper["url"],
    }
    used = {
        "title": f"{{{software['title']}}}",
        "author": " and ".join(
            f"{{{author['name']}}}" for author in software["authors"]
        ),
        "version": software["version"],
    }
    entries = [
        _entry("inproceedings", "bello2021lambdanetworks", cited),
        _entry("software", "lambdanet", used),
    ]
    return "```bibtex\n{}\n\n{}\n```".format(*entries)


def _entry(kind: str, key: str, fields: Mapping[str, object]) -> str:
    text = {name: str(value).replace("_", r"\_") for name, value in fields.items()}
    return "\n".join(
        [
            f"@{kind}{{{key},",
            *(f"  {name} = {{{value}}}," for name, value in text.items()),
            "}",
        ]
    )
