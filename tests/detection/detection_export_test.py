# SPDX-License-Identifier: Apache-2.0
"""Exported detectors: averaged weights, boxes in pixels of the input, and the programs that use them."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_close, assert_equal_arrays
from numpy.testing import assert_allclose
from PIL import Image
from processes import run_code
from pycocotools.coco import COCO
from refusals import refused
from refused_commands import assert_refused

from lambdanet.core import command_line
from lambdanet.detection import evaluate, export, predict
from lambdanet.detection.configs import resolve
from lambdanet.detection.data.shape_files import write_shapes
from lambdanet.detection.model_garden import train_utils
from lambdanet.detection.run import model_dir
from lambdanet.detection.serving import coco_table, prediction, saved_model
from lambdanet.detection.serving.saved_model import ModelGardenModule
from lambdanet.training.serving.exported_model import ExportedModel

NAME = "maskrcnn_lambda_resnet_shapes"
SIZE = 64
SMALL = (
    f"task.model.input_size=[{SIZE},{SIZE},3],task.model.min_level=4,task.model.decoder.fpn.num_filters=8,"
    "task.model.rpn_head.num_filters=8,task.model.detection_head.num_filters=8,"
    "task.model.detection_head.fc_dims=8,task.model.mask_head.num_filters=8,"
    "task.model.roi_generator.test_num_proposals=8,task.model.detection_generator.max_num_detections=5,"
    "task.annotation_file=null"
)
EMA = ",trainer.optimizer_config.ema.average_decay=0.9,trainer.best_checkpoint_export_subdir=best"
NAMES = ["background", "disc", "triangle", "square", "star", "ring"]


def _params(more=""):
    return resolve.resolve(NAME, params_override=SMALL + more)


def _randomize(variables, seed):
    """Assigns weights in the range of trained ones; variances are positive."""
    random = np.random.default_rng(seed)
    for variable in variables:
        noise = random.normal(0, 0.2, variable.shape).astype(np.float32)
        variable.assign(np.abs(noise) + 0.5 if "variance" in variable.name else noise)


@pytest.fixture(scope="module")
def params():
    return _params(EMA)


@pytest.fixture(scope="module")
def model(params):
    return saved_model.build_detector(params)


@pytest.fixture(scope="module")
def run(params, model, tmp_path_factory):
    """A model_dir as training writes it, with averages that differ from the weights of the last step."""
    path = tmp_path_factory.mktemp("run")
    _randomize(model.variables, 0)
    optimizer = model_dir.averaging_optimizer(model, params)
    averaged = model_dir.averaged_variables(model, params)
    _randomize([optimizer.get_slot(variable, "average") for variable in averaged], 1)
    checkpoint = tf.train.Checkpoint(
        model=model, optimizer=optimizer, global_step=tf.Variable(3)
    )
    tf.train.CheckpointManager(checkpoint, str(path), None).save(checkpoint_number=3)
    tf.train.CheckpointManager(
        checkpoint, str(path / "best"), 1, checkpoint_name="best_ckpt"
    ).save()
    train_utils.serialize_config(params, str(path))
    model_dir.write_experiment_name(path, NAME)
    return path


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return write_shapes(tmp_path_factory.mktemp("data") / "shapes", train=1, val=3)


@pytest.fixture(scope="module")
def annotations(shapes):
    return os.path.join(shapes, "annotations", "instances_val.json")


@pytest.fixture(scope="module")
def exported(run, annotations, tmp_path_factory):
    out = tmp_path_factory.mktemp("exported") / "model"
    return saved_model.export(run, out, annotation_file=annotations)


@pytest.fixture(scope="module")
def loaded(exported):
    return tf.saved_model.load(exported)


@pytest.fixture(scope="module")
def picture():
    """An image half as high as wide, which is padded, but as wide as the model's input, so not resized."""
    random = np.random.default_rng(2)
    return np.kron(random.integers(0, 256, [4, 8, 3]), np.ones([8, 8, 1])).astype(
        np.uint8
    )


def _images(loaded, *pictures):
    return loaded.signatures["serving_default"](images=tf.constant(np.stack(pictures)))


