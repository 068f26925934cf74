# SPDX-License-Identifier: Apache-2.0
"""Compares the forms of position lambdas on this device with float64 on the CPU, and times them, on JAX.

The forms are those that a layer chooses from, with their gradients. The first one listed is its choice.
"""

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.device import Row, make_row, scrub
from benchmarks.interleaved.cases import HEADS, KEY_DIM, PASSES, Case, cases
from benchmarks.interleaved.contenders import Run, random_tensor, run_function, start
from lambdanet import backend as K
from lambdanet.backend import device
from lambdanet.core.errors import one_line
from lambdanet.ops.kernels import Kernels, choose_form, kernels_for_device
from lambdanet.ops.position_term import Form, Geometry, PositionTerm, Sizes
from lambdanet.ops.products import Product

__all__ = ["rows", "start"]

MAPS = ("14x14x256x32", "56x56x64x8", "28x28x128x32")
SMALL_MAPS = ("12x12x32x2",)
# On the last map, outputs are also averaged over windows two apart, and a content lambda is added to them.
POOLS = (1, 3)
# The largest error for each type, relative to the norm. TPUs and GPUs multiply float32 with fewer bits.
TOLERANCES = {"float32": 0.01, "bfloat16": 0.03}
MAX_FORMS = 2  # of each kind and order, those with the shortest estimates
CALLS = 20


def rows(name: str) -> Iterator[Row]:
    """Yields a row for each map, type and pass."""
    is_small = device.kind() == "CPU"
    maps = SMALL_MAPS if is_small else MAPS
    scope = "11" if is_small else "23"
    for pool_size, dtype in itertools.product(POOLS, TOLERANCES):
        chosen = maps if pool_size == 1 else maps[-1:]
        for case in cases(chosen, [scope], PASSES, dtype):
            yield _compare(case, pool_size)


def _compare(case: Case, pool_size: int) -> Row:
    """Returns the row of a case."""
    kernel = kernels_for_device()
    strides = 1 if pool_size == 1 else 2
    geometry = Geometry(strides=strides, pool_size=pool_size)
    v = case.channels // HEADS
    map_shape = [case.batch, case.height, case.width]
    output_shape = [case.batch, case.height // strides, case.width // strides, HEADS, v]
    shapes: list[list[Any]] = [
        [*map_shape, HEADS, KEY_DIM],
        [*map_shape, v, 1],
        [case.scope, case.scope, KEY_DIM, 1],
        [case.batch, KEY_DIM, v],
    ]
    shapes = shapes[: 3 if pool_size == 1 else 4]
    inputs = [random_tensor(shape, case, seed) for seed, shape in enumerate(shapes)]

    def term(queries: Any, values: Any, table: Any, content: Any = None) -> Any:
        return PositionTerm(queries, values, table, geometry, content, case.backward)

    def run(form: Form, inputs: Sequence[Any], case: Case) -> Run:
        def apply(*inputs: Any) -> Any:
            return form.apply(term(*inputs), kernel.device)

        return run_function(apply, inputs, output_shape, case)

    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        exact = [K.convert_to_tensor(np.asarray(x).astype("float64")) for x in inputs]
        in_float64 = dataclasses.replace(case, dtype="float64")
        expected = run(Product(query_first=False), exact, in_float64)()
        expected = [np.asarray(x) for x in jax.tree.leaves(expected)]
    entries = []
    for form in _forms(kernel, term(*inputs).sizes):
        entry: dict[str, Any] = {"form": str(form), "error": np.inf, "ms": np.inf}
        entries.append(entry)
        try:
            computed = run(form, inputs, case)
            found = jax.tree.leaves(computed())
            begin = time.perf_counter()
            for _ in range(CALLS):
                computed()
            entry["ms"] = 1e3 * (time.perf_counter() - begin) / CALLS
            # If one is no number, it is the largest.
            entry["error"] = float(np.max(list(map(_error, found, expected))))
        except Exception as error:  # of any kind: the other forms are tried too
            entry["failure"] = scrub(f"{type(error).__name__}: {one_line(error)}")[:300]
    pool = "" if pool_size == 1 else f" pool {pool_size}"
    name = f"{case.map}{pool} {case.dtype} {case.pass_name}"
    tolerance = TOLERANCES[case.dtype]
    # `<=` is false for an error that is no number.
    wrong = [entry["form"] for entry in entries if not entry["error"] <= tolerance]
    chosen = entries[0]
    fastest = min(entries, key=lambda entry: entry["ms"])
    figures = {
        "forms": len(entries),
        "choice": chosen["form"],
        "fastest": f"{fastest['form']} {fastest['ms']:.2f} ms",
        "error": f"{max(entry['error'] for entry in entries):.1g} of {tolerance:g}",
    }
    if wrong:
        figures["wrong"] = "; ".join(wrong)
    row = make_row(name, not wrong, chosen["ms"], figures)
    return {**row, "forms": entries}


def _forms(kernel: Kernels, sizes: Sizes) -> list[Form]:
    """Returns the form that a layer chooses, and the fastest others of each kind by their estimates."""
    speed = kernel.device.speed(sizes.needs_gradient, by_xla=True)
    known = itertools.chain.from_iterable(
        candidates(sizes) for candidates in kernel.position_lambdas
    )
    forms = [choose_form(sizes, "auto", kernel, by_xla=True)]
    kinds: Counter[Any] = Counter()
    for form in sorted(known, key=lambda form: form.seconds(sizes, speed)):
        kind = (type(form), getattr(form, "query_first", None))
        kinds[kind] += 1
        if kinds[kind] <= MAX_FORMS:
            forms.append(form)
    return list(dict.fromkeys(forms))


def _error(found: Any, expected: np.ndarray) -> float:
    """Returns the norm of the difference, relative to the norm of what is expected."""
    difference = np.asarray(found).astype("float64") - expected
    return float(np.linalg.norm(difference) / np.linalg.norm(expected))
