# SPDX-License-Identifier: Apache-2.0
"""An image has the same pixels in training, evaluation, serving and prediction of a detector."""

import io
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from detection_records import encode_example
from helpers import smooth_picture
from PIL import Image
from refusals import refused

from lambdanet.detection.configs import resolve
from lambdanet.detection.data import annotations, records
from lambdanet.detection.model_garden import task_factory
from lambdanet.detection.serving.saved_model import ModelGardenModule
from lambdanet.training.data import image_files
from lambdanet.training.data.records import write_records

SIDE = 64
# Of ImageNet.
MEAN, SPREAD = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375])
BOTH = (
    f"task.model.num_classes=3,task.model.input_size=[{SIDE},{SIDE},3],task.model.backbone.type=lambda_resnet,"
    "task.model.backbone.lambda_resnet.model_id=lambda_resnet_tiny,"
    "task.train_data.global_batch_size=1,task.train_data.dtype=float32,task.train_data.shuffle_buffer_size=1,"
    "task.validation_data.global_batch_size=1,task.validation_data.dtype=float32,"
)
DETECTOR = BOTH + (
    "task.model.min_level=3,task.model.max_level=5,task.train_data.parser.aug_rand_hflip=false,"
    "task.train_data.parser.aug_scale_min=1.0,task.train_data.parser.aug_scale_max=1.0"
)


# Smooth, which JPEG keeps within two gray levels.
waves = partial(smooth_picture, SIDE, SIDE)


def hidden_colors():
    """A partly transparent image, with red under the fully transparent part."""
    rgba = waves(4)
    rgba[..., 3] = np.linspace(0, 255, SIDE)
    rgba[: SIDE // 4, :, :3] = (255, 0, 0)
    rgba[: SIDE // 4, :, 3] = 0
    return rgba


def encoded(image, kind, orientation=1, **options):
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    image.save(file, kind, exif=exif, **options)
    return file.getvalue()


RGB, RGBA = Image.fromarray(waves(3)), Image.fromarray(hidden_colors())
GRAY = Image.fromarray(waves(1)[..., 0])
FILES = {
    "jpeg gray": encoded(GRAY, "JPEG", quality=98),
    "jpeg cmyk": encoded(RGB.convert("CMYK"), "JPEG", quality=98),
    **{f"jpeg turned {n}": encoded(RGB, "JPEG", n, quality=98) for n in range(1, 9)},
    "png": encoded(RGB, "PNG"),
    "png gray and alpha": encoded(RGBA.convert("LA"), "PNG"),
    "png hidden colors": encoded(RGBA, "PNG"),
    "png palette with a transparent color": encoded(
        RGB.quantize(16), "PNG", transparency=3
    ),
    "png 16 bits": encoded(
        Image.fromarray(waves(1)[..., 0].astype(np.uint16) * 257), "PNG"
    ),
    "webp hidden colors": encoded(RGBA, "WEBP", lossless=True, exact=True),
}


def record(contents, height=SIDE, width=SIDE, number=17):
    image, masks = (
        np.zeros([height, width, 3], np.uint8),
        [np.ones([height, width, 1], np.uint8)],
    )
    example = encode_example(
        image, np.array([[0.1, 0.2, 0.7, 0.9]]), [1], masks, number
    )
    example.features.feature["image/encoded"].bytes_list.value[0] = contents
    return example.SerializeToString()


def write(path, *files, **options):
    examples = [record(contents, **options) for contents in files]
    write_records(str(path), examples)
    return str(path)


# A center crop of the full image takes the code path of any crop of Model Garden.
CLASSIFIER = BOTH + (
    "task.train_data.aug_rand_hflip=false,task.train_data.aug_crop=false,"
    "task.validation_data.center_crop_fraction=1.0"
)


@pytest.fixture(scope="module")
def params():
    names = {"mask": "maskrcnn_resnetfpn_coco", "retina": "retinanet_resnetfpn_coco"}
    return {
        key: resolve.resolve(name, params_override=DETECTOR)
        for key, name in names.items()
    }


@pytest.fixture(scope="module")
def routes(params, tmp_path_factory):
    """Route -> the pixels of all `FILES`, in their order."""
    folder = tmp_path_factory.mktemp("routes")
    records_file = write(folder / "data", *FILES.values())
    found = {}
    classifier = resolve.resolve("image_classification", params_override=CLASSIFIER)
    for key, one in {**params, "classifier": classifier}.items():
        task = task_factory.get_task(one.task)
        for part in ("train_data", "validation_data"):
            data = getattr(one.task, part).replace(input_path=records_file)
            batches = task.build_inputs(data).take(len(FILES))
            found[f"{key}, {part}"] = [
                images[0] * SPREAD + MEAN for images, _ in batches
            ]
    detector = ModelGardenModule(
        params=params["mask"],
        model=keras.Sequential(),
        batch_size=None,
        input_image_size=[SIDE, SIDE],
    )
    found["serving"] = (
        detector.preprocess(tf.constant(list(FILES.values())))[0] * SPREAD + MEAN
    )
    return found


@pytest.mark.parametrize("name", FILES)
def test_image_is_the_same_on_every_route(name, routes, tmp_path):
    (tmp_path / name).write_bytes(FILES[name])
    expected = image_files.read_image(tmp_path / name)  # as in `predict` and `evaluate`
    tolerance = 2.01 if name.startswith("jpeg") else 1.01
    assert len(routes) == 7
    for route, images in routes.items():
        image = images[list(FILES).index(name)]
        np.testing.assert_allclose(image, expected, atol=tolerance, err_msg=route)


def check_records(task, path):
    data = task.train_data.replace(input_path=path)
    records.check_first_records("task.train_data", data, task.model)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (FILES["png"][:200], "data' has an image that cannot be used: .*PNG"),
        (
            encoded(RGB, "GIF"),
            r"record 0 of .*data \(image 17\) must have a JPEG, PNG or WebP image",
        ),
    ],
    ids=("damaged", "GIF"),
)
def test_records_of_unreadable_images_are_refused(contents, message, params, tmp_path):
    task = params["retina"].task
    path = write(tmp_path / "data", contents)
    with refused(message):
        check_records(task, path)


