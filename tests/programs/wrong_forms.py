# SPDX-License-Identifier: Apache-2.0
"""Plants forms of a CPU that are wrong, or that no compiler accepts, beside a right one."""

import dataclasses

from benchmarks.device import forms
from lambdanet.ops.kernels import KERNELS
from lambdanet.ops.products import Product


class Larger(Product):
    def compute(self, term, device):
        return 1.1 * super().compute(term, device)


class Refused(Product):
    def compute(self, term, device):
        raise RuntimeError("the compiler refuses '/home/ada/program.txt'")


PLANTED = [Product(False), Larger(False, (4, 4)), Refused(True)]
KERNELS["CPU"] = dataclasses.replace(
    KERNELS["CPU"], position_lambdas=(lambda sizes: PLANTED,)
)
forms.POOLS = (1,)
del forms.TOLERANCES["bfloat16"]
