# SPDX-License-Identifier: Apache-2.0
"""Explains the predictions of a trained classifier for picture files, as drawings and pages."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from lambdanet import backend as K
from lambdanet.backend import compat, keras
from lambdanet.core.errors import InputError, check_count, escape_unprintable, invalid
from lambdanet.core.files import absolute, atomic_dir, check_output_dir, write_output
from lambdanet.explain import networks
from lambdanet.explain.drawing import (
    Explanation,
    LayerMaps,
    draw_explanation,
    draw_page,
)
from lambdanet.explain.implied_attention import (
    has_map,
    implied_attention,
    position_pictures,
)
from lambdanet.training.data.image_files import expand_folders, read_image
from lambdanet.training.serving.drawing import percent, picture_paths, save_picture
from lambdanet.training.serving.trained_weights import TrainedModel

LAYERS = 4  # shown by default, the last ones
# The limits of a page: maps of larger layers are for every second output or fewer, and summed over cells.
MAX_QUERIES = 256
MAX_CELLS = 1024


def explain(
    load: Callable[[], TrainedModel],
    images: Sequence[str],
    out: str | Path,
    layers: Sequence[str] = (),
    top: int = 5,
    overwrite: bool = False,
) -> list[str]:
    """Writes a drawing and a page for each picture: the prediction, and what layers read.

    Args:
      load: returns the classifier. It is called when all pictures have been read once, as it may download.
      images: picture files, and folders of them.
      out: the folder to write, which must not exist or be empty, unless `overwrite`: NAME.png and NAME.html
        for each picture.
      layers: the names of the layers; default: the last four that have a map.
      top: the number of classes to show.
      overwrite: whether `out` is replaced where it has such files of the same pictures alone.

    Returns:
      The path of each page.

    Raises:
      InputError: a file is no picture, a layer has no map, or `out` has other files, or cannot be written.
        Then nothing is written.
    """
    top = check_count("top", top)
    paths = expand_folders(images, out)
    names = []
    files = []
    for path in picture_paths(paths, out, overwrite=True, suffix=""):
        name = Path(path).stem
        names.append(name)
        files += [f"{name}.html", f"{name}.png"]
    check_output_dir(out, files=files, overwrite=overwrite)
    for image in paths:
        read_image(image)
    explainer = Explainer(load(), layers)
    folder = absolute(out)
    pages = []
    with atomic_dir(folder) as staging:
        for image, name in zip(paths, names, strict=True):
            explanation = explainer(read_image(image), os.path.basename(image), top)
            save_picture(draw_explanation(explanation), f"{staging}/{name}.png")
            write_output(f"{staging}/{name}.html", draw_page(explanation))
            pages.append(f"{folder}/{name}.html")
            found, probability = explanation.top[0]
            print(
                f"{escape_unprintable(image)}: {found} ({percent(probability)}), explained in "
                f"{escape_unprintable(pages[-1])}"
            )
    return pages


class Explainer:
    """Explains pictures: called with one, it returns an `Explanation`.

    Args:
      trained: a classifier.
      layers: the names of layers with a map; default: the last four.

    Raises:
      InputError: a layer is unknown or has no map.
    """

    def __init__(self, trained: TrainedModel, layers: Sequence[str] = ()):
        model = trained.model
        self.outputs = trained.task_outputs
        if self.outputs.any_size or not self.outputs.num_logits:
            accepted = "a classifier of pictures"
            given = f"{model.name}, which makes {self.outputs.kind}"
            raise invalid("the network", accepted, given)
        graph = compat.graph_of(model)
        self.trained = trained
        self.calls: dict[str, networks.Call] = {}
        if layers or any(has_map(call[0]) for call in compat.layer_calls(graph)):
            self.calls = networks.calls_with_maps(model, layers or None)
        if not layers:
            self.calls = dict([*self.calls.items()][-LAYERS:])
        size = trained.preprocessing.input_size
        target = networks.map_at(model, [1, size, size, 3])
        self.head = networks.head_of(model, target)
        tensors = [graph.outputs[0], target, *networks.tensors_of(self.calls)]
        self.reader = keras.Model(graph.inputs, tensors)

    def __call__(self, image: np.ndarray, title: str, top: int) -> Explanation:
        """Explains a picture, uint8 RGB [h, w, 3]."""
        preprocessing = self.trained.preprocessing
        if len(preprocessing.mean) == 1:
            image = tf.image.rgb_to_grayscale(image).numpy()
        pixels = np.asarray(preprocessing.square(tf.convert_to_tensor(image)))
        inputs = preprocessing.normalize(pixels)[np.newaxis]
        logits, features, *values = self.reader(
            [K.convert_to_tensor(inputs)], training=False
        )
        selected = networks.one_hot(None, logits)
        evidence = networks.evidence(self.head, features, selected)
        (scores,) = self.outputs.final(K.convert_to_numpy(logits)).numpy()
        classes = self.outputs.describe(scores, top)["top"]
        shown = np.round(255 * pixels.clip(0, 1)).astype(np.uint8)
        maps = []
        arguments = networks.arguments_of(self.calls, values)
        for name, call in zip(self.calls, arguments, strict=True):
            maps.append(_maps_of(name, self.calls[name].layer, call))
        return Explanation(
            title,
            np.broadcast_to(shown, [*shown.shape[:2], 3]),
            classes,
            K.convert_to_numpy(evidence)[0],
            maps,
        )


def _maps_of(name: str, layer: Any, arguments: dict[str, Any]) -> LayerMaps:
    """Returns the maps of a layer for a grid of its outputs."""
    height, width = layer.compute_output_shape(arguments["inputs"].shape)[1:3]
    step = _smallest_step(height, width, MAX_QUERIES)
    rows = range(step // 2, height, step)
    columns = range(step // 2, width, step)
    queries = [(row, column) for row in rows for column in columns]
    found = implied_attention(layer, queries=queries, **arguments)
    context = arguments["context"]
    size = (arguments["inputs"] if context is None else context).shape[1:3]
    names = ["weights"] if found.position is None else ["content", "position"]
    if found.position is None and getattr(layer, "content", False):
        names = ["content"]
    parts = {}
    for part, maps in zip(names, found, strict=False):
        if maps is not None:
            parts[part] = _summed(K.convert_to_numpy(maps)[0], size)
    return LayerMaps(name, (len(rows), len(columns)), parts, _offsets(layer))


def _offsets(layer: Any) -> np.ndarray | None:
    """Returns the position embeddings of a layer [k, r, r]; None without a table of offsets in two axes."""
    try:
        pictures = position_pictures(layer)
    except InputError:
        return None
    return pictures if pictures.ndim == 3 else None


def _summed(maps: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Sums maps [h, q, m] or [h, q, m, u] over u and cells of positions: [h, q, height, width]."""
    height, width = size
    maps = maps.reshape([*maps.shape[:2], height, width, -1]).sum(-1)
    step = _smallest_step(height, width, MAX_CELLS)
    around = [(0, 0), (0, 0), (0, -height % step), (0, -width % step)]
    maps = np.pad(maps, around)
    rows = maps.shape[2] // step
    columns = maps.shape[3] // step
    cells = maps.reshape([*maps.shape[:2], rows, step, columns, step])
    return cells.sum(axis=(3, 5))


def _smallest_step(height: int, width: int, largest: int) -> int:
    """Returns the smallest step between grid positions on a map that leaves at most `largest` of them."""
    step = 1
    while -(-height // step) * -(-width // step) > largest:
        step += 1
    return step
