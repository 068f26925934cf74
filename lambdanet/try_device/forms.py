# SPDX-License-Identifier: Apache-2.0
"""Compares the forms of position lambdas on this device with float64 on the CPU, and times them, on JAX.

The forms are those that a layer chooses from, with their gradients. The first one listed is its choice.
"""

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lambdanet.backend import device
from lambdanet.backend.device import Device
from lambdanet.errors import one_line
from lambdanet.ops import kernels
from lambdanet.ops.position_lambdas import choose_form
from lambdanet.ops.position_term import Form, Geometry, PositionTerm
from lambdanet.ops.products import Product
from lambdanet.try_device import rates, scrub
from lambdanet.try_device.rates import Timing

HEADS = 4
KEY_DIM = 16
PASSES = {"forward": False, "both passes": True}
# Of each type, the largest error, relative to the norm. TPUs and GPUs multiply float32 with fewer bits.
TOLERANCES = {"float32": 0.01, "bfloat16": 0.03}
MAX_FORMS = 3  # of each kind and order, those with the shortest estimates
CALLS = 20
# Outside, a fitted rate has wandered, because no time depends on it.
MIN_RATE = 1e4
MAX_RATE = 1e17


class Map(NamedTuple):
    """A map on which forms are tried; one with a pool of outputs has a content lambda too."""

    batch: int
    side: int
    v: int
    scope_size: int = 23
    pool_size: int = 1


MAPS = (
    Map(32, 14, 64),
    Map(32, 28, 32),
    Map(8, 56, 16),
    Map(32, 28, 32, pool_size=3),
)
SMALL_MAPS = (Map(2, 12, 8, scope_size=11), Map(2, 12, 8, scope_size=11, pool_size=3))


def compare_forms(folder: Path) -> list[dict[str, Any]]:
    """Returns a row for each map, type and pass, and the rates fitted to the times of the products."""
    kind = device.kind()
    return compare_forms_of(kind, SMALL_MAPS if kind == "CPU" else MAPS)


def compare_forms_of(kind: str, maps: Sequence[Map]) -> list[dict[str, Any]]:
    """Tries the forms that layers choose from on a kind of device, on the device of this process.

    Args:
      kind: one of `lambdanet.backend.device.DEVICES`.
      maps: the maps.

    Returns:
      The rows of the table.
    """
    kernel = kernels.KERNELS[kind]
    rows = []
    timings: dict[str, list[Timing]] = {name: [] for name in PASSES}
    for place, dtype, name in itertools.product(maps, TOLERANCES, PASSES):
        row, times = _compare_case(kernel, place, dtype, PASSES[name])
        pool = f" pool {place.pool_size}" if place.pool_size > 1 else ""
        size = f"{place.side}x{place.side}x{HEADS * place.v}x{place.batch}{pool}"
        rows.append({"case": f"{size} {dtype} {name}", **row})
        timings[name] += times
    for name, times in timings.items():
        fitted = dataclasses.asdict(rates.fit(times, kernel.device.training))
        figures = {}
        for rate in ("rate", "elementwise_rate", "bandwidth"):
            is_found = MIN_RATE < fitted[rate] < MAX_RATE
            figures[rate] = f"{fitted[rate]:.2g}" if is_found else "any"
        case = f"rates for device.py, {name}"
        rows.append({"case": case, "passed": True, "ms": None, "figures": figures})
    return rows


def _compare_case(
    kernel: kernels.Kernels, place: Map, dtype: str, backward: bool
) -> tuple[dict[str, Any], list[Timing]]:
    """Returns the row of a case, and the times of its products."""
    inputs = _inputs(place, dtype)
    sizes = _term(place, backward, *inputs).sizes
    forms = _forms(kernel, sizes)
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        exact = jax.tree.map(lambda x: jnp.float64(np.asarray(x)), inputs)
        plain = _function(Product(query_first=False), kernel.device, place, backward)
        expected = jax.tree.map(np.asarray, jax.tree.leaves(plain(*exact)))
    entries: list[dict[str, Any]] = []
    timings = []
    for form in forms:
        entry: dict[str, Any] = {"form": str(form)}
        entries.append(entry)
        run = _function(form, kernel.device, place, backward)
        try:
            found = jax.tree.leaves(run(*inputs))
            entry["error"] = max(map(_error, found, expected))
            seconds = _seconds(run, inputs)
        except Exception as error:  # of any kind: the other forms are tried too
            entry["failure"] = scrub(f"{type(error).__name__}: {one_line(error)}")[:300]
            continue
        entry["ms"] = 1e3 * seconds
        if isinstance(form, Product) and place.pool_size == 1:
            timings.append(Timing((place, dtype), sizes, form, seconds))
    return _row(entries, TOLERANCES[dtype]), timings


