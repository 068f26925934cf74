# SPDX-License-Identifier: Apache-2.0
"""A run that is asked to stop while its main thread is in one long operation, as where a step compiles."""

import hashlib

from lambdanet.training.run.stop_request import StopRequest

with StopRequest():
    print("compiling", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**28)  # a minute and more