def test_exported_model_has_the_averaged_weights(run, params, model, loaded, picture):
    """Against the model with the optimizer's averages, on a normalized and padded image."""
    loaded_from = model_dir.load_weights(model, params, str(run / "ckpt-3"))
    assert loaded_from == "averaged weights"
    averaged = model_dir.averaged_variables(model, params)
    weights = [variable.numpy() for variable in averaged]
    _randomize(averaged, 1)
    assert_equal_arrays(weights, averaged)
    normalized = (picture / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    padded = np.pad(normalized, [(0, SIZE - picture.shape[0]), (0, 0), (0, 0)])
    inputs = padded[np.newaxis].astype("float32"), np.float32([[SIZE, SIZE]])
    outputs = dict(model.call(*map(tf.constant, inputs), training=False))
    corner = [*picture.shape[:2], *picture.shape[:2]]
    outputs["detection_boxes"] = np.minimum(outputs["detection_boxes"], corner)
    found = _images(loaded, picture)
    assert int(found["num_detections"][0]) == 5
    for part in ("boxes", "scores", "classes", "masks"):
        name = f"detection_{part}"
        assert_close(found[name], outputs[name], 1e-3)


@pytest.mark.parametrize(
    ("mode", "steps", "done"),
    [("train", 3, True), ("train", 4, False), ("eval", 3, False)],
)
def test_is_finished(run, mode, steps, done):
    """The run has a checkpoint of step 3."""
    params = _params(f",trainer.train_steps={steps}")
    assert model_dir.is_finished(params, mode, str(run)) is done


def test_best_checkpoint_has_the_averages(run, params, model):
    best = tf.train.latest_checkpoint(str(run / "best"))
    assert model_dir.load_weights(model, params, best) == "averaged weights"
    weights = [variable.numpy() for variable in model.variables]
    _randomize(model.variables, 0)  # as the fixture saved them
    assert_equal_arrays(weights, model.variables)


def test_boxes_are_in_pixels_of_the_input(loaded, picture):
    """An image of twice the size is resized to the same one, so its boxes are twice as large."""
    first = _images(loaded, picture)
    second = _images(loaded, picture.repeat(2, axis=0).repeat(2, axis=1))
    for part, factor in (("boxes", 2), ("scores", 1)):
        name = f"detection_{part}"
        assert_allclose(second[name], factor * first[name], 1e-3, 1e-2)


@pytest.fixture(scope="module")
def files(picture, tmp_path_factory):
    """Three files of different sizes, one gray and one rotated, with their pixels."""
    folder = tmp_path_factory.mktemp("files")
    paths = [folder / name for name in ("color.png", "gray.png", "turned.jpg")]
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture).save(paths[0])
    Image.fromarray(picture).convert("L").resize((50, 90)).save(paths[1])
    Image.fromarray(picture).save(paths[2], quality=95, exif=exif)
    images = [np.asarray(Image.open(path).convert("RGB")) for path in paths]
    return paths, [*images[:2], np.rot90(images[2], -1)]


def test_signatures_agree(loaded, files):
    """Files in a batch may have different sizes."""
    encoded = [path.read_bytes() for path in files[0]]
    found = loaded.signatures["serving_bytes"](image_bytes=tf.constant(encoded))
    examples = [tf.train.Example() for _ in encoded]
    for example, one in zip(examples, encoded, strict=True):
        example.features.feature["image/encoded"].bytes_list.value.append(one)
    examples = tf.constant([example.SerializeToString() for example in examples])
    of_examples = loaded.signatures["serving_examples"](examples=examples)
    for index, image in enumerate(files[1]):
        alone = _images(loaded, image)
        for name, output in found.items():
            assert_close(output[index], alone[name][0], 1e-3)
            assert_close(of_examples[name][index], output[index], 1e-3)


@pytest.mark.slow
def test_exported_model_needs_only_tensorflow(exported, tmp_path):
    program = (
        "import sys, tensorflow as tf\n"
        f"loaded = tf.saved_model.load({exported!r})\n"
        "found = loaded.signatures['serving_default'](images=tf.zeros([2, 30, 40, 3], tf.uint8))\n"
        "print(*sorted(found))\n"
        "print([name.decode() for name in loaded.class_names().numpy()])\n"
        "print({'lambdanet', 'official', 'tf_keras'} & set(sys.modules))\n"
    )
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "0"}
    shown = run_code(program, cwd=tmp_path, **environment)
    outputs, names, modules = shown.stdout.splitlines()
    parts = ("boxes", "classes", "masks", "scores")
    assert outputs.split() == [f"detection_{x}" for x in parts] + ["num_detections"]
    assert (names, modules) == (str(NAMES), "set()")


