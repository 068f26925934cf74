# SPDX-License-Identifier: Apache-2.0
"""Takes the lock of a folder, prints "held", and holds it until its input ends: hold_lock.py FOLDER [fork].

With "fork" a child, which does not have the lock, prints its id and waits.
"""

import os
import pathlib
import signal
import sys

from lambdanet.core.errors import InputError
from lambdanet.core.files import locked

try:
    with locked(pathlib.Path(sys.argv[1])):
        if "fork" not in sys.argv:
            print("held", flush=True)
        elif not os.fork():
            print(os.getpid(), flush=True)
            signal.pause()
        sys.stdin.read()
except InputError as error:
    print(error, flush=True)
