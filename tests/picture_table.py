# SPDX-License-Identifier: Apache-2.0
"""Small pictures in every format with their pixels, and a model that returns its pixels."""

import dataclasses
import io
import struct
import zlib
from functools import partial

import keras
import numpy as np
import tensorflow as tf
from helpers import smooth_picture
from PIL import Image
from training_runs import recipe_with

from lambdanet.training.serving.export import export_saved_model

HEIGHT, WIDTH, SIDE = 24, 32, 24


@dataclasses.dataclass(frozen=True)
class Picture:
    contents: bytes
    expected: np.ndarray | None  # uint8 [h, w, 3]; None: every route refuses the file
    tolerance: int = 1  # in gray levels
    plain: bool = True  # whether TensorFlow decodes it, as models and records require


def random_colors(*shape, depth=8, seed=0):
    return np.random.default_rng(seed).integers(0, 1 << depth, shape)


samples = partial(random_colors, HEIGHT, WIDTH)


def in_8_bits(values, depth):
    return values >> 8 if depth == 16 else values * (255 // ((1 << depth) - 1))


def on_white(colors, alpha):
    return (colors * alpha + 255 * (255 - alpha) + 127) // 255


def turned(image, orientation):
    """Undoes an EXIF orientation by its definition: the sides to which row 0 and column 0 belong."""
    sides = ["top left", "top right", "bottom right", "bottom left"]
    sides += ["left top", "right top", "right bottom", "left bottom"]
    row, column = sides[orientation - 1].split()
    if row in ("left", "right"):
        image = image.transpose(1, 0, 2)
    if "bottom" in (row, column):
        image = image[::-1]
    return image[:, ::-1] if "right" in (row, column) else image


def exif(orientation, order="<"):
    """Returns EXIF data: a TIFF header, and a directory of three 16-bit values."""
    mark = {"<": b"II", ">": b"MM"}[order]
    data = struct.pack(f"{order}2sHIH", mark, 42, 8, 3)
    for tag, value in ((0x0100, 1), (0x0112, orientation), (0x0128, 2)):
        data += struct.pack(f"{order}HHIHH", tag, 3, 1, value, 0)
    return data + bytes(4)


def chunk(kind, content):
    checksum = zlib.crc32(kind + content)
    return (
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
    )


def png(values, depth, color, *chunks):
    """Returns a PNG file of samples [h, w, c], with more chunks before its data."""
    height, width, _ = values.shape
    bits = values[..., np.newaxis] >> np.arange(depth - 1, -1, -1) & 1
    rows = np.packbits(bits.reshape(height, -1).astype(np.uint8), axis=1)
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(lines))
    parts = [chunk(b"IHDR", header), *chunks, data, chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def opaque_pngs():
    for color, name, channels, depths in [
        (0, "gray", 1, (1, 2, 4, 8, 16)),
        (2, "RGB", 3, (8, 16)),
    ]:
        for depth in depths:
            values = samples(channels, depth=depth)
            shown = in_8_bits(values, depth)
            yield f"PNG {name} {depth}", png(values, depth, color), shown
            values[3:9, 4:20] = key = values[0, 0]
            if depth == 16:
                values[5, 5] = key ^ 1  # another color with the same upper 8 bits
            alpha = 255 * np.any(values != key, axis=-1, keepdims=True)
            hidden = chunk(b"tRNS", struct.pack(f">{channels}H", *key))
            contents = png(values, depth, color, hidden)
            shown = on_white(in_8_bits(values, depth), alpha)
            yield f"PNG {name} {depth}, a color hidden", contents, shown


def transparent_pngs():
    for color, name, channels in ((4, "gray and alpha", 2), (6, "RGBA", 4)):
        for alpha in ("random", 0, 1, 3, 15, 100, 254, 255, "in 16 bits"):
            depth = 16 if alpha == "in 16 bits" else 8
            values = samples(channels, depth=depth)
            if isinstance(alpha, int):
                values[..., -1] = alpha
            shown = in_8_bits(values, depth)
            expected = on_white(shown[..., :-1], shown[..., -1:])
            yield f"PNG {name}, alpha {alpha}", png(values, depth, color), expected


def palette_pngs():
    some = [0, 100, 200, 30, 7, 0, 255, 1]  # of the first colors
    for depth in (1, 2, 4, 8):
        count = 1 << depth
        values = samples(1, depth=depth)
        palette = random_colors(count, 3, seed=1)
        for alpha in ([], some[:depth], [1] * count, [count - 1] * count):
            opacity = np.array([*alpha, *[255] * (count - len(alpha))])
            chunks = [chunk(b"PLTE", bytes(palette.ravel().tolist()))]
            if alpha:
                chunks.append(chunk(b"tRNS", bytes(alpha)))
            expected = on_white(palette[values[..., 0]], opacity[values])
            name = f"PNG palette {depth}, alpha {alpha[:8]}"
            yield name, png(values, depth, 3, *chunks), expected


def turned_pngs():
    rgb = samples(3)
    for turn in range(1, 9):
        for order in "<>":
            chunks = chunk(b"tEXt", b"eXIf\0EXIF"), chunk(b"eXIf", exif(turn, order))
            contents = png(rgb, 8, 2, *chunks)
            yield f"PNG turned {turn}, {order}", contents, turned(rgb, turn)
    behind = png(rgb, 8, 2)[:-12] + chunk(b"eXIf", exif(6)) + chunk(b"IEND", b"")
    yield "PNG with EXIF behind its pixels", behind, turned(rgb, 6)
    for name, last in {
        "EXIF cut off": chunk(b"eXIf", exif(6)[:6]),
        "the name of EXIF in a text": chunk(b"tEXt", b"eXIf\0EXIF"),
    }.items():
        yield f"PNG with {name}", png(rgb, 8, 2, last), rgb


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def as_rgb(image):
    return None if image is None else np.broadcast_to(image, [*image.shape[:2], 3])


def as_pillow_reads_it(contents):
    with Image.open(io.BytesIO(contents)) as image:
        return np.asarray(image.convert("RGB"))


smooth = partial(smooth_picture, HEIGHT, WIDTH)


def segment(marker, content):
    return struct.pack(">BBH", 0xFF, marker, 2 + len(content)) + content


def jpegs():
    rgb = Image.fromarray(smooth(3))
    for name, image, options in [
        ("gray", Image.fromarray(smooth(1)[..., 0]), {}),
        ("RGB", rgb, {}),
        ("CMYK", rgb.convert("CMYK"), {}),
        ("progressive", rgb, {"progressive": True}),
    ]:
        contents = saved(image, "JPEG", quality=95, **options)
        yield f"JPEG {name}", contents, as_pillow_reads_it(contents)
    plain = saved(rgb, "JPEG", quality=95)
    image = as_pillow_reads_it(plain)
    start, jfif, rest = plain[:2], plain[2:20], plain[20:]
    assert rest.startswith(b"\xff\xdb")

    def with_exif(content, before=b""):
        return start + before + segment(0xE1, b"Exif\0\0" + content) + rest

    for turn in range(1, 9):
        for order, before in (("<", b""), (">", jfif)):
            contents = with_exif(exif(turn, order), before)
            yield f"JPEG turned {turn}, {order}", contents, turned(image, turn)
    upright = turned(image, 6)
    app1 = segment(0xE1, b"Exif\0\0" + exif(6))
    yield "JPEG with EXIF before JFIF", start + app1 + jfif + rest, upright
    scan = rest.index(b"\xff\xda")
    for much in (b"", segment(0xFE, bytes(999))):
        contents = start + jfif + rest[:scan] + much + app1 + rest[scan:]
        yield f"JPEG with EXIF behind tables and {len(much)} bytes", contents, upright
    for name, before in {
        "a comment": segment(0xFE, b"a comment"),
        "much": jfif + segment(0xED, bytes(60000)) + segment(0xE2, bytes(65000)),
        "fill bytes": jfif + b"\xff" * 20,
        "a marker without a length": jfif + b"\xff\xd0",
    }.items():
        yield f"JPEG with EXIF behind {name}", with_exif(exif(6), before), upright
    late = start + jfif + rest[:-2] + app1 + rest[-2:]
    yield "JPEG with EXIF behind its scan", late, image
    good = exif(6)
    for name, content in {
        "cut before the value": good[:28],
        "of another kind": b"XX" + good[2:],
        "with its directory outside": good[:4] + b"\xff\xff\xff\xff" + good[8:],
        "of value 9": exif(9),
    }.items():
        yield f"JPEG with EXIF {name}", with_exif(content), image


def webps():
    rgba = samples(4)
    opaque, transparent = (
        Image.fromarray(values.astype(np.uint8)) for values in (rgba[..., :3], rgba)
    )
    exact = {"lossless": True, "exact": True}
    for turn in range(1, 9):
        before = b"Exif\0\0" * (turn % 2)
        contents = saved(opaque, "WEBP", **exact, exif=before + exif(turn))
        yield f"WebP turned {turn}", contents, turned(rgba[..., :3], turn)
    shown = on_white(rgba[..., :3], rgba[..., 3:])
    contents = saved(transparent, "WEBP", **exact, exif=exif(8))
    yield "WebP RGBA turned 8", contents, turned(shown, 8)
    lossy = saved(Image.fromarray(smooth(3)), "WEBP", quality=90)
    yield "WebP lossy", lossy, as_pillow_reads_it(lossy)


def converted():
    """Yields pictures that only Pillow reads, and files of values that have no range."""
    rgba = samples(4)
    rgb = rgba[..., :3]
    opaque = Image.fromarray(rgb.astype(np.uint8))
    others = {
        "save_all": True,
        "append_images": [Image.eval(opaque, lambda x: 255 - x)],
    }
    exact = {"lossless": True, "exact": True}
    yield "WebP animated", saved(opaque, "WEBP", **exact, **others), rgb

    indices = samples(1, depth=4)[..., 0].astype(np.uint8)
    palette = random_colors(16, 3, seed=1).astype(np.uint8)
    image = Image.fromarray(indices, "P")
    image.putpalette(palette.tobytes())
    others["append_images"] = [Image.eval(image, lambda x: 15 - x)]
    yield "GIF animated", saved(image, "GIF", **others), palette[indices]
    white = np.where(indices[..., np.newaxis] == 5, 255, palette[indices])
    yield "GIF transparent", saved(image, "GIF", transparency=5), white
    yield "BMP palette", saved(image, "BMP"), palette[indices]
    yield "TIFF turned", saved(opaque, "TIFF", tiffinfo={274: 6}), turned(rgb, 6)
    transparent = Image.fromarray(rgba.astype(np.uint8))
    yield "TIFF RGBA", saved(transparent, "TIFF"), on_white(rgb, rgba[..., 3:])
    deep = samples(1, depth=16)[..., 0]
    for kind in ("<u2", ">u2"):
        image = Image.fromarray(deep.astype(kind))
        yield f"TIFF gray 16, {kind}", saved(image, "TIFF"), deep[..., np.newaxis] >> 8
    for kind in ("float32", "int32"):
        yield f"TIFF of {kind}", saved(Image.fromarray(deep.astype(kind)), "TIFF"), None


PICTURES = {name: Picture(file, as_rgb(pixels), 2) for name, file, pixels in jpegs()}
for rows in (opaque_pngs, transparent_pngs, palette_pngs, turned_pngs, webps):
    for name, file, pixels in rows():
        PICTURES[name] = Picture(file, as_rgb(pixels))
for name, file, pixels in converted():
    PICTURES[name] = Picture(file, as_rgb(pixels), plain=False)

# The images of this recipe are the central squares of pictures, in 0..1.
AS_THEY_ARE = recipe_with(
    "folder",
    eval_split="train",
    input_size=SIDE,
    mean=(0.0,) * 3,
    std=(1.0,) * 3,
    crop_fraction=1.0,
    epochs=1,
    warmup_epochs=0,
    augmentation="none",
    randaugment_layers=0,
)


def export_pixels(out):
    """Exports a model whose logits are its pixels and a last, larger one; see `pixels_of`."""
    last = keras.layers.Lambda(
        lambda pixels: tf.pad(pixels, [[0, 0], [0, 1]], constant_values=2.0)
    )
    model = keras.Sequential(
        [keras.Input([SIDE, SIDE, 3]), keras.layers.Flatten(), last]
    )
    names = [f"value {index}" for index in range(SIDE * SIDE * 3)] + ["last"]
    return export_saved_model(model, out, SIDE, (0.0,) * 3, (1.0,) * 3, names)


def pixels_of(probabilities):
    """Returns the input pixels of the model, [b, SIDE, SIDE, 3], in gray levels."""
    logits = np.log(probabilities.astype(np.float64))
    return 255 * (logits[..., :-1] - logits[..., -1:] + 2).reshape(-1, SIDE, SIDE, 3)
