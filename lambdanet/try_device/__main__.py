# SPDX-License-Identifier: Apache-2.0
"""Runs a part: `python -m lambdanet.try_device MODULE:FUNCTION FOLDER` writes FOLDER/rows.json."""

import json
import pkgutil
import sys
from pathlib import Path

from lambdanet import backend as K
from lambdanet.backend import device
from lambdanet.errors import one_line
from lambdanet.try_device import scrub


def main(function: str, folder: Path) -> None:
    """Runs a part in a folder, and writes its rows and the device, or the error."""
    try:
        rows = pkgutil.resolve_name(function)(folder)
        result = {"rows": rows, "device": device_name()}
    except Exception as error:  # of any kind: it is a row of the table
        result = {"error": scrub(f"{type(error).__name__}: {one_line(error)}")[:500]}
    (folder / "rows.json").write_text(json.dumps(result))


def device_name() -> str:
    """Returns the number and the kind of the devices that this process computes on."""
    if K.ENGINE == "jax":
        import jax

        return f"{len(jax.devices())} x {jax.devices()[0].device_kind}"
    import tensorflow as tf

    kind = device.kind()
    physical = tf.config.list_physical_devices(kind)
    details = tf.config.experimental.get_device_details(physical[0])
    return f"{len(physical)} x {details.get('device_name', kind)}"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
