# SPDX-License-Identifier: Apache-2.0
"""Weights of other lambda layers: equal outputs, or refused with what differs."""

import keras
import numpy as np
import pytest
from helpers import assert_close, assert_equal_arrays
from naive_layers import images
from refusals import refused, unchanged

import lambdanet
from lambdanet import convert_layer
from lambdanet.layers.old_arguments import translate
from lambdanet.models.weights import tensor_files
from lambdanet.ops import reference

CHANNELS, HEADS, KEY, VALUE = 6, 2, 5, 3
NORM = ("weight", "bias", "running_mean", "running_var")


def random_tensors(shapes):
    """Tensors of these shapes, by name; kernels keep the size of what they are applied to."""
    random = np.random.default_rng(0)
    tensors = {}
    for name, shape in shapes.items():
        values = random.normal(size=shape) * np.prod(shape[1:], dtype=float) ** -0.5
        if name.endswith("running_var"):
            values = np.abs(values) + 0.5
        tensors[name] = values.astype(np.float32)
    return tensors


def torch_shapes(names, axes, u):
    """The projections of a layer in PyTorch; `names` are those of queries, keys, values and their norms."""
    widths = HEADS * KEY, u * KEY, u * VALUE
    shapes = {}
    for name, width in zip(names[:3], widths, strict=True):
        shapes[f"{name}.weight"] = (width, CHANNELS, *[1] * axes)
    for name, width in zip(names[3:], widths[::2], strict=names is not ATOMMIC):
        shapes |= {f"{name}.{tensor}": (width,) for tensor in NORM}
    return shapes


LUCIDRAINS = ("to_q", "to_k", "to_v", "norm_q", "norm_v")
ATOMMIC = ("to_q.0", "to_k.0", "to_v.0")  # without norms
TEMPORAL = ("queries.0", "keys.0", "values.0", "queries.1", "values.1")


def expected_outputs(tensors, names, x, embeddings, content=True, bias="pos_conv.bias"):
    """The layer in float64, by the paper's equations; `embeddings` are [n, m, k, u]."""
    b, *size, c = x.shape
    u = embeddings.shape[-1]
    x = x.reshape(b, -1, c).astype(np.float64)

    def project(kernel, norm=None):
        y = x @ tensors[f"{kernel}.weight"].reshape(-1, c).T
        if f"{norm}.weight" not in tensors:
            return y
        gamma, beta, mean, variance = (tensors[f"{norm}.{name}"] for name in NORM)
        return (y - mean) / np.sqrt(variance + 1e-5) * gamma + beta

    def apart(y):  # [b, m, channels] -> [b, m, depth, u]
        if names is TEMPORAL:
            return y.reshape(*y.shape[:2], -1, u)
        return y.reshape(*y.shape[:2], u, -1).swapaxes(-1, -2)

    queries = project(names[0], *names[3:4]).reshape(b, -1, HEADS, KEY)
    keys = apart(project(names[1]))
    values = apart(project(names[2], *names[4:]))
    if content:
        outputs = reference.apply_lambdas(queries, keys, values, embeddings)
    else:
        outputs = reference.apply_position_lambdas(queries, values, embeddings)
    outputs = np.array(outputs)
    if bias in tensors:
        outputs += (queries @ tensors[bias])[..., np.newaxis]
    return outputs.reshape(b, *size, -1)


def by_offset(table, size):
    """The embeddings [n, m, k, u] of all pairs of positions of a map, from a table [*sides, k, u]."""
    table = keras.ops.convert_to_tensor(table, "float64")
    return reference.gather_embeddings(table, size, size)


def kernel_last(kernel):
    return np.moveaxis(kernel, (0, 1), (-2, -1))


