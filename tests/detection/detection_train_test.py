# SPDX-License-Identifier: Apache-2.0
"""Detector training: initial weights, refused data, and a complete run on two devices."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from detection_records import encode_example
from helpers import assert_equal_arrays
from numpy.random import default_rng
from processes import output_of
from programs.small_model import FOUR_BLOCKS
from refusals import refused
from refused_commands import assert_refused
from tensorflow.train import Checkpoint

import lambdanet
from lambdanet import configs, detection
from lambdanet.core import command_line
from lambdanet.detection import train
from lambdanet.detection.configs import resolve
from lambdanet.detection.data import records
from lambdanet.detection.model_garden import task_factory
from lambdanet.detection.modeling import initialize
from lambdanet.detection.modeling.backbones import ZooBackbone
from lambdanet.detection.run import model_dir as model_dirs
from lambdanet.detection.run import train as run_train
from lambdanet.models import zoo
from lambdanet.models.weights import tensor_files, weight_files
from lambdanet.training.run import checkpoints, model_dir
from lambdanet.training.run.build import build_model

TINY, AVERAGE = "lambda_resnet_tiny", 0.25
EXPERIMENT = "lambda_resnet/maskrcnn_resnetfpn_coco"
SMALL = """
runtime: {distribution_strategy: one_device, mixed_precision_dtype: float32, enable_xla: false}
task:
  model:
    {num_classes: 3, input_size: [64, 64, 3], min_level: 5, max_level: 5, anchor: {anchor_size: 3},
    norm_activation: {norm_momentum: 0.1, norm_epsilon: 0.001, use_sync_bn: true},  # adapts in two steps
    backbone: {lambda_resnet: {model_id: lambda_resnet_tiny}}, decoder: {fpn: {num_filters: 16}},
    rpn_head: {num_filters: 16}, detection_head: {num_convs: 1, num_filters: 16, fc_dims: 16},
    mask_head: {num_convs: 1, num_filters: 16}, roi_sampler: {num_sampled_rois: 8},
    roi_generator: {pre_nms_top_k: 32, num_proposals: 16, test_pre_nms_top_k: 32, test_num_proposals: 16},
    mask_sampler: {num_sampled_masks: 4},
    detection_generator: {pre_nms_top_k: 16, max_num_detections: 5, pre_nms_score_threshold: 0.0}}
  train_data: {global_batch_size: 2, shuffle_buffer_size: 4, dtype: float32, parser: &parser
    {max_num_instances: 8, mask_crop_size: 28}}
  validation_data: {global_batch_size: 2, dtype: float32, num_examples: 3, parser: *parser}
  annotation_file: null
trainer:
  {train_steps: 2, steps_per_loop: 2, summary_interval: 2, checkpoint_interval: 2, validation_interval: 2,
  validation_steps: -1, continuous_eval_timeout: 1, optimizer_config: {
    learning_rate: {stepwise: {boundaries: [1], values: [0.01, 0.001]}},
    warmup: {linear: {warmup_steps: 1}}}}
"""


@pytest.fixture(scope="module", autouse=True)
def four_blocks():
    """Makes the network small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(zoo.MODELS, TINY, FOUR_BLOCKS)
        yield


RETINANET = """
runtime: {distribution_strategy: one_device, mixed_precision_dtype: float32}
task:
  model:
    num_classes: 3
    input_size: [128, 128, 3]
    backbone: {type: lambda_resnet, lambda_resnet: {model_id: lambda_resnet_tiny}}
    decoder: {fpn: {num_filters: 16}}
    head: {num_convs: 1, num_filters: 16}
  train_data: {global_batch_size: 2, dtype: float32, shuffle_buffer_size: 2}
trainer: {train_steps: 1, steps_per_loop: 1, summary_interval: 1, checkpoint_interval: 1,
  train_tf_function: false, train_tf_while_loop: false}
"""


def backbone(size=64, **options):
    return ZooBackbone(TINY, (size, size, 3), options)


def values(model):
    network = getattr(model, "network", model)
    return {
        name: variable.numpy()
        for name, variable in weight_files.weights_by_name(network).items()
    }


def picture(labels, number=0, box=(0.1, 0.2, 0.7, 0.9), channels=3, **changes):
    """Returns a record whose objects have the same box."""
    image = default_rng(number).integers(0, 256, [80, 100, channels], np.uint8)
    masks = [np.ones([80, 100, 1], np.uint8)] * changes.pop("masks", len(labels))
    return encode_example(
        image, np.array([box] * len(labels)), labels, masks, number, **changes
    )


