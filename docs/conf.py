# SPDX-License-Identifier: Apache-2.0
"""Configuration of the documentation, which `make docs` builds."""

import inspect
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import lambdanet

project = "lambdanet"
release = lambdanet.__version__
copyright = "the lambdanet authors, Apache-2.0"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "generate",
    "generate.docstrings",
    "generate.mathml",
]
# index.md includes contents.md.
exclude_patterns = [
    "_build",
    "_generated",
    "generate",
    "figures",
    "contents.md",
    "pypi.md",
]
smartquotes = False  # of options such as --recipe
# `LambdaLayer` in a docstring is a link if it is documented, and code if not
default_role = "py:obj"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_mock_imports = ["apache_beam"]  # large
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # Keras's docstrings are Markdown
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"lambdanet {release}"
html_static_path = ["_static", "_generated/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_use_index = False
html_domain_indices = False


def setup(app: Any) -> None:
    """Shows the signature of `__init__` for layers, of which autodoc finds the `__new__` of Keras."""
    app.connect("autodoc-process-signature", _signature)


def _signature(
    app: Any, kind: str, name: str, documented: Any, *_: Any
) -> tuple[str, str] | None:
    if kind != "class" or not documented.__module__.startswith("lambdanet"):
        return None
    return str(inspect.signature(documented)), ""