def table_of(position, tensor, axes):
    """The table [*sides, k, u] that a tensor of positions is."""
    if position == "rel_pos_emb":
        return np.einsum("ss...->s...", tensor) if axes == 1 else tensor
    if tensor.ndim == 2:
        return tensor[np.newaxis]
    return kernel_last(tensor.reshape(KEY, -1, *tensor.shape[-axes:]))


# Names; the size of the map; u; the tensor of positions and its shape; the arguments of our layer.
CASES = {
    "images": (LUCIDRAINS, (4, 5), 1, "pos_conv.weight", (KEY, 1, 1, 3, 3), {"scope": 3}),
    "whole images": (LUCIDRAINS, (4, 4), 1, "rel_pos_emb", (7, 7, KEY, 1), {"scope": None}),
    "sequences": (LUCIDRAINS, (9,), 2, "pos_conv.weight", (KEY, 2, 1, 5), {"scope": 5}),
    "sequences, by channel": (LUCIDRAINS, (9,), 2, "pos_conv.weight", (KEY, 2, 5), {"scope": 5}),
    "whole sequences": (LUCIDRAINS, (6,), 2, "rel_pos_emb", (11, 11, KEY, 2), {"scope": None}),
    "volumes": (LUCIDRAINS, (3, 2, 4), 2, "pos_conv.weight", (KEY, 2, 3, 3, 3), {"scope": 3}),
    "ATOMMIC": (ATOMMIC, (4, 5), 4, "pos_conv.weight", (KEY, 4, 1, 3, 3), {"scope": 3}),
    "keywords": (TEMPORAL, (30,), 1, "embedding", (KEY, 1, 1, 23), {"scope": 23}),
    "keywords, no offsets": (TEMPORAL, (9,), 2, "embedding", (KEY, 2), {"scope": 1}),
    "stacks": (LUCIDRAINS, (4, 3, 5), 4, "pos_conv.weight", (KEY, 4, 1, 3, 3), {"scope": 3}),
}  # fmt: skip


def layer_for(size, kind=lambdanet.LambdaLayer, **options):
    options = translate(options)
    layer = kind(HEADS * VALUE, num_heads=HEADS, key_dim=KEY, **options)
    layer.build((None, *size, CHANNELS))
    return layer


def check_equal(layer, x, expected):
    assert_close(keras.ops.convert_to_numpy(layer(x)), expected, 1e-5)


def maps(size):
    return images(2, *size, CHANNELS, seed=1)


def state_and_layer(case, **arguments):
    names, size, u, position, shape, options = CASES[case]
    axes = 2 if case == "stacks" else len(size)
    shapes = {**torch_shapes(names, axes, u), position: shape}
    options = {"intra_depth": u, "use_batch_norm": names is not ATOMMIC, **options}
    if position == "pos_conv.weight":
        shapes["pos_conv.bias"] = (KEY,)
        options["position_bias"] = True
    if case == "stacks":  # LambdaUNet's, with a second table across slices
        shapes |= {"tem_conv.weight": (KEY, 4, 1, 3), "tem_conv.bias": (KEY,)}
        options["kind"] = lambdanet.SliceLambdaLayer
    return random_tensors(shapes), layer_for(size, **{**options, **arguments})


@pytest.mark.parametrize("case", [case for case in CASES if case != "stacks"])
def test_outputs_equal_those_of_the_tensors(case):
    names, size, _, position, _, _ = CASES[case]
    tensors, layer = state_and_layer(case)
    counters = {f"{name}.num_batches_tracked": np.int64(3) for name in names[3:]}
    assert convert_layer({**tensors, **counters}, layer) is layer
    table = table_of(position, tensors[position], len(size))
    x = maps(size)
    expected = expected_outputs(tensors, names, x, by_offset(table, size))
    check_equal(layer, x, expected)