def write(path, *examples):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in examples:
            writer.write(
                example if isinstance(example, bytes) else example.SerializeToString()
            )
    return path


@pytest.fixture(scope="module")
def classifier():
    model = lambdanet.create_model(TINY, num_classes=7)
    rng = default_rng(0)
    for weight in model.weights:
        weight.assign(rng.uniform(0.1, 0.9, weight.shape))
    return model


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model_dir of `lambdanet train` in which all moving averages are `AVERAGE`."""
    recipe = dataclasses.replace(configs.get_recipe("digits"), ema_decay=0.9)
    path = model_dir.claim(tmp_path_factory.mktemp("classification") / "run", recipe)
    model = build_model(recipe)
    trained = {variable.name for variable in model.trainable_variables}
    arrays = {}
    for name, weight in weight_files.weights_by_name(model).items():
        arrays[f"{checkpoints.MODEL}{name}"] = weight.numpy()
        if weight.name in trained:
            average = np.full(weight.shape, AVERAGE, np.float32)
            arrays[f"{checkpoints.AVERAGE}{name}"] = average
    (path / model_dir.CHECKPOINTS).mkdir()
    np.savez(path / model_dir.CHECKPOINTS / "ckpt-1.npz", **arrays)
    return path


def test_load_zoo_weights_from_the_averages_of_a_run(trained, capsys):
    model = backbone()
    assert initialize.load_zoo_weights(model, str(trained))
    for weight in model.trainable_weights:
        np.testing.assert_array_equal(
            weight, np.full(weight.shape, AVERAGE), weight.name
        )
    moving = [x.numpy() for x in model.non_trainable_weights if "variance" in x.name]
    assert moving and all((values == 1).all() for values in moving)
    shown = capsys.readouterr().out
    assert f"all {len(model.weights)} tensors from {trained}" in shown


def test_load_zoo_weights_from_files(classifier, tmp_path, monkeypatch, capsys):
    """A file of the user, and published weights."""
    monkeypatch.setenv("LAMBDANET_HOME", str(tmp_path))
    file = tmp_path / f"{TINY}.imagenet.safetensors"
    weight_files.save(classifier, file)
    for source in (file, "imagenet"):
        model = backbone()
        assert initialize.load_zoo_weights(model, str(source))
        expected = values(classifier)
        for name, value in values(model).items():
            np.testing.assert_array_equal(value, expected.pop(name))
        assert sorted(expected) == ["logits/bias", "logits/kernel"]
        assert "not used: logits/bias, logits/kernel" in capsys.readouterr().out


def test_head_prefixes_are_those_of_the_families(classifier):
    mobile = (
        lambdanet.create_model("mobilenet_v2"),
        ZooBackbone("mobilenet_v2", (32, 32, 3)).network,
    )
    for models in (mobile, (classifier, backbone().network)):
        whole, trunk = (weight_files.weights_by_name(model).keys() for model in models)
        assert whole - trunk == {
            key for key in whole if key.startswith(initialize.HEAD_PREFIXES)
        }


def test_load_zoo_weights_refuses_other_weights(classifier, trained, tmp_path):
    arrays = values(classifier)
    arrays["stray/kernel"] = arrays.pop("stem1_conv/kernel")
    file = tmp_path / "changed.safetensors"
    tensor_files.write_safetensors(file, arrays, {"model": TINY})
    other = ZooBackbone("mobilenet_v2", (32, 32, 3))
    theirs = keras.Sequential(name="theirs")
    for model, source, message in (
        (other, trained, f"must be weights of mobilenet_v2, .* got those of {TINY}"),
        (theirs, trained, "a checkpoint of Model Garden for its backbone theirs, got"),
        (
            backbone(),
            file,
            "stem1_conv/kernel is missing; stray/kernel has no variable",
        ),
        (
            backbone(),
            "imagenet21k",
            "must be a checkpoint of Model Garden, a model_dir",
        ),
    ):
        with refused(message):
            initialize.load_zoo_weights(model, str(source))


@pytest.fixture(scope="module")
def classification():
    """Model Garden's classification task with a small backbone."""
    override = "task.model.input_size=[32,32,3],task.init_checkpoint_modules=backbone"
    override += (
        f",task.model.num_classes=7,task.model.backbone.lambda_resnet.model_id={TINY}"
    )
    params = resolve.resolve("lambda_resnet/resnet_imagenet", params_override=override)
    return params, task_factory.get_task(params.task).build_model()


