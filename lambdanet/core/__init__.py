# SPDX-License-Identifier: Apache-2.0
"""Parts that every package uses: errors, files, commands, text tables, settings made before Keras starts."""
