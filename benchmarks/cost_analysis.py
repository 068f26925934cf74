# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.cost_analysis`: XLA's cost analysis of steps beside their times on this CPU."""

import dataclasses
import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from scipy import stats

from benchmarks import program
from benchmarks.turns import results
from benchmarks.turns.cases import LEARNING_RATE, MOMENTUM
from lambdanet import command_line, text_table, which_keras
from lambdanet.backend import keras
from lambdanet.errors import check_counts, check_known, invalid
from lambdanet.models import zoo
from lambdanet.models.inference import for_inference
from lambdanet.tpu import steps

# At least one model of each family.
MODELS = (
    "resnet_50",
    "resnet_50_se",
    "resnet_50_linear_attention",
    "resnet_50_axial_attention",
    "resnet_50_llll",
    "resnet_50_ccll",
    "resnet_rs_50",
    "lambda_resnet_50",
    "lambda_resnet_50_c4",
    "lambda_resnet_tiny",
    "resnet_micro",
    "lambda_resnet_micro",
    "mobilenet_v2",
    "mobilenet_v2_lambda",
    "halonet_h0",
    "halonet_h1",
    "lambda_resnet26t",
    "halonet26t",
    "efficientnet_b0",
)
# The processor's rates are those of a product of two square matrices and of adding to a long vector.
MATRIX = 2048
VECTOR = 2**25
TURN_SECONDS = 0.1