def test_task_initializes_from_model_gardens_checkpoint(
    classification, tmp_path, capsys
):
    params, model = classification
    step_number = tf.Variable(1, dtype=tf.int64)
    checkpoint = Checkpoint(
        model=model, backbone=model.backbone, global_step=step_number
    )
    path = checkpoint.write(str(tmp_path / "ckpt"))
    fresh = task_factory.get_task(params.task).build_model()
    for modules, name in (("backbone", "backbone"), ("all", "model")):
        changes = {"init_checkpoint": path, "init_checkpoint_modules": modules}
        task_factory.get_task(params.task.replace(**changes)).initialize(fresh)
        found, expected = (getattr(x, modules, x).weights for x in (fresh, model))
        assert_equal_arrays(found, expected)
        shown = capsys.readouterr().out
        assert f"{name}: all {len(found)} tensors from {path}" in shown


def test_task_refuses_other_checkpoints(classification, tmp_path):
    params, model = classification
    other = Checkpoint(backbone=keras.Sequential([keras.layers.Dense(1)]))
    path = other.write(str(tmp_path / "ckpt"))
    for source, message in (
        (path, "must be a checkpoint with .* tensors for the backbone .*, got 0"),
        (str(tmp_path), "must be a checkpoint of Model Garden, .*, got "),
    ):
        task = task_factory.get_task(params.task.replace(init_checkpoint=source))
        with refused(message):
            task.initialize(model)


@pytest.fixture
def task():
    return resolve.resolve(EXPERIMENT, params_override=SMALL).task


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (
            picture([1, 3]),
            r"record 0 of .*bad \(image 0\) must have classes from 1 to 2 .*=3, .* got 1, 3",
        ),
        (
            picture([1], box=(0.1, 0.2, 1.2, 0.9)),
            "must have boxes with 0 <= min .* of 0.100 and .* of 1.200",
        ),
        (
            picture([1], box=(0.7, 0.2, 0.1, 0.9)),
            "must have boxes with 0 <= min <= max <= 1",
        ),
        (
            picture([1, 2], masks=0),
            "must have one mask per object .* 0 masks and 2 objects; .*include_mask=",
        ),
        (
            tf.train.Example(),
            r"record 0 of .*bad .*must be one of tf.Examples .*; it has no image/encoded",
        ),
        (b"no example", r"records of '.*bad' must be tf.Examples"),
    ],
    ids=range(6),
)
def test_check_first_records_refuses(task, tmp_path, example, message):
    data = task.train_data.replace(input_path=str(write(tmp_path / "bad", example)))
    with refused(message):
        records.check_first_records("task.train_data", data, task.model)


def test_check_first_records_refuses_files(task, tmp_path):
    (tmp_path / "text").write_text("no TFRecords")
    write(tmp_path / "empty")
    for name, message in {
        "none*": "task.train_data.input_path must be files of .* got '.*none\\*'; no file matches",
        "none": "task.train_data.input_path must be files of .* got '.*none'; there is no such file",
        "text": "records of '.*text' must be tf.Examples",
        "empty": "task.train_data.input_path must be .* got '.*empty'; 1 files have no record",
    }.items():
        data = task.train_data.replace(input_path=str(tmp_path / name))
        with refused(message):
            records.check_first_records("task.train_data", data, task.model)


def test_checked_reader_names_a_later_record(task, tmp_path):
    good = [picture([1], number) for number in range(records.RECORDS_CHECKED)]
    file = write(tmp_path / "late", *good, picture([5], 99))
    data = task.train_data.replace(input_path=str(file), global_batch_size=1)
    records.check_first_records("task.train_data", data, task.model)
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        for _ in records.checked_reader(data, task.model)([str(file)]):
            pass
    message = f"record 10 of {file} (image 99) must have classes from 1 to 2"
    assert str(records.as_input_error(raised.value)).startswith(message)
    assert records.as_input_error(ValueError("another")) is None


