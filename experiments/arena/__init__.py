# SPDX-License-Identifier: Apache-2.0
"""Lambda layers beside other operators on controlled tasks."""
