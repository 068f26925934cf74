# SPDX-License-Identifier: Apache-2.0
"""The command `explain`: its pages and drawings, what it refuses, and the page in a browser."""

import base64
import json
import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from browsers import CHROMIUM, driven
from helpers import noise
from numpy.testing import assert_allclose
from PIL import Image
from refusals import refused
from refused_commands import assert_refused
from tiny_weights import write_tiny_weights
from training_runs import run_exported

from lambdanet import cli, explain
from lambdanet.explain.exported_network import load_exported_network
from lambdanet.training.serving.export import export_saved_model, export_weights

# Of values in 127 steps of a scale: half a step, and the difference of two computations in float32.
HALF_STEP = 0.5 / 127 + 1e-5
LAYERS = [
    "c3_block2_spatial",
    "c4_block1_spatial",
    "c4_block2_spatial",
    "c5_block1_spatial",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Weights of two classes, an export of them, and pictures."""
    path = tmp_path_factory.mktemp("explain")
    write_tiny_weights(path)
    weights = path / "tiny.safetensors"
    export_weights("lambda_resnet_tiny", weights, path / "saved", path / "names.txt")
    Image.fromarray(noise(40, 30, 3)).save(path / "noise.png")
    (path / "text.png").write_text("no picture")
    return path


@pytest.fixture(scope="module")
def explained(folder) -> Path:
    """The folder that the command writes for a picture with a name that needs escapes."""
    picture = folder / "a <b> & 'c'.png"
    shutil.copy(folder / "noise.png", picture)
    out = folder / "explained"
    words = [f"--saved_model={folder / 'saved'}", f"--out={out}", str(picture)]
    assert cli.main(["explain", *words]) == 0
    return out


def numbers_of(text: str, dtype: str = "int8") -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)


def data_of(page: Path) -> dict:
    text = page.read_text(encoding="utf-8")
    (data,) = re.findall(
        '<script type="application/json" id="data">(.*)</script>', text
    )
    return json.loads(data)


@pytest.mark.slow
def test_exported_network_has_the_outputs_of_the_export(folder):
    trained = load_exported_network(folder / "saved")
    image = noise(2, 40, 30, 3)
    expected = run_exported(folder / "saved", image, "saved_model")
    logits = trained.model(trained.preprocessing(image))
    assert_allclose(tf.nn.softmax(logits), expected["probabilities"], atol=1e-5)
    assert trained.class_names == ["cat", "dog"]


def test_page_has_the_maps_of_the_last_layers(folder, explained):
    files = sorted(path.name for path in explained.iterdir())
    assert files == ["a <b> & 'c'.html", "a <b> & 'c'.png"]
    data = data_of(explained / files[0])
    trained = load_exported_network(folder / "saved")
    image = np.asarray(Image.open(folder / "noise.png"))
    x = trained.preprocessing(image)[np.newaxis]
    maps = explain.implied_attentions(trained.model, x)
    assert [layer["name"] for layer in data["layers"]] == LAYERS == [*maps]
    (best,) = tf.nn.softmax(trained.model(x)).numpy().max(-1)
    assert data["classes"][0]["probability"] == pytest.approx(best, abs=1e-5)
    for layer, expected in zip(data["layers"], maps.values(), strict=True):
        shape = [layer["heads"], -1, layer["height"] * layer["width"]]
        assert [part["name"] for part in layer["parts"]] == ["content", "position"]
        for part, a in zip(layer["parts"], expected, strict=False):
            steps = numbers_of(part["values"]).reshape(shape) / 127
            scales = numbers_of(part["scales"], "<f4").reshape([layer["heads"], -1, 1])
            assert_allclose(steps * scales, a[0], atol=scales.max() * HALF_STEP)
        offsets = layer["offsets"]
        table = explain.position_pictures(trained.model.get_layer(layer["name"]))
        assert (offsets["keys"], offsets["height"], offsets["width"]) == table.shape
        steps = numbers_of(offsets["values"]) / 127
        found = (offsets["scale"] * steps).reshape(table.shape)
        assert_allclose(found, table, atol=offsets["scale"] * HALF_STEP)
    text = (explained / files[0]).read_text(encoding="utf-8")
    assert "<title>a &lt;b&gt; &amp; &#x27;c&#x27;.png</title>" in text
    assert "signed, not normalized" in text
    assert not re.search(r"(src|href)=|https?:", text)


def test_drawing_has_the_colors_of_the_legend(explained):
    drawing = np.asarray(Image.open(explained / "a <b> & 'c'.png").convert("RGB"))
    ramp = drawing[:, 16:240]
    for color in ((33, 102, 172), (178, 24, 43)):
        assert (ramp == color).all(-1).any()


def test_chosen_layers_and_pictures_of_one_name(folder, tmp_path, capsys):
    words = [f"--saved_model={folder / 'saved'}", f"--layers={LAYERS[2]},{LAYERS[1]}"]
    pictures = [str(folder / "noise.png")] * 2
    pictures.append(shutil.copy(folder / "noise.png", f"{tmp_path}/@DATA@.png"))
    out = tmp_path / "out"
    assert cli.main(["explain", *words, f"--out={out}", *pictures]) == 0
    names = {path.name for path in out.iterdir()}
    names -= {"@DATA@.html", "@DATA@.png"}
    assert names == {"noise.html", "noise.png", "noise_2.html", "noise_2.png"}
    assert "<title>@DATA@.png</title>" in (out / "@DATA@.html").read_text()
    layers = data_of(out / "noise_2.html")["layers"]
    assert [layer["name"] for layer in layers] == LAYERS[1:3]
    assert capsys.readouterr().out.count("explained in") == 3


def test_a_network_without_maps_has_grad_cam_alone(folder, tmp_path):
    inputs = keras.Input([16, 16, 1])
    x = keras.layers.Conv2D(4, 3, 4)(inputs)
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, keras.layers.Dense(2)(x))
    export_saved_model(model, tmp_path / "gray", 16, [0.5], [0.25], ["cat", "dog"])
    words = [f"--saved_model={tmp_path / 'gray'}", f"--out={tmp_path / 'out'}"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out/noise.html").write_text("old")
    words += ["--overwrite", str(folder / "noise.png")]
    assert cli.main(["explain", *words]) == 0
    data = data_of(tmp_path / "out/noise.html")
    assert data["layers"] == []
    assert (data["evidence"]["height"], data["evidence"]["width"]) == (4, 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["DIR/noise.png"], "needs one of --saved_model, --model_dir, --model"),
        (["--saved_model=DIR/saved", "DIR/noise.png", "DIR/text.png"], "text.png"),
        (["--saved_model=DIR/saved", "DIR/none.png"], "an existing file"),
        (
            ["--saved_model=DIR/saved", "--layers=c5_act", "DIR/noise.png"],
            "unknown layer with a map in 'lambda_resnet_tiny' 'c5_act'",
        ),
        (["--saved_model=DIR", "DIR/noise.png"], "it holds no SavedModel"),
        (["--saved_model=DIR/old", "DIR/noise.png"], "export it again"),
        (["--saved_model=DIR/damaged", "DIR/noise.png"], "cannot be loaded"),
        (["--model_dir=DIR/none", "DIR/noise.png"], "model_dir must be"),
        (["--model=resnet_5", "DIR/noise.png"], "did you mean"),
        (["--saved_model=DIR/saved", "--top=0", "DIR/noise.png"], "top must be"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    folder, tmp_path, words, message, capsys
):
    for name in ("old", "damaged"):
        if f"--saved_model=DIR/{name}" in words:
            shutil.copytree(folder / "saved", folder / name)
            network = folder / name / "assets.extra/network.json"
            if name == "old":
                network.unlink()
            else:
                network.write_text(network.read_text()[:100])
    out = tmp_path / "out"
    words = [word.replace("DIR", str(folder)) for word in words]
    assert_refused(cli.main(["explain", f"--out={out}", *words]), message, capsys)
    assert not [*tmp_path.iterdir()]


def test_a_record_with_code_is_not_run(folder, tmp_path):
    shutil.copytree(folder / "saved", tmp_path / "saved")
    record = tmp_path / "saved/assets.extra/network.json"
    network = json.loads(record.read_text())
    model = keras.Sequential([keras.Input([4]), keras.layers.Lambda(lambda x: 2 * x)])
    network["model"] = model.to_json()
    record.write_text(json.dumps(network))
    with refused("lambda"):
        load_exported_network(tmp_path / "saved")


# Run in the page: a person's moves, and what is there after each.
DRIVER = """
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
addEventListener("load", () => setTimeout(() => {
  const picture = document.getElementById("picture");
  const box = picture.getBoundingClientRect();
  const place = () => document.getElementById("place").textContent;
  const captions = () => [...document.querySelectorAll("figcaption")].map((one) => one.textContent);
  const drawn = () => document.querySelector("#c3_block2_spatial canvas").toDataURL();
  const hover = (x, y) => picture.dispatchEvent(new PointerEvent("pointermove", {
    clientX: box.left + x * box.width, clientY: box.top + y * box.height,
  }));
  const press = (key) => picture.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
  const found = { layers: [...document.querySelectorAll("h2")].map((one) => one.textContent) };
  hover(0.1, 0.1);
  found.first = [place(), captions(), drawn()];
  hover(0.9, 0.6);
  found.second = [place(), captions(), drawn()];
  press("ArrowLeft");
  press("ArrowUp");
  found.pressed = place();
  const tables = document.querySelectorAll("#c3_block2_spatial .offsets canvas");
  found.tables = [tables.length, new Set([...tables].map((one) => one.toDataURL())).size];
  const plain = picture.toDataURL();
  document.getElementById("evidence").click();
  found.hasEvidence = plain !== picture.toDataURL();
  document.body.append(Object.assign(document.createElement("pre"), {
    id: "found", textContent: JSON.stringify({ ...found, errors }),
  }));
}, 500));
"""


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_hovering_over_a_page_shows_what_a_position_reads(explained, tmp_path):
    page = tmp_path / "page.html"
    shutil.copy(explained / "a <b> & 'c'.html", page)
    found = driven(page, DRIVER, tmp_path / "profile")
    assert (found["errors"], found["console"]) == ([], [])
    assert found["layers"] == LAYERS
    layers = data_of(page)["layers"]
    rows = max(layer["rows"] for layer in layers)
    for name, x, y in (("first", 0.1, 0.1), ("second", 0.9, 0.6)):
        shown, captions, _ = found[name]
        row, column = int(y * rows), int(x * rows)
        assert shown == f"row {row + 1} of {rows}, column {column + 1} of {rows}"
        expected = []
        for layer in layers:
            at = int(y * layer["rows"]), int(x * layer["columns"])
            for part in layer["parts"]:
                scales = numbers_of(part["scales"], "<f4")
                by_head = scales.reshape(
                    layer["heads"], layer["rows"], layer["columns"]
                )
                expected += by_head[:, at[0], at[1]].tolist()
        values = [float(caption.partition("\u00b1")[2]) for caption in captions]
        assert_allclose(values, expected, rtol=0.06)
    assert found["first"][2] != found["second"][2]
    row, column = int(0.6 * rows), int(0.9 * rows)
    assert found["pressed"] == f"row {row} of {rows}, column {column} of {rows}"
    keys = layers[0]["offsets"]["keys"]
    assert found["tables"] == [keys, keys]
    assert found["hasEvidence"]
