# SPDX-License-Identifier: Apache-2.0
"""The command `lambdanet`, whose training, of a small network, sends itself a signal at a step.

The signal is $KILL_WITH, by default SIGKILL, and the step $KILL_AT, by default 6."""

import os
import signal
import sys

from lambdanet import cli, command_line


def main():
    from quick_graphs import trace_quickly
    from small_model import small_model

    from lambdanet.models import zoo
    from lambdanet.training.run import callbacks

    trace_quickly()  # as in the other runs
    zoo.create_model = small_model

    original = callbacks.SaveCheckpoints.on_train_batch_end

    number = signal.Signals[os.environ.get("KILL_WITH", "SIGKILL")]
    step = int(os.environ.get("KILL_AT", "6"))

    def kill(self, batch, logs=None):
        if number == signal.SIGKILL:
            original(self, batch, logs)
        if int(self.model.optimizer.iterations) == step:
            os.kill(os.getpid(), number)
        if number != signal.SIGKILL:
            original(self, batch, logs)

    callbacks.SaveCheckpoints.on_train_batch_end = kill
    sys.exit(cli.main(sys.argv[1:]))


command_line.exit_status("killed", main)
