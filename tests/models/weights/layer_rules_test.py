# SPDX-License-Identifier: Apache-2.0
"""Weights of other lambda layers: equal outputs, or refused with what differs."""

import itertools
import re

import keras
import numpy as np
import pytest

import lambdanet
from lambdanet.errors import InputError
from lambdanet.models.weights import tensor_files

CHANNELS, HEADS, KEY, VALUE = 6, 2, 5, 3
NORM = ("weight", "bias", "running_mean", "running_var")


def random_tensors(shapes, seed=0):
    """Tensors of these shapes, by name; kernels keep the size of what they are applied to."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes.items():
        values = random.normal(size=shape) * np.prod(shape[1:], dtype=float) ** -0.5
        if name.endswith("running_var"):
            values = np.abs(values) + 0.5
        tensors[name] = values.astype(np.float32)
    return tensors


def torch_shapes(names, axes, u, norms=True):
    """The projections of a layer in PyTorch; `names` are those of queries, keys, values and their norms."""
    widths = HEADS * KEY, u * KEY, u * VALUE
    shapes = {}
    for name, width in zip(names[:3], widths, strict=True):
        shapes[f"{name}.weight"] = (width, CHANNELS, *[1] * axes)
    for name, width in zip(names[3:], widths[::2], strict=True):
        for tensor in NORM:
            if norms:
                shapes[f"{name}.{tensor}"] = (width,)
    return shapes


LUCIDRAINS = ("to_q", "to_k", "to_v", "norm_q", "norm_v")
ATOMMIC = ("to_q.0", "to_k.0", "to_v.0", "norm_q", "norm_v")
TEMPORAL = ("queries.0", "keys.0", "values.0", "queries.1", "values.1")


def naive_outputs(tensors, names, x, u, embedding, epsilon=1e-5, split="u first"):
    """The layer in float64, a pair of positions at a time; `embedding` is [k, u] for an offset, or a pair."""
    tensors = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    b, *size, c = x.shape
    positions = list(itertools.product(*map(range, size)))
    x = x.reshape(b, -1, c).astype(np.float64)

    def project(kernel, norm=None):
        y = x @ tensors[f"{kernel}.weight"].reshape(-1, c).T
        if f"{norm}.weight" not in tensors:
            return y
        gamma, beta, mean, variance = (tensors[f"{norm}.{name}"] for name in NORM)
        return (y - mean) / np.sqrt(variance + epsilon) * gamma + beta

    def apart(y):  # [b, m, channels] -> [b, m, u, depth]
        if split == "u first":
            return y.reshape(b, len(positions), u, -1)
        return y.reshape(b, len(positions), -1, u).swapaxes(-1, -2)

    queries = project(names[0], names[3]).reshape(b, -1, HEADS, KEY)
    keys = np.exp(apart(project(names[1])))
    keys /= keys.sum(axis=1, keepdims=True)
    values = apart(project(names[2], names[4]))
    outputs = np.zeros([b, len(positions), HEADS, VALUE])
    for n, here in enumerate(positions):
        for m, there in enumerate(positions):
            weights = keys[:, m] + embedding(here, there).T  # [b, u, k]
            outputs[:, n] += np.einsum(
                "bhk,buk,buv->bhv", queries[:, n], weights, values[:, m]
            )
        bias = tensors.get("pos_conv.bias", np.zeros(KEY))
        outputs[:, n] += (queries[:, n] @ bias)[..., np.newaxis]
    return outputs.reshape(b, *size, -1)


def by_offset(table, u):
    """The embedding of an offset in a table [*sides, k, u], zero outside; the middle is the offset 0."""

    def embedding(here, there):
        place = [
            j - i + side // 2
            for i, j, side in zip(here, there, table.shape, strict=False)
        ]
        inside = all(0 <= i < side for i, side in zip(place, table.shape, strict=False))
        return table[tuple(place)] if inside else np.zeros([KEY, u])

    return embedding


def kernel_last(kernel):
    return np.moveaxis(kernel, (0, 1), (-2, -1))


def table_of(position, tensor, axes):
    """The table [*sides, k, u] that a tensor of positions is."""
    if position == "rel_pos_emb":
        square = axes == 1
        return (
            tensor[np.arange(len(tensor)), np.arange(len(tensor))] if square else tensor
        )
    if tensor.ndim == 2:
        return tensor[np.newaxis]
    return kernel_last(tensor.reshape(KEY, -1, *tensor.shape[-axes:]))


# Names; the size of the map; u; the tensor of positions and its shape; the arguments of our layer.
CASES = {
    "images": (LUCIDRAINS, (4, 5), 1, "pos_conv.weight", (KEY, 1, 1, 3, 3), {"scope": 3}),
    "images, u > 1": (LUCIDRAINS, (4, 5), 2, "pos_conv.weight", (KEY, 2, 1, 5, 5), {"scope": 5}),
    "whole images": (LUCIDRAINS, (4, 4), 2, "rel_pos_emb", (7, 7, KEY, 2), {"scope": None}),
    "sequences": (LUCIDRAINS, (9,), 2, "pos_conv.weight", (KEY, 2, 1, 5), {"scope": 5}),
    "sequences, by channel": (LUCIDRAINS, (9,), 2, "pos_conv.weight", (KEY, 2, 5), {"scope": 5}),
    "whole sequences": (LUCIDRAINS, (6,), 2, "rel_pos_emb", (11, 11, KEY, 2), {"scope": None}),
    "whole sequences, u = 1": (LUCIDRAINS, (6,), 1, "rel_pos_emb", (11, 11, KEY, 1), {"scope": None}),
    "volumes": (LUCIDRAINS, (3, 2, 4), 2, "pos_conv.weight", (KEY, 2, 3, 3, 3), {"scope": 3}),
    "ATOMMIC": (ATOMMIC, (4, 5), 4, "pos_conv.weight", (KEY, 4, 1, 3, 3), {"scope": 3}),
    "keywords": (TEMPORAL, (30,), 1, "embedding", (KEY, 1, 1, 23), {"scope": 23}),
    "keywords, no offsets": (TEMPORAL, (9,), 2, "embedding", (KEY, 2), {"scope": 1}),
    "keywords in images": (TEMPORAL, (4, 5), 1, "embedding", (KEY, 1, 1, 3, 3), {"scope": 3}),
}  # fmt: skip


def layer_for(size, **options):
    layer = lambdanet.LambdaLayer(HEADS * VALUE, HEADS, KEY, **options)
    layer.build((None, *size, CHANNELS))
    return layer


def check_equal(layer, x, expected):
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(layer(x)), expected, rtol=1e-5, atol=1e-5
    )


def maps(size, seed=1):
    random = np.random.default_rng(seed)
    return random.normal(size=(2, *size, CHANNELS)).astype(np.float32)


def stack_state_and_layer():
    """LambdaUNet's layer, with a second table across slices."""
    shapes = torch_shapes(LUCIDRAINS, 2, 4)
    shapes |= {"pos_conv.weight": (KEY, 4, 1, 3, 3), "pos_conv.bias": (KEY,)}
    shapes |= {"tem_conv.weight": (KEY, 4, 1, 3), "tem_conv.bias": (KEY,)}
    options = {"intra_depth": 4, "scope": 3, "position_bias": True}
    layer = lambdanet.SliceLambdaLayer(
        HEADS * VALUE, num_heads=HEADS, key_dim=KEY, **options
    )
    layer.build((None, 4, 3, 5, CHANNELS))
    return random_tensors(shapes), layer


