# SPDX-License-Identifier: Apache-2.0
"""Runs pages in headless Chromium, driven by a script in the page."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=20000",
    "--window-size=1200,1000",
)


def driven(page: Path, driver: str, profile: Path) -> dict[str, Any]:
    """Returns what a driver found on a page, opened as a file, and the lines of the console.

    Args:
      page: the page, which is copied beside itself.
      driver: JavaScript that appends `<pre id="found">` with JSON to the body at the end.
      profile: the folder of the browser's profile.
    """
    copy = page.with_name("driven.html")
    text = page.read_text(encoding="utf-8")
    script = f"<script>{driver}</script>"
    end = "</body>" if "</body>" in text else "</html>"
    copy.write_text(text.replace(end, f"{script}{end}"), encoding="utf-8")
    command = [
        CHROMIUM,
        *FLAGS,
        f"--user-data-dir={profile}",
        "--dump-dom",
        copy.as_uri(),
    ]
    environment = {**os.environ, "LD_PRELOAD": ""}  # Chromium brings its own allocator
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300
    )
    copy.unlink()
    (found,) = re.findall('<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    console = re.findall("CONSOLE.*", done.stderr)
    return {**json.loads(html.unescape(found)), "console": console}