def test_input_size_is_padded_to_the_stride(model, picture):
    params = _params()
    size = saved_model.set_input_size(params, [40, 50])
    assert (size, params.task.model.input_size) == ([40, 50], [64, 64, 3])
    detector = ModelGardenModule(
        params=params, model=model, batch_size=None, input_image_size=size
    )
    images, _, image_info = detector.preprocess(tf.constant(picture[np.newaxis]))
    assert images.shape == (1, 64, 64, 3)
    # The aspect ratio is kept.
    assert_allclose(image_info[0, 2], [25 / 32, 50 / 64])
    assert not images[:, 25:].numpy().any() and not images[:, :, 50:].numpy().any()
    assert saved_model.set_input_size(_params(), None) == [SIZE, SIZE]


def test_class_names_without_annotations_are_numbers(capsys):
    assert saved_model.find_class_names(_params(), None) == ["background", *"12345"]
    assert "class names are class numbers" in capsys.readouterr().out


def test_export_program_refuses_in_one_line(run, tmp_path, capsys):
    train_utils.serialize_config(_params(), str(tmp_path))
    for folder, flag, message in (
        (run.parent, "", "must be a folder of lambdanet.detection.train, with params"),
        (tmp_path, "", "has no experiment.txt; name its experiment with --exp"),
        (tmp_path, f"--experiment={NAME}", "checkpoint must be one of lambdanet.det"),
        (run, "--input_size=big", "--input_size must be HEIGHT,WIDTH or one side in"),
        (run, "--input_size=0,64", "input_size must be height and width in pixels"),
    ):
        words = [f"--model_dir={folder}", f"--out={tmp_path / 'out'}", flag]
        status = command_line.main(export.COMMAND, list(filter(None, words)))
        assert_refused(status, message, capsys)
    assert os.listdir(tmp_path) == ["params.yaml"]


def test_load_weights_refuses_another_model(params, model, tmp_path):
    other = tf.train.Checkpoint(model=tf.Module()).write(str(tmp_path / "ckpt-1"))
    with refused(r"ckpt-1' does not fit the model of its experiment \(.*\)"):
        model_dir.load_weights(model, params, other)


def test_predict_refuses(exported, shapes, tmp_path):
    image = os.path.join(shapes, "val", "000001.jpg")
    tf.saved_model.save(tf.Module(), str(tmp_path / "other"))
    for model, least, message in (
        ("nothing", 0.5, "written by `python -m lambdanet.det.*it does not exist"),
        ("other", 0.5, "other'; it has no output 'detection_boxes'"),
        (exported, 2, "min_confidence must be a number from 0 to 1, got 2"),
    ):
        with refused(message):
            prediction.predict(tmp_path / model, [image], tmp_path / "out", least)
    assert os.listdir(tmp_path) == ["other"]
    for name in ("000001_prediction.png", "predictions.json"):
        (tmp_path / name).touch()
        with refused(f"{name}' exists; --overwrite replaces it"):
            prediction.predict(tmp_path / "nothing", [image], tmp_path)
        (tmp_path / name).unlink()


