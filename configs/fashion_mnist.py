# SPDX-License-Identifier: Apache-2.0
"""Fashion-MNIST: 60,000 gray pictures of products, 28x28 pixels, in ten classes (Xiao et al. 2017).

    lambdanet train --recipe=fashion_mnist --model_dir=DIR

Two cores take half an hour. The rows have networks of equal parameters that differ in one layer. TFDS
downloads the pictures; without a network, docs/how-to/tfrecords.md makes records of those in Debian's package
dataset-fashion-mnist: --set=dataset=tfrecord --data_dir=RECORDS. The same recipe is for other sets like it:
--set=dataset=mnist or kmnist, or one's own in a folder or records, with the mean and std of its pixels.
"""

import dataclasses

from lambdanet.configs.recipe import Recipe

RECIPE = Recipe(
    model="lambda_resnet_micro",
    num_classes=10,
    input_size=56,  # twice that of the pictures, as networks begin with a stride of 4
    dataset="fashion_mnist",
    mean=(0.286,),
    std=(0.353,),
    augmentation="flip",
    epochs=12,
    global_batch_size=128,
    learning_rate=0.1,
    optimizer_options={"nesterov": True},
    warmup_epochs=1.0,
    weight_decay=5e-4,
    label_smoothing=0.1,
)

ROWS = {
    model: dataclasses.replace(RECIPE, model=model)
    for model in (
        "resnet_micro",
        "lambda_resnet_micro",
        "lambda_resnet_micro_content",
        "lambda_resnet_micro_position",
        "halo_resnet_micro",
        "resnet_micro_local_attention",
    )
}