@pytest.mark.parametrize("kernel", ["tem_conv", "temp_conv"])
def test_outputs_across_slices_equal_those_of_the_tensors(kernel):
    """Content and 3x3 positions of each slice by the loop above, and three slices at one place added."""
    tensors, layer = stack_state_and_layer()
    theirs = {n.replace("tem_conv", kernel): t for n, t in tensors.items()}
    lambdanet.convert_layer(theirs, layer)
    x = maps((4, 3, 5))
    table = kernel_last(tensors["pos_conv.weight"].reshape(KEY, 4, 3, 3))
    slices = [
        naive_outputs(tensors, LUCIDRAINS, x[:, s], 4, by_offset(table, 4))
        for s in range(4)
    ]
    # Each position of the map alone is a sequence of slices: a table of one axis, and no content.
    table = kernel_last(tensors["tem_conv.weight"][:, :, 0])
    across = tensors | {"pos_conv.bias": tensors["tem_conv.bias"]}
    across["to_k.weight"] = np.full_like(tensors["to_k.weight"], 0.0)
    expected = np.stack(slices, axis=1)
    for row, column in itertools.product(range(3), range(5)):
        here = x[:, :, row, column]
        both = naive_outputs(across, LUCIDRAINS, here, 4, by_offset(table, 4))
        none = {name: t for name, t in across.items() if name != "pos_conv.bias"}
        content = naive_outputs(none, LUCIDRAINS, here, 4, lambda *_: 0.0 * table[0])
        expected[:, :, row, column] += both - content
    check_equal(layer, x, expected)


def state_and_layer(case):
    if case == "stacks":
        return stack_state_and_layer()
    names, size, u, position, shape, options = CASES[case]
    norms = names is not ATOMMIC
    shapes = {**torch_shapes(names, len(size), u, norms), position: shape}
    if position == "pos_conv.weight":
        shapes["pos_conv.bias"] = (KEY,)
        options = {**options, "position_bias": True}
    tensors = random_tensors(shapes)
    return tensors, layer_for(size, intra_depth=u, use_batch_norm=norms, **options)


