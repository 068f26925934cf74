# SPDX-License-Identifier: Apache-2.0
"""Weight files: reading, writing, downloading, and conversion from timm."""