@pytest.mark.parametrize("kernel", ["tem_conv", "temp_conv"])
def test_outputs_across_slices_equal_those_of_the_tensors(kernel):
    """Content and 3x3 positions of each slice, and three slices at one place added."""
    tensors, layer = state_and_layer("stacks")
    theirs = {n.replace("tem_conv", kernel): t for n, t in tensors.items()}
    convert_layer(theirs, layer)
    x = maps((4, 3, 5))
    table = table_of("pos_conv.weight", tensors["pos_conv.weight"], 2)
    embeddings = by_offset(table, (3, 5))
    slices = np.moveaxis(x, 1, 0)
    expected = [expected_outputs(tensors, LUCIDRAINS, y, embeddings) for y in slices]
    expected = np.stack(expected, axis=1)
    # Each position of the map alone is a sequence of slices.
    across = by_offset(kernel_last(tensors["tem_conv.weight"][:, :, 0]), (4,))
    for place in np.ndindex(3, 5):
        expected[:, :, *place] += expected_outputs(
            tensors, LUCIDRAINS, x[:, :, *place], across, False, "tem_conv.bias"
        )
    check_equal(layer, x, expected)


@pytest.mark.parametrize("case", ["images", "whole images"])
def test_tensors_of_timm_give_the_same_layer(case):
    """The same numbers by timm's names: projections are one tensor, and axes have other places."""
    tensors, layer = state_and_layer(case)
    convert_layer(tensors, layer)
    theirs = dict(tensors)
    parts = [theirs.pop(f"{name}.weight") for name in LUCIDRAINS[:3]]
    theirs["qkv.weight"] = np.concatenate(parts)
    if case == "images":
        theirs["conv_lambda.bias"] = theirs.pop("pos_conv.bias")
        kernel = theirs.pop("pos_conv.weight")
        theirs["conv_lambda.weight"] = np.moveaxis(kernel, 2, -1)
    else:
        theirs["pos_emb"] = theirs.pop("rel_pos_emb")[..., 0]
    _, other = state_and_layer(case)
    convert_layer(theirs, other)
    assert_equal_arrays(other.get_weights(), layer.get_weights())


def test_files_tensors_and_shared_tables(tmp_path):
    tensors, layer = state_and_layer("images")
    x = maps((4, 5))
    convert_layer(tensors, layer)
    path = tmp_path / "layer.safetensors"
    tensor_files.write_safetensors(path, tensors, {})
    shared = lambdanet.RelativePositionEmbedding(
        KEY, scope=3, use_bias=True, name="shared"
    )
    other = layer_for((4, 5), position=shared)
    convert_layer(path, other)
    check_equal(other, x, keras.ops.convert_to_numpy(layer(x)))


@pytest.mark.parametrize(
    ("case", "changed", "message"),
    [
        ("images", {"tem_conv.weight": (5, 1, 1, 3)}, "class of .* must be 'SliceLambdaLayer', got 'Lambda"),
        ("stacks", {"tem_conv.weight": None}, "class of .* must be 'LambdaLayer', got 'Slice"),
        ("keywords", {"embedding": (KEY, 2, 1, 23)}, r"as \[v, u\] .* as \[u, v\]"),
        ("keywords", {"queries.0.bias": (10,)}, "normalizes each position instead of each channel"),
        ("keywords", {"keys.1.weight": (5,)}, "normalizes keys instead of values"),
        ("images", {"to_q.weight": (10, 7, 1, 1)}, r"to_q.weight .*\(10, 7, 1, 1\), not \(10, 6, 1, 1\)"),
        ("whole images", {"pos_conv.bias": (KEY,)}, "position_bias of .* must be True, got False"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_named(case, changed, message):
    tensors, layer = state_and_layer(case)
    for name, shape in changed.items():
        tensors.pop(name, None)
        if shape is not None:
            tensors |= random_tensors({name: shape})
    with unchanged(layer, message):
        convert_layer(tensors, layer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key_normalization": "l2"}, "key_normalization of .* must be 'softmax', got 'l2'"),
        ({"causal": 1}, "causal of .* must be False, got 1"),
        ({"position": "unstructured", "position_bias": False}, "position of .* must be 'relative'"),
        ({"batch_norm": {"epsilon": 1e-3}}, "epsilon in batch_norm of .* must be 1e-05, got 0.001"),
        ({"use_batch_norm": False}, "norm_q.weight has no variable"),
        ({"use_bias": True}, "queries/bias has no tensor"),
    ],
)  # fmt: skip
def test_layers_with_other_arguments_are_refused(options, message):
    tensors, layer = state_and_layer("images", **options)
    with unchanged(layer, message):
        convert_layer(tensors, layer)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"block.to_q.weight": np.zeros([9])}, r"0.weight, qkv.weight, got {'block.to_q.weight': \(9"),
        ({}, "got {}; names have no prefix"),
        (3, "must be tensors by name, a list of Keras's weights, or a path"),
        ([np.zeros(3)] * 5, "must be the 12 or 13 weights"),
        (
            [np.zeros((1, 1, 6, 5))] * 3 + [np.full(5, -1.0)] * 10,
            r"in the order of Keras 3's get_weights\(\)",
        ),
        ({"to_q.weight": [[1], [1, 2]]}, "to_q.weight is no array of numbers"),
    ],
)  # fmt: skip
def test_other_states_are_refused(state, message):
    _, layer = state_and_layer("images")
    with unchanged(layer, message):
        convert_layer(state, layer)


