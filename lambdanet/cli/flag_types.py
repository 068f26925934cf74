# SPDX-License-Identifier: Apache-2.0
"""Flags with other values than text."""

from functools import partial

from absl import flags

from lambdanet.command_line import Flag

IntegerFlag = partial(Flag, define=flags.DEFINE_integer)
FloatFlag = partial(Flag, define=flags.DEFINE_float)
ListFlag = partial(Flag, define=flags.DEFINE_list)  # separated by commas
RepeatedFlag = partial(Flag, define=flags.DEFINE_multi_string)


def switch(name: str, help: str, default: bool | None = None) -> Flag:
    """Returns a flag without a value: `--name` or `--noname`."""
    return Flag(name, "", help, define=flags.DEFINE_boolean, default=default)
