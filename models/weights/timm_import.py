# SPDX-License-Identifier: Apache-2.0
"""Imports timm, where it is installed."""

import types
from unittest import mock


def import_timm() -> types.ModuleType:
    """Returns the module timm.

    timm imports torchvision, which fails on a PyTorch that it was not built for: there it describes operators
    that it has no code for, none of which timm's networks and transforms use.

    Raises:
      ModuleNotFoundError: timm or torch is not installed.
    """
    import torch

    register = torch.library.register_fake

    def register_others(op, *args, **kwargs):
        if isinstance(op, str) and op.startswith("torchvision::"):
            return lambda function: function
        return register(op, *args, **kwargs)

    with mock.patch.object(torch.library, "register_fake", register_others):
        import timm
    return timm
