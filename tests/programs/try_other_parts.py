# SPDX-License-Identifier: Apache-2.0
"""Parts for `lambdanet try-device`: a TPU's forms on the CPU, wrong forms, and a short training."""

import dataclasses
from unittest import mock

from programs.small_model import plain_model

from lambdanet.models import zoo
from lambdanet.ops import kernels
from lambdanet.ops.products import Product
from lambdanet.try_device import forms, training


class Larger(Product):
    def compute(self, term, device):
        return 1.1 * super().compute(term, device)


class Refused(Product):
    def compute(self, term, device):
        raise RuntimeError("the compiler refuses '/home/ada/program.txt'")


def compare_tpu_forms(folder):
    return forms.compare_forms_of("TPU", forms.SMALL_MAPS)


def compare_wrong_forms(folder):
    wrong = (Product(False), Larger(False, (4, 4)), Refused(True))
    kernels.KERNELS["wrong"] = dataclasses.replace(
        kernels.KERNELS["CPU"], position_lambdas=(lambda sizes: wrong,)
    )
    del forms.TOLERANCES["bfloat16"]
    rows = forms.compare_forms_of("wrong", forms.SMALL_MAPS[:1])
    return [*rows, *train_quickly(folder)]


def train_quickly(folder):
    """Trains two steps of a network of one convolution."""
    with (
        mock.patch.object(training, "STEPS", 2),
        mock.patch.object(zoo, "create_model", plain_model),
    ):
        return training.train_digits(folder)
