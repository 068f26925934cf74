# SPDX-License-Identifier: Apache-2.0
"""Detection with TensorFlow Model Garden: backbones, experiments, training, export and use.

`python -m lambdanet.detection.train` trains a detector. Model Garden's own driver, `official.vision.train`,
does not know the backbones; a program that imports `lambdanet.detection.experiments` registers them for it:

    from absl import app
    from official.common import flags
    from official.vision import train

    import lambdanet.detection.experiments

    flags.define_flags()
    app.run(train.main)

That program takes `--experiment=lambda_resnet/retinanet_resnetfpn_coco` and the other experiments of
`lambdanet.detection.experiments`, with `backbone: {type: lambda_resnet}` and any `model_id`. Under Model
Garden's own names, such as `retinanet_resnetfpn_coco`, that backbone needs `lambdanet.detection.train`.
"""

# Model Garden refuses to register a name twice, which would happen if these files were also imported as
# `detection`, the name of their folder in a checkout.
if __name__ != "lambdanet.detection":
    raise ImportError(f"import lambdanet.detection, not {__name__}")
