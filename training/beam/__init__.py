# SPDX-License-Identifier: Apache-2.0
"""Predictions for any number of pictures by an exported classifier, on Apache Beam."""

import logging

# Beam 2.77 warns that it has no client of BigQuery; without a handler, this would also set up logging.
_handler = logging.NullHandler()
logging.root.addHandler(_handler)
import apache_beam  # noqa: E402, F401

logging.root.removeHandler(_handler)