def test_checkpoint_of_other_sizes_is_refused(tmp_path):
    def manager(sizes):
        checkpoint = Checkpoint(v=tf.Variable(tf.zeros(sizes)))
        return tf.train.CheckpointManager(checkpoint, str(tmp_path), 1)

    manager([2]).save()
    controller = object.__new__(run_train._Controller)
    controller.strategy = tf.distribute.get_strategy()
    controller.checkpoint_manager = manager([3])
    with refused("a checkpoint does not fit the model: .*shape"):
        controller.restore_checkpoint()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "task.train_data.input_path=",
            "task.train_data.input_path must be TFRecord files, .* got None",
        ),
        (
            "task.model.num_classes=1",
            "task.model.num_classes must be at least 2: .* got 1",
        ),
        (
            "task.model.roi_sampler.num_sampled_rois=99",
            "num_sampled_rois must be at most 24, .* got 99",
        ),
    ],
)
def test_check_experiment_refuses(override, message):
    params = resolve.resolve(EXPERIMENT, params_override=SMALL)
    resolve.override(params, override, "--params_override")
    with refused(message):
        resolve.check_experiment(params, "train")


def test_train_program_fails_with_one_line(tmp_path, capsys):
    (tmp_path / "small.yaml").write_text(SMALL)
    common = [f"--experiment={EXPERIMENT}", f"--config_file={tmp_path}/small.yaml"]
    common.append(f"--model_dir={tmp_path}/model")
    write(tmp_path / "data", picture([1]))
    data = f"--params_override=task.validation_data.input_path={tmp_path}/data"
    for arguments, message in {
        ("--mode=evaluate",): "unknown mode 'evaluate'; did you mean",
        ("--mode=train",): r"'coco/train\*'; no file matches",
        ("--mode=eval", data): "holds no checkpoint to evaluate",
        ("--mode=eval", "--tpu=local"): "_strategy must be tpu with --tpu, got",
        (
            "--mode=eval",
            f"{data},task.validation_data.num_examples=-1",
        ): "task.annotation_file must be",
    }.items():
        status = command_line.main(train.COMMAND, [*common, *arguments])
        assert_refused(status, message, capsys)
    assert not (tmp_path / "model").exists()


def test_check_model_dir_refuses_another_model(tmp_path):
    params = resolve.resolve(EXPERIMENT, params_override=SMALL)
    model_dirs.write_params(params, EXPERIMENT, str(tmp_path / "run"))
    tf.train.CheckpointManager(Checkpoint(), str(tmp_path / "run"), 1).save()
    model_dirs.check_model_dir(params, "eval", str(tmp_path / "run"))
    key = "task.model.backbone.lambda_resnet"
    changes = f"{key}.stochastic_depth_drop_rate=0.1,{key}.implementation=einsum,trainer.train_steps=9"
    resolve.override(params, changes, "")
    model_dirs.check_model_dir(params, "train", str(tmp_path / "run"))
    resolve.override(params, f"{key}.model_id=resnet_50", "")
    message = f"{key}.model_id must be 'lambda_resnet_tiny' as in model_dir '.*run', got 'resnet_50'"
    with refused(message):
        model_dirs.check_model_dir(params, "train", str(tmp_path / "run"))
    task = "task.train_data.input_path='a/x*,gs://b/y*',task.annotation_file=c.json"
    resolve.override(params, task, "")
    model_dirs.write_params(params, EXPERIMENT, str(tmp_path / "run"))
    found = model_dirs.load_experiment(tmp_path / "run").task
    paths = (found.train_data.input_path, found.annotation_file)
    here = os.getcwd()
    assert paths == (f"{here}/a/x*,gs://b/y*", f"{here}/c.json")
    (tmp_path / "file").write_text("")
    with refused("model_dir '.*file' cannot be written"):
        model_dirs.write_params(params, EXPERIMENT, str(tmp_path / "file"))


@pytest.mark.slow
def test_run_on_two_devices(trained, tmp_path):
    """Images with objects, without, with a crowd alone, and a gray one; three to evaluate.

    The last batch leaves a device without images, and the detections equal those of one device.
    """
    (tmp_path / "small.yaml").write_text(SMALL)
    kinds = [
        picture([1, 2], 1),
        picture([], 2),
        picture([1], 3, crowd=True),
        picture([2], 4, channels=1),
    ]
    write(tmp_path / "train", *kinds)
    write(tmp_path / "val", *kinds[:3])
    shown = output_of("detection_on_two_devices.py", tmp_path, trained)
    (line,) = re.findall("^RESULT (.*)", shown, re.MULTILINE)
    result = json.loads(line)
    assert result["replicas"] == 2
    assert result["images"] == [[1, 2, 3]] * 2
    assert result["boxes"] < 0.01 < 1 < result["largest"]  # pixels
    # The run can be resumed from its model_dir.
    assert f"tensors from {trained}; not used: logits/bias, logits/kernel" in shown
    assert tf.train.latest_checkpoint(str(tmp_path / "model")).endswith("ckpt-2")
    params = resolve.resolve(EXPERIMENT, [str(tmp_path / "model/params.yaml")])
    assert params.task.init_checkpoint == str(trained)
    assert not result["text"]


