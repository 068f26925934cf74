# SPDX-License-Identifier: Apache-2.0
"""Parts for `lambdanet try-device`, on JAX: a TPU's forms on the CPU, wrong forms, and a crash."""

import dataclasses
import os
import signal

from lambdanet.ops import kernels
from lambdanet.ops.products import Product
from lambdanet.try_device import forms


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
    return forms.compare_forms_of("wrong", forms.SMALL_MAPS[:1])


def crash(folder):
    print(f"reading {folder}/step.txt", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
