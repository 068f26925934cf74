# SPDX-License-Identifier: Apache-2.0
"""Compares products of `lambdanet.backend` with NumPy's, where one matrix is multiplied with all rows."""

import sys

import numpy as np

from lambdanet import backend as K

SHAPES = (
    ((2, 1, 16, 16), (16, 1)),
    ((2, 1, 32, 16), (16, 2)),
    ((4, 1, 16, 16), (1, 1, 16, 1)),
    ((16, 1, 4, 16), (16, 1)),
    ((2, 1, 1, 512), (512, 64)),
    ((2, 3, 4, 5), (5, 6)),
)


def main() -> str | None:
    random = np.random.default_rng(0)
    for shapes in 6 * SHAPES:
        a, b = (random.normal(size=shape).astype("float32") for shape in shapes)
        transposed = np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2)
        for found in (
            K.matmul(a, b),
            K.matmul(a, transposed[1], transpose_b=True),
            K.matmul(transposed[0], b, transpose_a=True),
        ):
            if not np.allclose(found, a @ b, atol=1e-3):
                return f"the product of {shapes} is wrong"
    return None


if __name__ == "__main__":
    sys.exit(main())