def _forms(kernel: kernels.Kernels, sizes: Any) -> list[Form]:
    """Returns the form that a layer chooses, and the fastest others of each kind by their estimates."""
    speed = kernel.device.speed(sizes.needs_gradient, by_xla=True)
    chosen = choose_form(sizes, "auto", kernel, by_xla=True)
    known = itertools.chain.from_iterable(
        candidates(sizes) for candidates in kernel.position_lambdas
    )
    forms = [chosen]
    kinds: Counter[Any] = Counter()
    for form in sorted(known, key=lambda form: form.seconds(sizes, speed)):
        kind = (type(form), getattr(form, "query_first", None))
        kinds[kind] += 1
        if kinds[kind] <= MAX_FORMS and form != chosen:
            forms.append(form)
    return forms


def _row(entries: list[dict[str, Any]], tolerance: float) -> dict[str, Any]:
    """Returns the row of a case from its forms, of which the first is the one that a layer chooses."""
    timed = [entry for entry in entries if "ms" in entry]
    # `<=` is false for an error that is no number.
    right = [entry for entry in timed if entry["error"] <= tolerance]
    wrong = [entry["form"] for entry in entries if entry not in right]
    ms = entries[0].get("ms")
    figures: dict[str, Any] = {"forms": len(entries), "choice": entries[0]["form"]}
    if timed:
        fastest = min(timed, key=lambda entry: entry["ms"])
        error = max(entry["error"] for entry in timed)
        figures["fastest"] = f"{fastest['form']} {fastest['ms']:.2f} ms"
        figures["error"] = f"{error:.1g} of {tolerance:g}"
    if wrong:
        figures["wrong"] = "; ".join(wrong)
    return {"passed": not wrong, "ms": ms, "figures": figures, "forms": entries}


def _inputs(place: Map, dtype: str) -> list[Any]:
    """Returns queries, values, table and, with a pool, the content lambda; else None."""
    random = np.random.default_rng(0)
    b, side, v, scope, pool_size = place
    shapes = [
        [b, side, side, HEADS, KEY_DIM],
        [b, side, side, v, 1],
        [scope, scope, KEY_DIM, 1],
        [b, KEY_DIM, v],
    ]
    inputs = [jnp.asarray(random.standard_normal(shape), dtype) for shape in shapes]
    return inputs if pool_size > 1 else [*inputs[:3], None]


def _term(
    place: Map, backward: bool, queries: Any, values: Any, table: Any, content: Any
) -> PositionTerm:
    strides = 2 if place.pool_size > 1 else 1
    geometry = Geometry(strides=strides, pool_size=place.pool_size)
    return PositionTerm(queries, values, table, geometry, content, backward)


def _function(
    form: Form, speed: Device, place: Map, backward: bool
) -> Callable[..., Any]:
    """Returns a compiled function: the outputs and, for both passes, the gradients of half their squares."""

    def compute(*inputs: Any) -> Any:
        return form.apply(_term(place, backward, *inputs), speed)

    def compute_both(*inputs: Any) -> Any:
        outputs, gradients = jax.vjp(compute, *inputs)
        return outputs, gradients(outputs)

    return jax.jit(compute_both if backward else compute)


def _seconds(run: Callable[..., Any], inputs: Sequence[Any]) -> float:
    """Returns the time per call of a function that has been compiled."""
    start = time.perf_counter()
    for _ in range(CALLS):
        results = run(*inputs)
    jax.block_until_ready(results)
    return (time.perf_counter() - start) / CALLS


def _error(found: Any, expected: np.ndarray) -> float:
    """Returns the norm of the difference, relative to the norm of what is expected."""
    difference = np.asarray(found).astype("float64") - expected
    return float(np.linalg.norm(difference) / np.linalg.norm(expected))