@pytest.mark.parametrize("case", CASES)
def test_outputs_equal_those_of_the_tensors(case):
    names, size, u, position, _, _ = CASES[case]
    tensors, layer = state_and_layer(case)
    counters = {f"{name}.num_batches_tracked": np.int64(3) for name in names[3:]}
    assert lambdanet.convert_layer({**tensors, **counters}, layer) is layer
    table = table_of(position, tensors[position], len(size))
    split = "u last" if names is TEMPORAL else "u first"
    x = maps(size)
    expected = naive_outputs(tensors, names, x, u, by_offset(table, u), split=split)
    check_equal(layer, x, expected)


@pytest.mark.parametrize("form", ["local", "whole"])
def test_keras_weights_give_equal_outputs(form):
    size, u = (3, 4), 2
    shapes = torch_shapes(LUCIDRAINS, 2, u)
    options = {"scope": 3, "position_bias": True}
    if form == "local":
        shapes |= {"pos_conv.weight": (KEY, u, 1, 3, 3), "pos_conv.bias": (KEY,)}
    else:
        shapes = {"pos_emb": (12, 12, KEY, u), **shapes}
        options = {"position": "unstructured"}
    tensors = random_tensors(shapes)
    weights = [
        np.moveaxis(tensor, (0, 1), (-1, -2))
        if tensor.ndim > 1 and name != "pos_emb"
        else tensor
        for name, tensor in tensors.items()
    ]
    layer = layer_for(size, intra_depth=u, batch_norm={"epsilon": 1e-3}, **options)
    lambdanet.convert_layer(weights, layer)

    def of_pair(here, there):
        n, m = np.ravel_multi_index(np.transpose([here, there]), size)
        return tensors["pos_emb"][n, m]

    embedding = of_pair
    if form == "local":
        embedding = by_offset(kernel_last(tensors["pos_conv.weight"][:, :, 0]), u)
    x = maps(size)
    expected = naive_outputs(tensors, LUCIDRAINS, x, u, embedding, epsilon=1e-3)
    check_equal(layer, x, expected)


@pytest.mark.parametrize("form", ["local", "whole"])
def test_tensors_of_timm_give_equal_outputs(form):
    size, k = (3, 4), KEY
    shapes = torch_shapes(LUCIDRAINS, 2, 1)
    tensors = random_tensors(shapes)
    parts = [tensors.pop(f"{name}.weight") for name in LUCIDRAINS[:3]]
    theirs = {**tensors, "qkv.weight": np.concatenate(parts)}
    if form == "local":
        position = {"conv_lambda.weight": (k, 1, 3, 3, 1), "conv_lambda.bias": (k,)}
        options = {"scope": 3, "position_bias": True}
    else:
        position = {"pos_emb": (5, 7, k)}
        options = {"scope": None}
    position = random_tensors(position, seed=2)
    layer = layer_for(size, **options)
    lambdanet.convert_layer(theirs | position, layer)
    table = position.get("pos_emb", np.zeros([3, 3, k]))[..., np.newaxis]
    tensors |= dict(zip(shapes, parts, strict=False))
    if form == "local":
        table = kernel_last(position["conv_lambda.weight"][..., 0])
        tensors["pos_conv.bias"] = position["conv_lambda.bias"]
    x = maps(size)
    expected = naive_outputs(tensors, LUCIDRAINS, x, 1, by_offset(table, 1))
    check_equal(layer, x, expected)


def test_files_tensors_and_shared_tables(tmp_path):
    tensors, layer = state_and_layer("images")
    x = maps((4, 5))
    lambdanet.convert_layer(tensors, layer)
    path = tmp_path / "layer.safetensors"
    tensor_files.write_safetensors(path, tensors, {})
    shared = lambdanet.RelativePositionEmbedding(
        KEY, scope=3, use_bias=True, name="shared"
    )
    other = layer_for((4, 5), position=shared)
    lambdanet.convert_layer(path, other)
    check_equal(other, x, keras.ops.convert_to_numpy(layer(x)))


