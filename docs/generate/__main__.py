# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of the README and of the pages, and the pages of the model families."""

from pathlib import Path

from generate import write_committed

write_committed(Path(__file__).parents[1])
