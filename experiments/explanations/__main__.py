# SPDX-License-Identifier: Apache-2.0
"""`python -m experiments.explanations`: trains the networks, and prints the scores of their maps."""

import statistics
import sys

from benchmarks import program
from benchmarks.turns import results
from experiments.explanations import scenes
from experiments.explanations.pointer import score_pointer
from lambdanet import command_line, text_table
from lambdanet.errors import check_counts, check_known

METHODS = ("lambda map", "Grad-CAM", "integrated gradients", "random order")


def explain_truth(seeds: int = 5, tasks: list[str] | None = None) -> None:
    """Prints how often maps have their peak on what a network must read, over several seeds.

    Args:
      seeds: the number of trainings of each task.
      tasks: pointer, scenes; default: both.

    Raises:
      InputError: the number is not positive, or a task is unknown.
    """
    check_counts(seeds=seeds)
    chosen = tuple(PRINTERS) if tasks is None else tasks
    for task in chosen:
        check_known("task", task, PRINTERS)
    results.announce("float32")
    for task in chosen:
        PRINTERS[task](seeds)


def print_pointer(seeds: int) -> None:
    """Prints the scores of the pointer grid."""
    print("\npointer grid: arrows whose peak of the position map is on their cell, %")
    header = ["seed", "before training", "after training", "right answers"]
    rows = []
    for seed in range(seeds):
        rows.append([str(seed), *(f"{100 * x:.1f}" for x in score_pointer(seed))])
    print(text_table.render(header, [*rows, _mean(rows)]), flush=True)


def print_scenes(seeds: int) -> None:
    """Prints the scores of scenes, and the areas under both curves."""
    print("\nscenes: pictures whose peak is on the red object, %")
    shares = []
    areas = []
    chosen = []
    for seed in range(seeds):
        validation = scenes.draw_scenes(scenes.VALIDATION, (seed, 1))
        test = scenes.draw_scenes(scenes.TEST, (seed, 2))
        untrained = scenes.trained_network(seed, epochs=0)
        first = scenes.best_choice(untrained, validation)
        before = scenes.lambda_maps(untrained, test.images)[first]
        model = scenes.trained_network(seed)
        choice = scenes.best_choice(model, validation)
        logits = model.predict(test.images, verbose=0)
        accuracy = float((logits.argmax(-1) == test.labels).mean())
        maps = scenes.explanations(model, test, choice)
        numbers = [scenes.share_on_object(before, test.masks)]
        numbers += [scenes.share_on_object(maps[name], test.masks) for name in METHODS]
        shares.append([str(seed), *(f"{100 * x:.1f}" for x in (*numbers, accuracy))])
        found = scenes.curves(model, test, maps)
        pairs = [number for name in METHODS for number in found[name]]
        areas.append([str(seed), *(f"{x:.3f}" for x in pairs)])
        chosen.append(
            f"seed {seed}: {choice.layer}, head {choice.head}, sign {choice.sign:+d}"
        )
    header = ["seed", "lambda map before training", *METHODS, "right answers"]
    print(text_table.render(header, [*shares, _mean(shares)]))
    print("the lambda map:", "; ".join(chosen))
    print(
        "\nscenes: areas under the curves of deletion (lower is better) and insertion"
    )
    header = ["seed"]
    for name in METHODS:
        header += [f"{name}: deletion", "insertion"]
    print(text_table.render(header, [*areas, _mean(areas, digits=3)]), flush=True)


def _mean(rows: list[list[str]], digits: int = 1) -> list[str]:
    columns = list(zip(*rows, strict=True))[1:]
    means = [statistics.mean(map(float, column)) for column in columns]
    return ["mean", *(f"{mean:.{digits}f}" for mean in means)]


PRINTERS = {"pointer": print_pointer, "scenes": print_scenes}
COMMAND = program("experiments.explanations", explain_truth)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))
