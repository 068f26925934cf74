# SPDX-License-Identifier: Apache-2.0
"""Checks that a server can be reached, for which TensorFlow would wait forever."""

import socket

SCHEME = "grpc://"
TIMEOUT = 10  # seconds


def check_reachable(address: str) -> None:
    """Raises `OSError` where no server answers at `HOST:PORT` or `grpc://HOST:PORT`."""
    host, _, port = address.removeprefix(SCHEME).rpartition(":")
    try:
        socket.create_connection((host, int(port)), TIMEOUT).close()
    except (OverflowError, ValueError) as error:  # the port is no number, or too large
        raise OSError(str(error)) from None