def test_predict_program_writes_drawings_and_coco_json(
    exported, loaded_once, picture, tmp_path, capsys
):
    """Of a folder with a text file, a truncated image and an image whose name has a line break."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("a.png", "line\nbreak.png"):
        Image.fromarray(picture).save(folder / name)
    content = (folder / "a.png").read_bytes()
    (folder / "cut.png").write_bytes(content[: len(content) // 2])
    (folder / "notes.txt").write_text("not an image")
    out = tmp_path / "out"
    words = [f"--saved_model={exported}", f"--out={out}", "--min_confidence=0"]
    for flag in ([], ["--overwrite"]):
        status = command_line.main(predict.COMMAND, [*words, *flag, str(folder)])
        assert status == 1
        shown = capsys.readouterr()
    assert f"{folder}/line\\nbreak.png\n" in shown.out
    left_out, skipped, end = shown.err.splitlines()
    assert "notes.txt" in left_out and "cut.png" in skipped
    assert end == "lambdanet.detection.predict: error: 1 of 3 images cannot be read"
    drawings = ["a_prediction.png", "line\nbreak_prediction.png"]
    assert sorted(os.listdir(out)) == [*drawings, "predictions.json"]
    content = json.loads((out / "predictions.json").read_text())
    assert content["unreadable"] == [str(folder / "cut.png")]
    coco = COCO(str(out / "predictions.json"))
    assert [category["name"] for category in coco.cats.values()] == NAMES[1:]
    for annotation in coco.anns.values():
        assert coco.annToMask(annotation).shape == picture.shape[:2]
        assert 0 <= annotation["score"] <= 1
    assert {found["image_id"] for found in coco.anns.values()} == coco.imgs.keys()
    os.mkfifo(tmp_path / "pipe.png")
    status = command_line.main(
        predict.COMMAND, [*words, "--overwrite", str(tmp_path / "pipe.png")]
    )
    assert_refused(status, "image must be a regular file, got ", capsys)


@pytest.fixture
def loaded_once(loaded, monkeypatch):
    """Saves the time to load the model again."""
    exported = ExportedModel(
        loaded.signatures, [name.decode() for name in loaded.class_names().numpy()]
    )
    monkeypatch.setattr(prediction, "load_exported_model", lambda *args: exported)


def test_evaluate_program_prints_the_table(
    exported, loaded_once, shapes, annotations, tmp_path, capsys
):
    words = [
        f"--saved_model={exported}",
        f"--annotations={annotations}",
        f"--images={shapes}/val",
    ]
    out = tmp_path / "results.json"
    assert command_line.main(evaluate.COMMAND, [*words, f"--out={out}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["AP", "box", "mask"]
    assert {len(line.split()) for line in lines[1:]} == {13}
    status = command_line.main(evaluate.COMMAND, [*words, f"--out={annotations}"])
    assert_refused(status, "val.json' exists; --overwrite replaces it", capsys)
    results = COCO(annotations).loadRes(str(out))  # the reader of COCO's own programs
    assert results.getAnnIds()


def test_predictions_are_those_of_the_signatures(
    exported, loaded_once, loaded, files, tmp_path
):
    """`evaluate` finds the same objects, as `test_evaluation_matches_categories_by_name` shows."""
    paths, pixels = files
    found = prediction.predict(exported, paths, tmp_path / "out", min_confidence=0)
    for number, (entry, image) in enumerate(zip(found["images"], pixels, strict=True)):
        assert (entry["height"], entry["width"]) == image.shape[:2]
        outputs = _images(loaded, image)
        boxes = [x["bbox"] for x in found["annotations"] if x["image_id"] == number + 1]
        ymin, xmin, ymax, xmax = np.split(outputs["detection_boxes"][0], 4, axis=-1)
        expected = np.concatenate([xmin, ymin, xmax - xmin, ymax - ymin], -1)
        assert_allclose(boxes, expected[: len(boxes)], atol=0.1)
        assert len(boxes) == int(outputs["num_detections"][0])


def test_evaluation_matches_categories_by_name(
    exported, loaded_once, files, tmp_path, monkeypatch
):
    """With its own detections as annotations, a detector has found those with an area, whatever the ids."""
    paths, _ = files
    content = prediction.predict(exported, paths, tmp_path / "out", min_confidence=0)
    truth = tmp_path / "instances.json"
    tables = []
    for shift in (0, 1):
        for item in content["categories"]:
            item["id"] = (item["id"] + shift - 1) % 5 + 1
        for item in content["annotations"]:
            item["category_id"] = (item["category_id"] + shift - 1) % 5 + 1
        truth.write_text(json.dumps(content))
        tables.append(coco_table.evaluate(exported, truth, paths[0].parent))
    assert tables[0] == tables[1]
    assert tables[0]["box"]["AP medium"] == tables[0]["mask"]["AP medium"] == 1

    content["categories"][0]["name"] = "disk"
    truth.write_text(json.dumps(content))
    with refused("unknown category in .*instances.json 'disk'; did you mean disc"):
        coco_table.evaluate(exported, truth, paths[0].parent)
    # Without names, ids are class numbers, which are one off here.
    named = prediction.load_exported_model()
    numbers = named._replace(class_names=["background", *"12345"])
    monkeypatch.setattr(prediction, "load_exported_model", lambda *args: numbers)
    assert coco_table.evaluate(exported, truth, paths[0].parent)["box"]["AP"] < 0.1
