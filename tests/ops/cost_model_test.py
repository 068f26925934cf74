# SPDX-License-Identifier: Apache-2.0
"""The choices of `implementation="auto"`, against measurements and the TPU compiler's estimates."""

import pytest
import tensorflow as tf

from lambdanet.backend import device
from lambdanet.errors import InputError
from lambdanet.ops import cost_model, position_lambdas

CPU, TPU = device.DEVICES["CPU"], device.DEVICES["TPU"]


def problem(side, d, b, r=23, h=4, k=16, u=1, bytes=4):
    return cost_model.ProblemSize(b, (side, side), (side, side), (r, r), h, k, d // h, u, 1, 1, bytes)


# Milliseconds of forward and backward pass on two cores with AVX-512, the best of each order: (side, d, b).
MEASURED_ON_CPU = {
    (7, 512, 8): {False: 2.1, True: 0.8},
    (14, 256, 8): {False: 8.1, True: 3.7},
    (14, 512, 8): {False: 14.8, True: 4.3},
    (28, 128, 8): {False: 39.0, True: 29.4},
    (56, 64, 1): {False: 11.3, True: 15.3},
    (64, 256, 1): {False: 62.3, True: 28.8},
}


@pytest.mark.parametrize("sizes", MEASURED_ON_CPU)
def test_order_on_a_cpu(sizes):
    measured = MEASURED_ON_CPU[sizes]
    assert cost_model.choose(problem(*sizes), CPU).query_first == min(measured, key=measured.get)


# The TPU v3 compiler's estimate of forward and backward pass in bfloat16, milliseconds: (side, d, b).
ESTIMATED_FOR_TPU = {
    (7, 512, 128): {False: 0.55, True: 0.22},
    (14, 256, 128): {False: 2.84, True: 1.58},
    (28, 128, 32): {False: 6.7, True: 7.2},
    (56, 64, 32): {False: 16.0, True: 28.4},
    (64, 256, 8): {False: 12.9, True: 13.6},
}


@pytest.mark.parametrize("sizes", ESTIMATED_FOR_TPU)
def test_order_on_a_tpu(sizes):
    estimated = ESTIMATED_FOR_TPU[sizes]
    assert cost_model.choose(problem(*sizes, bytes=2), TPU).query_first == min(estimated, key=estimated.get)


# The same for the forward pass of the strided blocks of c4 and c5, pooled by 3x3 to half their side:
# milliseconds of pooling last and first.
POOLED_ON_A_TPU = {(28, 256, 128): (20.5, 7.9), (14, 512, 128): (1.9, 1.0)}


def test_queries_are_pooled_on_a_tpu_with_a_small_context():
    for sizes, (last, first) in POOLED_ON_A_TPU.items():
        assert cost_model.should_pool_queries(problem(*sizes, bytes=2), 3, 2, TPU) == (first < last)
        assert not cost_model.should_pool_queries(problem(*sizes), 3, 2, CPU)
    assert not cost_model.should_pool_queries(problem(56, 128, 128, bytes=2), 3, 2, TPU)
    assert not cost_model.should_pool_queries(problem(None, 128, 128, bytes=2), 3, 2, TPU)


@pytest.mark.parametrize("kind", device.DEVICES)
def test_large_maps_are_in_blocks(kind):
    """The embeddings of all pairs at 64x64 would take a gigabyte."""
    assert cost_model.choose(problem(64, 256, 8), device.DEVICES[kind]).block is not None
    assert cost_model.choose(problem(7, 512, 8), device.DEVICES[kind]).block is None


def test_maps_of_unknown_size_are_in_blocks():
    """A form that grows with the square of an unknown size is never chosen."""
    for b in (None, 8):
        unknown = cost_model.ProblemSize(b, (None, 14), (None, 14), (23, 23), 4, 16, 64, 1, 1, 1, 4)
        plan = cost_model.choose(unknown, CPU)
        assert plan.block is not None and all(isinstance(length, int) for length in plan.block)


def test_estimate_counts_what_the_docstring_says():
    """Lambda first, on a device that only counts large products, costs n m k v u."""
    infinite = float("inf")
    counts = device.Device(1.0, *[infinite] * 4)
    whole = cost_model.Plan(False, None)
    assert cost_model.estimate(problem(4, 12, 2, h=2, k=3, u=5), whole, counts) == 2 * 16 * 16 * 3 * 6 * 5
    blocks = cost_model.Plan(True, (3, 6))
    estimate = cost_model.estimate(problem(6, 8, 1, r=3, h=2, k=3), blocks, counts)
    assert estimate == 6 * 6 * (5 * 6) * 2 * (4 + 3)


def test_auto_runs_no_convolution_on_a_cpu():
    """No measured one was the fastest; on a TPU there is one over rows (see position_lambdas_test)."""
    traced = tf.function(lambda q, v, t: position_lambdas.apply_position_lambdas(q, v, t))
    for side in (7, 28, 64):
        graph = traced.get_concrete_function(
            tf.TensorSpec([2, side, side, 4, 16]),
            tf.TensorSpec([2, side, side, 16]),
            tf.TensorSpec([23, 23, 16]),
        ).graph
        assert not [op.type for op in graph.get_operations() if "Conv" in op.type]


def test_large_intermediates_are_computed_in_chunks():
    """Similarities of blocks of 8x8 queries with windows of 30x30 take 64 * 4 * 900 numbers per block."""
    plan = cost_model.Plan(True, (8, 8))
    assert cost_model.limit_memory(problem(64, 256, 8), plan, CPU).chunk == int(1.2e7 / (64 * 4 * 900 * 4))
    unknown = cost_model.limit_memory(problem(64, 256, None), plan, CPU)
    assert unknown == cost_model.limit_memory(problem(64, 256, 8), plan, CPU)
    assert cost_model.limit_memory(problem(14, 256, 8), cost_model.Plan(True), CPU).chunk is None


def test_assume_sets_the_kind_of_device():
    here = device.kind()
    with pytest.raises(RuntimeError, match="inside"), device.assume("TPU"):
        assert device.kind() == "TPU"
        with device.assume("GPU"):
            assert device.kind() == "GPU"
        assert device.kind() == "TPU"
        raise RuntimeError("inside")
    assert device.kind() == here
    with pytest.raises(InputError, match="unknown kind of device 'NPU'; .*CPU"):
        with device.assume("NPU"):
            pass
