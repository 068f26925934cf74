# SPDX-License-Identifier: Apache-2.0
"""The error that a wrong value raises, under its public name."""

from lambdanet.core.errors import InputError as InputError
