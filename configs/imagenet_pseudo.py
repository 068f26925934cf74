# SPDX-License-Identifier: Apache-2.0
r"""ImageNet with pseudo-labeled images: Bello (2021), section 5.3, F.3 and the last column of Table 18.

    lambdanet pseudo-label --saved_model=SAVED_MODEL --data=PICTURES --out=PSEUDO --per_class=130000
    lambdanet train --recipe=imagenet_pseudo:lambda_resnet_152@288 --model_dir=DIR --data_dir=DIR \
        --set=pseudo_labels=PSEUDO

Rows are named `model@size` and have the hyperparameters of the same row in `imagenet_350`, as in the paper.
Its top-1, with 130 M images labeled by a teacher of 88.4 %: 50@128 82.1, 50@160 83.4, 101@160
84.7, 101@192 85.4, 152@192 86.1, 152@224 86.5, 152@288 86.7.

For the rest F.3 refers to Noisy Student (Xie et al. 2020, section 3.1): images with a confidence above 0.3,
130 K per class; labeled and pseudo-labeled images in one batch, with the mean of all losses; epochs, steps
and learning rate from the labeled ones. A batch has equal numbers of both, but three pseudo-labeled images
per labeled one for models from EfficientNet-B7 on, with which Table 5 compares 152@288. Noisy Student's
batches have 2048 labeled images; in this recipe, all images of a step add up to the lambda paper's 4096.
"""

import dataclasses

from lambdanet.configs import imagenet_350

BATCH = 4096
# Depth and size: the fraction of pseudo-labeled images in a batch.
SHARES = {
    (50, 128): 1 / 2,
    (50, 160): 1 / 2,
    (101, 160): 1 / 2,
    (101, 192): 1 / 2,
    (152, 192): 1 / 2,
    (152, 224): 1 / 2,
    (152, 288): 3 / 4,
}

ROWS = {
    f"lambda_resnet_{depth}@{size}": dataclasses.replace(
        imagenet_350.BASE,
        model=f"lambda_resnet_{depth}",
        pseudo_share=share,
        global_batch_size=BATCH,
        learning_rate=0.1 * (1 - share) * BATCH / 256,
        **imagenet_350.hyperparameters(depth, size),
    )
    for (depth, size), share in SHARES.items()
}
