# SPDX-License-Identifier: Apache-2.0
"""The forms of the operations that are fastest on a TPU; `lambdanet.ops.kernels` lists them.

A TPU keeps an array in tiles of 8 x 128 numbers (16 x 128 in bfloat16), where the axis of 128 is the lanes,
and multiplies matrices of 128 x 128. The compiler decides which axis of an array is along the lanes. Four
rules follow, and every form in this folder is one of their uses:

* An axis of 16 along the lanes leaves seven eighths of every tile empty, of memory traffic and arithmetic
  alike. Axes that fill the lanes (examples, positions, or several heads side by side) go inside, and short
  ones outside.
* Where two steps disagree on the axis along the lanes, the array is copied between them. A product with a
  constant of 0 and 1 moves numbers in the matrix unit, in less time than a copy or a gather.
* A product with few rows, such as the 4 x 16 queries of a position, leaves the matrix unit idle; an
  elementwise product and a sum are faster.
* The compiler fuses elementwise steps and sums over one array into a single pass over memory, if their
  types and shapes agree.
"""

LANES = 128
TILE_ROWS = 16  # of a tile of bfloat16
