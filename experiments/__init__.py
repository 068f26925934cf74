# SPDX-License-Identifier: Apache-2.0
"""Experiments, which are not installed: nothing else imports them, and each may go when it is done."""
