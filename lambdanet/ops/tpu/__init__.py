# SPDX-License-Identifier: Apache-2.0
"""Forms for TPUs of the functions in `ops`."""
