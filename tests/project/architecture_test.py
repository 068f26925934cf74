# SPDX-License-Identifier: Apache-2.0
"""Each `file:name` on the page on the architecture is in the code."""

import pkgutil
import re

from source_tree import ROOT


def test_places_on_the_page_exist():
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    places = re.findall(r"`([\w/]+)\.py:([\w.]+)`", page)
    assert len(places) > 10
    for file, name in places:
        path = file.removeprefix("lambdanet/").replace("/", ".")
        pkgutil.resolve_name(f"lambdanet.{path}:{name}")
