# SPDX-License-Identifier: Apache-2.0
"""Detection with TensorFlow Model Garden: backbones, experiments, training, export and prediction.

`python -m lambdanet.detection.train` trains a detector. A program that imports
`lambdanet.detection.experiments` registers the backbones with Model Garden's own driver too:

    from absl import app
    from official.common import flags
    from official.vision import train

    import lambdanet.detection.experiments

    flags.define_flags()
    app.run(train.main)

That program accepts `--experiment=lambda_resnet/retinanet_resnetfpn_coco` and the other experiments of
`lambdanet.detection.experiments`, with `backbone: {type: lambda_resnet}` and any `model_id`. Model Garden's
own experiments, such as `retinanet_resnetfpn_coco`, accept this backbone only in `lambdanet.detection.train`.
"""

# Model Garden cannot register a name twice, as a second import by the folder's name `detection` would.
if __name__ != "lambdanet.detection":
    raise ImportError(f"import lambdanet.detection, not {__name__}")
