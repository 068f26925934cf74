# SPDX-License-Identifier: Apache-2.0
"""The tables of the papers as data."""
