# SPDX-License-Identifier: Apache-2.0
"""Networks of one size on Fashion-MNIST, and what published mistakes cost."""