def rotated(orientation=6):
    """An image stored as 40x64 pixels, height x width; upright 64x40 for orientations from 5."""
    return encoded(RGB.crop((0, 0, SIDE, 40)), "JPEG", orientation)


@pytest.mark.slow
def test_annotations_must_fit_the_upright_image(params, tmp_path):
    """Annotations of the stored, rotated image are refused before and during training."""
    task = params["retina"].task
    upright = write(tmp_path / "upright", rotated(), height=SIDE, width=40)
    check_records(task, upright)
    stored = write(tmp_path / "stored", rotated(), height=40, width=SIDE)
    message = "image 17: height x width must be 64x40 as in the upright file, got 40x64"
    with refused(f"stored' has an image that cannot be used: {message}"):
        check_records(task, stored)
    for one in params.values():
        data = one.task.train_data.replace(input_path=stored)
        batches = task_factory.get_task(one.task).build_inputs(data)
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            next(iter(batches))
        assert str(records.as_input_error(raised.value)).startswith(message)


@pytest.mark.parametrize("orientation", [4, 5])
def test_check_images_compares_upright_sizes(orientation, tmp_path):
    (tmp_path / "one.jpg").write_bytes(rotated(orientation))
    for height, width in ((40, SIDE), (SIDE, 40)):
        image = {"id": 7, "file_name": "one.jpg", "height": height, "width": width}
        if (height < width) == (orientation < 5):
            annotations.check_images("instances.json", [image], tmp_path)
            continue
        with refused(f"image 7: height x width must be .* got {height}x{width}"):
            annotations.check_images("instances.json", [image], tmp_path)
    (tmp_path / "one.jpg").write_bytes(b"not an image")
    with refused("image 7: file .*one.jpg' is not an image"):
        annotations.check_images("instances.json", [image], tmp_path)
