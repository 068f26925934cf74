# SPDX-License-Identifier: Apache-2.0
"""Installs packages of lambdanet, each in empty environments, and runs the first example of the README.

    python .ci/try_packages.py dist/*

It needs Python alone, and runs on Linux, macOS and Windows.
"""

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

BACKENDS = ("", "tensorflow", "jax")
# Without a backend, the last line of the error says what to install.
WITHOUT_BACKEND = "import lambdanet\nlambdanet.LambdaLayer(8)\n"
README = Path(__file__).parents[1] / "README.md"


def main(packages: list[str]) -> None:
    """Tries each package without a backend and with two."""
    first_example = re.search(
        r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL
    )[1]
    for package in packages:
        for backend in BACKENDS:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                _try(Path(package).resolve(), backend, first_example, Path(folder))


def _try(package: Path, backend: str, example: str, folder: Path) -> None:
    print(f"{package.name}[{backend}]", flush=True)
    venv.create(folder / "environment", with_pip=True)
    scripts = folder / "environment" / ("Scripts" if os.name == "nt" else "bin")
    python, command = scripts / "python", scripts / "lambdanet"
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    }
    environment |= {
        "KERAS_BACKEND": backend or "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }

    def run(*words: object) -> subprocess.CompletedProcess:
        return subprocess.run(
            [str(word) for word in words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )

    def check(holds: bool, done: subprocess.CompletedProcess) -> None:
        if not holds:
            sys.exit(
                f"{done.args} failed with status {done.returncode}\n{done.stdout}{done.stderr}"
            )

    what = f"{package}[{backend}]" if backend else package
    installed = run(python, "-m", "pip", "install", "--quiet", "--no-cache-dir", what)
    check(installed.returncode == 0, installed)
    listed = run(command, "list", "lambda_resnet_50")
    check(listed.returncode == 0 and "lambda_resnet_50" in listed.stdout, listed)
    (folder / "example.py").write_text(
        example if backend else WITHOUT_BACKEND, encoding="utf-8"
    )
    done = run(python, "example.py")
    if backend:
        check(done.returncode == 0, done)
    else:
        last = (done.stderr.splitlines() or [""])[-1]
        check(done.returncode != 0 and "pip install" in last, done)
        print(f"  {last}")


if __name__ == "__main__":
    main(sys.argv[1:])
