# SPDX-License-Identifier: Apache-2.0
"""The command `lambdanet`, whose training, of a small network, is killed at step 6."""

import os
import signal
import sys

from lambdanet import cli
from lambdanet.core import command_line


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def main():
    import pytest
    from quick_graphs import trace_quickly
    from small_model import small_model
    from training_runs import act_at

    from lambdanet.models import zoo

    trace_quickly()  # as in the other runs
    zoo.create_model = small_model
    act_at(pytest.MonkeyPatch(), [6], kill)
    sys.exit(cli.main(sys.argv[1:]))


command_line.exit_status("killed", main)
