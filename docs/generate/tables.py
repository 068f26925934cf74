# SPDX-License-Identifier: Apache-2.0
"""Tables in pages that are written by hand, between markers, so that a Git host shows them too.

    <!-- results.layers: begin -->
    <!-- results.layers: end -->

Between these is the Markdown text that `generate.results.layers()` returns.
"""

import importlib
import re
from collections.abc import Sequence

MARKED = re.compile(
    r"(<!-- (\w+)\.(\w+): begin -->\n).*?(<!-- \2\.\3: end -->)", re.DOTALL
)


def replace(text: str, skipped: Sequence[str] = ()) -> str:
    """Returns the text of a page with current tables, except for those of the skipped modules."""
    return MARKED.sub(lambda marked: _current(marked, skipped), text)


def _current(marked: re.Match[str], skipped: Sequence[str]) -> str:
    begin, module, function, end = marked.groups()
    if module in skipped:
        return marked[0]
    text = getattr(importlib.import_module(f"{__package__}.{module}"), function)()
    return f"{begin}{text.rstrip()}\n{end}"
