# SPDX-License-Identifier: Apache-2.0
"""Detection with TensorFlow Model Garden: backbones, experiments, training, export and use."""

# Model Garden refuses to register a name twice, which would happen if these files were also imported as
# `detection`, the name of their folder in a checkout.
if __name__ != "lambdanet.detection":
    raise ImportError(f"import lambdanet.detection, not {__name__}")