def refused(state_dict, layer):
    before = layer.get_weights()
    with pytest.raises(InputError) as error:
        lambdanet.convert_layer(state_dict, layer)
    for old, new in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("case", "changed", "message"),
    [
        ("images", {"tem_conv.weight": (5, 1, 1, 3)}, "class of .* must be 'SliceLambdaLayer', got 'Lambda"),
        ("ATOMMIC", {"temp_conv.weight": (KEY, 4, 1, 3)}, "must be 'SliceLambdaLayer'"),
        ("stacks", {"tem_conv.weight": None}, "class of .* must be 'LambdaLayer', got 'Slice"),
        ("stacks", {"tem_conv.weight": (KEY, 4, 1, 5)}, r"\(5, 4, 1, 5\), not \(5, 4, 1, 3\)"),
        ("stacks", {"tem_conv.bias": None}, "tem_conv.bias is missing"),
        ("keywords", {"embedding": (KEY, 2, 1, 23)}, r"as \[v, u\] .* as \[u, v\]"),
        ("keywords", {"queries.0.bias": (10,)}, "normalizes each position instead of each channel"),
        ("keywords", {"keys.1.weight": (5,)}, "normalizes keys instead of values"),
        ("images", {"to_q.weight": (10, 7, 1, 1)}, r"to_q.weight .*\(10, 7, 1, 1\), not \(10, 6, 1, 1\)"),
        ("images", {"to_q.weight": ()}, r"to_q.weight has the shape \(\), not"),
        ("images", {"pos_conv.weight": (5, 1, 1, 7, 7)}, r"\(5, 1, 1, 7, 7\), not \(5, 1, 1, 3, 3\)"),
        ("keywords", {"embedding": (KEY, 1)}, r"embedding has the shape \(5, 1\), not \(5, 1, 1, 23\)"),
        ("images", {"stranger": (3,)}, "stranger has no variable"),
        ("images", {"norm_v.bias": None}, "norm_v.bias is missing"),
        ("images", {"pos_conv.bias": None}, "position_bias of .* must be False, got True"),
        ("whole images", {"pos_conv.bias": (KEY,)}, "position_bias of .* must be True, got False"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_named(case, changed, message):
    tensors, layer = state_and_layer(case)
    for name, shape in changed.items():
        tensors.pop(name, None)
        if shape is not None:
            tensors |= random_tensors({name: shape})
    assert re.search(message, refused(tensors, layer))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 1}, r"to_q.weight has the shape \(10, 6, 1, 1\), not \(5, 6, 1, 1\)"),
        ({"key_normalization": "l2"}, "key_normalization of .* must be 'softmax', got 'l2'"),
        ({"query_normalization": "softmax"}, "query_normalization of .* must be None"),
        ({"causal": 1}, "causal of .* must be False, got 1"),
        ({"multi_head": True}, "multi_head of .* must be False"),
        ({"position": "unstructured", "position_bias": False}, "position of .* must be 'relative'"),
        ({"batch_norm": {"epsilon": 1e-3}}, "epsilon in batch_norm of .* must be 1e-05, got 0.001"),
        ({"use_batch_norm": False}, "norm_q.weight has no variable"),
        ({"content": False}, "to_k.weight has no variable"),
        ({"use_bias": True}, "queries/bias has no tensor"),
    ],
)  # fmt: skip
def test_layers_with_other_arguments_are_refused(options, message):
    tensors, _ = state_and_layer("images")
    arguments = {"num_heads": HEADS, "scope": 3, "position_bias": True, **options}
    layer = lambdanet.LambdaLayer(HEADS * VALUE, key_dim=KEY, **arguments)
    layer.build((None, 4, 5, CHANNELS))
    assert re.search(message, refused(tensors, layer))


def test_other_values_are_refused():
    tensors, layer = state_and_layer("images")
    prefixed = {f"block.{name}": tensor for name, tensor in tensors.items()}
    message = refused(prefixed, layer)
    assert "queries.0.weight, qkv.weight, got {'block.to_q.weight': (10, " in message
    assert "got {}; names have no prefix" in refused({}, layer)
    assert "must be tensors by name, a list of Keras's weights, or a path" in refused(
        3, layer
    )
    assert "must be the 12 or 13 weights" in refused([np.zeros(3)] * 5, layer)
    negative = [np.zeros((1, 1, 6, 5))] * 3 + [np.full(5, -1.0)] * 10
    assert "in the order of Keras 3's get_weights()" in refused(negative, layer)
    assert "to_q.weight is no array of numbers" in refused(
        {"to_q.weight": [[1], [1, 2]]}, layer
    )
    with pytest.raises(InputError, match="layer must be a lambdanet.LambdaLayer"):
        lambdanet.convert_layer(tensors, "layer")
    with pytest.raises(InputError, match="'fresh' has no weights yet"):
        lambdanet.convert_layer(tensors, lambdanet.LambdaLayer(name="fresh"))


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
    state = {n: torch.from_numpy(t) for n, t in random.items() if n not in counters}
    module.load_state_dict(state | counters)
    with torch.inference_mode():
        expected = module(torch.from_numpy(x).movedim(-1, 1)).movedim(1, -1)
    layer = layer_for((5, 5), **ours)
    lambdanet.convert_layer(module.state_dict(), layer)
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
    lambdanet.convert_layer(other.get_weights(), layer)
    check_equal(layer, x, other(x))