def test_other_layers_are_refused():
    with refused("layer must be a lambdanet.LambdaLayer"):
        convert_layer({}, "layer")
    with refused("'fresh' has no weights yet"):
        convert_layer({}, lambdanet.LambdaLayer(name="fresh"))


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore:torch.meshgrid")
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"r": 5, "dim_u": 2}, {"scope": 5, "position_bias": True, "intra_depth": 2}),
        ({"n": 5, "dim_u": 2}, {"scope": None, "intra_depth": 2}),
    ],
)
def test_outputs_equal_those_of_lucidrains(theirs, ours):
    torch = pytest.importorskip("torch")
    networks = pytest.importorskip("lambda_networks")
    x = maps((5, 5))
    arguments = {"dim_k": KEY, "heads": HEADS, "dim_out": HEADS * VALUE, **theirs}
    module = networks.LambdaLayer(CHANNELS, **arguments).eval()
    random = random_tensors({n: t.shape for n, t in module.state_dict().items()})
    counters = {n: t for n, t in module.state_dict().items() if not t.shape}
    state = {n: torch.tensor(t) for n, t in random.items()}
    module.load_state_dict(state | counters)
    with torch.inference_mode():
        expected = module(torch.from_numpy(x).movedim(-1, 1)).movedim(1, -1)
    layer = layer_for((5, 5), **ours)
    convert_layer(module.state_dict(), layer)
    check_equal(layer, x, expected.numpy())


@pytest.mark.peers
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"r": 3, "dim_u": 2}, {"scope": 3, "position_bias": True, "intra_depth": 2}),
        ({"n": 12, "dim_u": 2}, {"position": "unstructured", "intra_depth": 2}),
    ],
)
def test_outputs_equal_those_of_lucidrains_in_keras(theirs, ours):
    pytest.importorskip("einops")
    pytest.importorskip("tensorflow")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("their layer is TensorFlow's")
    module = pytest.importorskip("lambda_networks.tfkeras")
    x = maps((3, 4))
    arguments = {"dim_k": KEY, "heads": HEADS, "dim_out": HEADS * VALUE, **theirs}
    other = module.LambdaLayer(**arguments)
    other(x)
    random = np.random.default_rng(0)
    for weight in other.weights:
        weight.assign(random.uniform(0.2, 0.6, weight.shape))
    layer = layer_for((3, 4), batch_norm={"epsilon": 1e-3}, **ours)
    convert_layer(other.get_weights(), layer)
    check_equal(layer, x, other(x))
