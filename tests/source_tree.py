# SPDX-License-Identifier: Apache-2.0
"""The layout of the checkout: its packages, their files, and what each file imports."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Package -> the packages it may import. The order is from the bottom up, so nothing can import upwards.
PACKAGES = {
    "core": (),
    "backend": ("core",),
    "ops": ("core", "backend"),
    "layers": ("core", "backend", "ops"),
    "configs": ("core",),
    "models": ("core", "backend", "ops", "layers", "configs"),
    "training": ("core", "backend", "ops", "layers", "configs", "models"),
    "tpu_estimates": (
        "core",
        "backend",
        "ops",
        "layers",
        "configs",
        "models",
        "training",
    ),
    "detection": (
        "core",
        "backend",
        "ops",
        "layers",
        "configs",
        "models",
        "training",
        "tpu_estimates",
    ),
    "explain": ("core", "backend", "ops", "layers", "configs", "models", "training"),
}
PACKAGES["cli"] = (*PACKAGES["detection"], "detection", "explain")
# Beside the package, and not installed.
BESIDE = ("benchmarks",)
PACKAGES["benchmarks"] = tuple(PACKAGES)

# What `python -m benchmarks.layers --peers` and `lambdanet convert` compare with, where it is installed.
PEERS = {"keras_cv_attention_models", "lambda_networks", "timm", "torch", "torchvision"}


def files_of(package: str) -> list[Path]:
    """Returns the Python files of a package, by the path under which they are imported."""
    root = ROOT / ("" if package in BESIDE else "lambdanet")
    files = list((root / package).glob("**/*.py"))
    if package == "core":
        files += root.glob("*.py")
    return sorted(files)


FILES = [path for package in PACKAGES for path in files_of(package)]


def module_of(path: Path) -> str:
    """Returns the dotted name under which a file is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(
        ".__init__"
    )


def tests() -> list[Path]:
    return sorted((ROOT / "tests").glob("**/*_test.py"))


def package_of(name: str) -> str:
    """Returns the package of a name; `face`, above the models, for names of the public face alone."""
    root, _, rest = name.partition(".")
    part = root if root in BESIDE else rest.partition(".")[0]
    if part in PACKAGES:
        return part
    return (
        "core"
        if part == "__version__" or (ROOT / f"lambdanet/{part}.py").exists()
        else "face"
    )


def imports(path: Path) -> set[str]:
    """Returns the dotted names that a file imports, in functions too, but not `if TYPE_CHECKING:`.

    `from a.b import c` counts as `a.b.c`, because `c` may be a module, and so does what is taken from the
    public face: `import lambdanet` counts as each `lambdanet.c` in the file.
    """
    tree = ast.parse(path.read_text(), str(path))
    types_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If)
        and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for statement in block.body
        for node in ast.walk(statement)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in types_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} - {"lambdanet"}
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "lambdanet":
            found.add(f"lambdanet.{node.attr}")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, (
                f"{path}:{node.lineno}: a relative import; write it from `lambdanet`"
            )
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own(names: set[str]) -> set[str]:
    """Keeps the names that belong to this project."""
    return {name for name in names if name.split(".")[0] in (*BESIDE, "lambdanet")}