SEGMENTATION = """
runtime: {distribution_strategy: one_device, mixed_precision_dtype: float32}
task:
  model:
    num_classes: 3
    input_size: [64, 64, 3]
    backbone: {type: lambda_resnet, lambda_resnet: {model_id: lambda_resnet_tiny, output_stride: 16}}
    decoder: {aspp: {num_filters: 16, dilation_rates: [1, 2]}}
    head: {num_filters: 16, low_level_num_filters: 8}
  train_data: &data {input_path: DATA, output_size: [64, 64], global_batch_size: 2, shuffle_buffer_size: 2}
  validation_data: {<<: *data, is_training: false, groundtruth_padded_size: [100, 100]}
trainer: {train_steps: 2, steps_per_loop: 2, summary_interval: 2, checkpoint_interval: 2,
  validation_interval: 2, validation_steps: 1}
"""


@pytest.mark.slow
def test_segmentation_of_model_garden_trains_on_records(tmp_path, capsys):
    """DeepLabV3+, whose low and high maps are those at strides 4 and 16."""
    classes = default_rng(0).integers(0, 3, [80, 100, 1], np.uint8)
    examples = [picture([], number) for number in range(2)]
    for example in examples:
        contents = example.features.feature["image/segmentation/class/encoded"]
        contents.bytes_list.value.append(tf.io.encode_png(classes).numpy())
    data = write(tmp_path / "data", *examples)
    (tmp_path / "small.yaml").write_text(SEGMENTATION.replace("DATA", str(data)))
    words = [
        "--experiment=lambda_resnet/seg_deeplabv3plus_pascal",
        "--mode=train_and_eval",
        f"--model_dir={tmp_path}/run",
        f"--config_file={tmp_path}/small.yaml",
    ]
    assert command_line.main(train.COMMAND, words) == 0, capsys.readouterr().err
    checkpoint = tf.train.latest_checkpoint(str(tmp_path / "run"))
    assert checkpoint.endswith("ckpt-2")


@pytest.mark.slow
@pytest.mark.weekly
def test_model_gardens_driver_with_experiments_imported(tmp_path):
    """The program in the docstring of `lambdanet.detection`, in a process of its own."""
    code = re.search(r":\n\n((?:    .*\n|\n)+)", detection.__doc__)[1]
    (tmp_path / "train.py").write_text(textwrap.dedent(code))
    write(tmp_path / "data", picture([1, 2], 1), picture([1], 2))
    (tmp_path / "small.yaml").write_text(RETINANET)
    words = [
        sys.executable,
        "train.py",
        "--experiment=lambda_resnet/retinanet_resnetfpn_coco",
        "--mode=train",
        "--model_dir=run",
        "--config_file=small.yaml",
        "--params_override=task.train_data.input_path=data",
    ]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    kept = tf.train.list_variables(str(tmp_path / "run/ckpt-1"))
    assert any("backbone" in name for name, _ in kept)


def test_checkpoints_of_a_tf_keras_backbone_are_refused(tmp_path):
    """Their keys are those of a functional model of tf_keras; they would be left out without a word."""
    inputs = keras.Input([64, 64, 3])
    old = keras.Model(inputs, keras.layers.Conv2D(4, 3)(inputs))
    checkpoint = Checkpoint(backbone=old, model=Checkpoint(backbone=old))
    path = checkpoint.save(str(tmp_path / "ckpt"))
    params = resolve.resolve(EXPERIMENT, params_override=SMALL)
    message = (
        "is of an earlier version of lambdanet, with a backbone of tf_keras; "
        "the git tag last-with-both-"
    )
    with refused(f"model_dir .* {message}"):
        model_dirs.check_model_dir(params, "train", str(tmp_path))
    with refused(f"checkpoint .* {message}"):
        model_dirs.load_weights(None, params, path)
    model = keras.Sequential()
    model.backbone = backbone()
    with (
        refused(f"task.init_checkpoint .* {message}"),
        initialize.verified_checkpoint(path, model, "all"),
    ):
        pass
