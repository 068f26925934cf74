# SPDX-License-Identifier: Apache-2.0
"""Predictions for any number of pictures by an exported classifier, on Apache Beam."""

import contextlib
import logging

# Beam 2.77 warns that it has no client of BigQuery; without a handler, this would also set up logging.
_handler = logging.NullHandler()
logging.root.addHandler(_handler)
with contextlib.suppress(ImportError):  # in `make docs`
    import apache_beam  # noqa: F401

logging.root.removeHandler(_handler)
