# SPDX-License-Identifier: Apache-2.0
"""`python -m lambdanet.cli`: the command `lambdanet`."""

import sys

from lambdanet import cli

if __name__ == "__main__":
    sys.exit(cli.main())