Run = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Step:
    """A compiled program.

    Attributes:
      name: the model, or what the program computes.
      flops: XLA's count of the FLOPs.
      bytes: XLA's count of the bytes that operations read and write.
      prepare: makes the inputs, and returns a function that runs the program on them.
      seconds: the time per run, in each turn.
    """

    name: str
    flops: float
    bytes: float
    prepare: Callable[[], Run]
    seconds: list[float] = dataclasses.field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of the times, in seconds."""
        return statistics.median(self.seconds)


def benchmark_cost_analysis(
    models: Sequence[str] = MODELS,
    passes: Sequence[str] = ("infer", "train"),
    size: int = 128,
    batch_size: int = 2,
    repeats: int = 9,
) -> dict[str, dict[str, float]]:
    """Compares estimates by XLA's cost analysis with measured times, on JAX and this CPU.

    Compiles the steps that `lambdanet tpu-check` compiles, in float32 and with SGD. The estimate is the
    larger of FLOPs and bytes, each divided by the rate of a program that does little else, which runs in the
    same turns. Prints a table per pass, with rank correlations of the times with the estimate, and with FLOPs
    and bytes alone; that of the odd turns with the even ones says how exact the times are.

    Args:
      models: names of models in the zoo, at least three; default: some of each family.
      passes: "infer", "train", or both.
      size: the side of the images, in pixels.
      batch_size: the number of images per step.
      repeats: the number of turns per program, at least two.

    Returns:
      The rank correlations by pass and name.

    Raises:
      InputError: an argument is not as described, or Keras is not on JAX.
    """
    check_counts(size=size, batch_size=batch_size, repeats=repeats)
    if len(set(models)) < 3:
        raise invalid("models", "at least three names", ", ".join(models))
    if repeats < 2:
        raise invalid("repeats", "at least 2", repeats)
    for name in passes:
        check_known("pass", name, steps.MODES)
    which_keras.check_backend("benchmarks.cost_analysis", ("jax",))
    results.announce("float32")
    found = {}
    for name in dict.fromkeys(passes):
        compiled = [
            _compile_model(model, name, size, batch_size)
            for model in dict.fromkeys(models)
        ]
        rates = _rate_programs()
        _take_turns([*rates, *compiled], repeats)
        print(f"\n{name}, batch {batch_size}, {size} pixels, {repeats} turns")
        found[name] = _print_table(compiled, *rates)
    return found


def _compile_model(name: str, mode: str, size: int, batch_size: int) -> Step:
    import jax

    model = zoo.create_model(name, input_size=size)
    if mode == "infer":
        model = for_inference(model)
    else:
        model.compile(
            keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    images = jax.ShapeDtypeStruct((batch_size, size, size, 3), "float32")
    labels = jax.ShapeDtypeStruct((batch_size,), "int32")
    step = steps.model_step(model, (images, labels), mode)
    compiled = compile_step(name, step.function, step.inputs)
    del model, step
    gc.collect()  # models have cycles, and all of them would fill the memory
    return compiled


def _rate_programs() -> tuple[Step, Step]:
    """Returns the programs whose times give the rates of FLOPs and of bytes."""
    import jax

    matrix = jax.ShapeDtypeStruct((MATRIX, MATRIX), "float32")
    vector = jax.ShapeDtypeStruct((VECTOR,), "float32")
    product = compile_step("product", lambda a, b: a @ b, (matrix, matrix))
    return product, compile_step("addition", lambda x: x + 1, (vector,))


def compile_step(name: str, function: Callable[..., Any], inputs: Any) -> Step:
    """Returns a function as a compiled program.

    Args:
      name: the name of the result.
      function: a function of tensors.
      inputs: their shapes and types, which may be nested; the program runs on 0.01, or 0 for integers.
    """
    import jax

    compiled = jax.jit(function).lower(*inputs).compile()
    counts: Any = compiled.cost_analysis()

    def constant(x: Any) -> Any:
        return jax.numpy.full(x.shape, 0.01, "float32").astype(x.dtype)

    def prepare() -> Run:
        arrays = jax.tree.map(constant, inputs)
        return lambda: jax.block_until_ready(compiled(*arrays))

    return Step(name, counts["flops"], counts["bytes accessed"], prepare)


def _take_turns(programs: Sequence[Step], repeats: int) -> None:
    """Times programs in rounds, each of which starts with another one; only one has its inputs in memory."""
    for turn in range(repeats):
        first = turn % len(programs)
        for step in [*programs[first:], *programs[:first]]:
            run = step.prepare()
            run()  # to warm the caches
            calls = 0
            start = time.perf_counter()
            while calls == 0 or time.perf_counter() - start < TURN_SECONDS:
                run()
                calls += 1
            step.seconds.append((time.perf_counter() - start) / calls)


def _print_table(
    compiled: Sequence[Step], product: Step, addition: Step
) -> dict[str, float]:
    """Prints a row per model and the rank correlations, and returns these."""
    flop_rate = product.flops / product.median
    byte_rate = addition.bytes / addition.median
    estimates = [
        max(step.flops / flop_rate, step.bytes / byte_rate) for step in compiled
    ]
    rows = []
    for step, estimate in zip(compiled, estimates, strict=True):
        counts = [f"{step.flops / 1e9:.3f}", f"{step.bytes / 1e9:.3f}"]
        times = [f"{1e3 * estimate:.1f}", f"{1e3 * step.median:.1f}"]
        rows.append([step.name, *counts, *times, f"{step.median / estimate:.2f}"])
    header = ["", "GFLOP", "GB", "estimated ms", "measured ms", "ratio"]
    print(text_table.render(header, rows), end="")
    print(f"rates: {flop_rate / 1e9:.1f} GFLOP/s, {byte_rate / 1e9:.1f} GB/s")
    measured = [step.median for step in compiled]
    compared = {
        "estimate": (estimates, measured),
        "FLOPs": ([step.flops for step in compiled], measured),
        "bytes": ([step.bytes for step in compiled], measured),
        "odd turns with even turns": _halves(compiled),
    }
    found = {}
    for name, pair in compared.items():
        found[name] = float(stats.spearmanr(*pair).statistic)
    numbers = [f"{name} {value:.3f}" for name, value in found.items()]
    print("Spearman's rank correlation with the times:", ", ".join(numbers), flush=True)
    return found


def _halves(compiled: Sequence[Step]) -> tuple[list[float], list[float]]:
    """Returns the medians of the odd and of the even turns."""
    odd = [statistics.median(step.seconds[::2]) for step in compiled]
    even = [statistics.median(step.seconds[1::2]) for step in compiled]
    return odd, even


COMMAND = program(
    "benchmarks.cost_analysis",
    benchmark_cost_analysis,
    examples=("KERAS_BACKEND=jax python -m benchmarks.cost_analysis",),
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
