# SPDX-License-Identifier: Apache-2.0
"""Python reference: the public names, and a page per package with all of its modules."""

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any

import lambdanet
from generate.pages import summary, table

# Programs and workers, which nobody imports.
HIDDEN = {"lambdanet.cli"}


def pages() -> dict[str, str]:
    """Returns a page of the public names, and a page per package."""
    texts = {package.__name__: _page(package) for package in _packages()}
    return {
        f"reference/api/{name}.md": text
        for name, text in {"lambdanet": _public_page(), **texts}.items()
    }


def packages() -> str:
    """Returns the table of packages."""
    rows = [[f"`{package.__name__}`", summary(package)] for package in _packages()]
    return table(["package", "contents"], rows)


def public_names() -> str:
    """Returns the table of the names that `lambdanet` exports."""
    return table(
        ["name", "purpose"],
        [[f"`{name}`", summary(value)] for name, value in _public().items()],
    )


def _public() -> dict[str, Any]:
    """Returns what `lambdanet` exports, by name, without modules."""
    values = {name: getattr(lambdanet, name) for name in lambdanet.__all__}
    return {
        name: value for name, value in values.items() if not inspect.ismodule(value)
    }


def _packages() -> list[ModuleType]:
    walked = pkgutil.walk_packages(lambdanet.__path__, "lambdanet.")
    return [
        importlib.import_module(info.name)
        for info in walked
        if info.ispkg and info.name not in HIDDEN
    ]


def _public_page() -> str:
    kinds = {
        name: "autoclass" if inspect.isclass(value) else "autofunction"
        for name, value in _public().items()
    }
    return "\n".join(
        [
            "# lambdanet\n",
            *(_directive(kind, f"lambdanet.{name}") for name, kind in kinds.items()),
        ]
    )


def _page(package: ModuleType) -> str:
    modules = [
        f"{package.__name__}.{i.name}"
        for i in pkgutil.iter_modules(package.__path__)
        if not i.ispkg
    ]
    parts = [f"# {package.__name__}", _directive("automodule", package.__name__)]
    for module in modules:
        if module not in HIDDEN:
            parts += [
                f"## {module.rpartition('.')[2]}",
                _directive("automodule", module),
            ]
    return "\n\n".join(parts)


def _directive(kind: str, name: str) -> str:
    members = "" if kind == "autofunction" else "   :members:\n"
    if kind == "automodule":
        # What a module exports from others is on their pages.
        members += "   :ignore-module-all:\n"
    return f"```{{eval-rst}}\n.. {kind}:: {name}\n{members}```\n"
