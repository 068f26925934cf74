# SPDX-License-Identifier: Apache-2.0
"""Small pictures in every format with their pixels, and a model that returns its pixels."""

import dataclasses
import io
import struct
import zlib

import keras
import numpy as np
import tensorflow as tf
from PIL import Image

from lambdanet import configs
from lambdanet.training.serving.export import export_saved_model

HEIGHT, WIDTH, SIDE = 24, 32, 24
RANDOM = np.random.default_rng(0)


@dataclasses.dataclass(frozen=True)
class Picture:
    contents: bytes
    expected: np.ndarray | None  # uint8 [h, w, 3]; None: every route refuses the file
    tolerance: int = 1  # in gray levels
    plain: bool = True  # whether TensorFlow decodes it, as models and records require


def samples(channels, depth=8):
    return RANDOM.integers(0, 1 << depth, (HEIGHT, WIDTH, channels))


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


def tiff_tags(tags, order="<", at=8, data=b""):
    """Returns a TIFF file of one directory: 16-bit values by tag, after the data. So is EXIF."""
    entries = b""
    behind = at + len(data) + 2 + 12 * len(tags) + 4
    more = b""
    for tag, values in sorted(tags.items()):
        content = struct.pack(f"{order}{len(values)}H", *values)
        place = (
            struct.pack(f"{order}I", behind + len(more))
            if len(content) > 4
            else content.ljust(4, b"\0")
        )
        more += content if len(content) > 4 else b""
        entries += struct.pack(f"{order}HHI", tag, 3, len(values)) + place
    header = struct.pack(
        f"{order}2sHI", b"II" if order == "<" else b"MM", 42, at + len(data)
    )
    return (
        header + data + struct.pack(f"{order}H", len(tags)) + entries + bytes(4) + more
    )


def exif(orientation, order="<"):
    return tiff_tags({0x0100: [1], 0x0112: [orientation], 0x0128: [2]}, order)


def tiff(values, order="<", depth=8, kind=1, **tags):
    """Returns an uncompressed TIFF file of samples [h, w, c]."""
    height, width, channels = values.shape
    content = values.astype(f"{order}{'f' if kind == 3 else 'u'}{depth // 8}").tobytes()
    described = {
        **{
            256: [width],
            257: [height],
            258: [depth] * channels,
            259: [1],
            262: [1 if channels == 1 else 2],
        },
        **{
            273: [8],
            277: [channels],
            278: [height],
            279: [len(content)],
            339: [kind] * channels,
        },
        **({338: [2]} if channels == 4 else {}),
    }
    return tiff_tags(
        {**described, **{int(tag[1:]): value for tag, value in tags.items()}},
        order,
        8,
        content,
    )


def chunk(kind, content):
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def png(values, depth, color, *chunks):
    """Returns a PNG file of samples [h, w, c], with more chunks before its data."""
    height, width, _ = values.shape
    bits = values[..., np.newaxis] >> np.arange(depth - 1, -1, -1) & 1
    rows = np.packbits(bits.reshape(height, -1).astype(np.uint8), axis=1)
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    parts = [
        chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    ]
    parts += [*chunks, chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def pngs():
    for color, name, channels, depths in [
        (0, "gray", 1, (1, 2, 4, 8, 16)),
        (2, "RGB", 3, (8, 16)),
        (4, "gray and alpha", 2, (8, 16)),
        (6, "RGBA", 4, (8, 16)),
    ]:
        for depth in depths:
            values = samples(channels, depth)
            shown = in_8_bits(values, depth)
            label, opaque = f"PNG {name} {depth}", channels in (1, 3)
            expected = shown if opaque else on_white(shown[..., :-1], shown[..., -1:])
            yield label, png(values, depth, color), expected
            if not opaque:
                continue
            values[3:9, 4:20] = key = values[0, 0]
            if depth == 16:
                values[5, 5] = key ^ 1  # another color with the same upper 8 bits
            shown = in_8_bits(values, depth)
            alpha = 255 * np.any(values != key, axis=-1, keepdims=True)
            hidden = chunk(b"tRNS", struct.pack(f">{channels}H", *key))
            yield (
                f"{label}, a color hidden",
                png(values, depth, color, hidden),
                on_white(shown, alpha),
            )
    for depth in (1, 2, 4, 8):
        values, palette = (
            samples(1, depth),
            RANDOM.integers(0, 256, (1 << depth, 3), np.uint8),
        )
        colors = chunk(b"PLTE", palette.tobytes())
        yield (
            f"PNG palette {depth}",
            png(values, depth, 3, colors),
            palette[values[..., 0]],
        )
        opacity = np.full(1 << depth, 255)
        opacity[:depth] = (0, 100, 200, 30, 7, 0, 255, 1)[:depth]  # of the first colors
        hidden = chunk(b"tRNS", opacity[:depth].astype(np.uint8).tobytes())
        expected = on_white(palette[values[..., 0]].astype(int), opacity[values])
        yield (
            f"PNG palette {depth}, transparent",
            png(values, depth, 3, colors, hidden),
            expected,
        )


def pngs_of_one_alpha():
    for alpha in (0, 1, 3, 15, 100, 254, 255):
        values = samples(4)
        values[..., 3] = alpha
        yield (
            f"PNG RGBA, alpha {alpha}",
            png(values, 8, 6),
            on_white(values[..., :3], alpha),
        )
        gray = values[..., 2:]
        yield (
            f"PNG gray and alpha {alpha}",
            png(gray, 8, 4),
            on_white(gray[..., :1], alpha),
        )
    for depth, alpha in ((1, 1), (2, 3), (4, 15), (4, 255)):
        values, palette = (
            samples(1, depth),
            RANDOM.integers(0, 256, (1 << depth, 3), np.uint8),
        )
        chunks = (
            chunk(b"PLTE", palette.tobytes()),
            chunk(b"tRNS", bytes([alpha] * (1 << depth))),
        )
        expected = on_white(palette[values[..., 0]].astype(int), alpha)
        yield (
            f"PNG palette {depth}, alpha {alpha}",
            png(values, depth, 3, *chunks),
            expected,
        )


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def as_rgb(image):
    return None if image is None else np.broadcast_to(image, [*image.shape[:2], 3])


def as_pillow_reads_it(contents):
    with Image.open(io.BytesIO(contents)) as image:
        return np.asarray(image.convert("RGB"))


def bmp_of_32_bits(rgb):
    height, width, _ = rgb.shape
    rows = (
        np.dstack([rgb[::-1, :, ::-1], np.zeros([height, width], int)])
        .astype(np.uint8)
        .tobytes()
    )
    header = struct.pack("<2sIHHI", b"BM", 54 + len(rows), 0, 0, 54)
    return (
        header
        + struct.pack(
            "<IiiHHIIiiII", 40, width, height, 1, 32, 0, len(rows), 1, 1, 0, 0
        )
        + rows
    )


def smooth(channels):
    """Returns an asymmetric picture that JPEG and lossy WebP roughly preserve."""
    y, x = np.mgrid[:HEIGHT, :WIDTH] / HEIGHT
    planes = [
        127 + 100 * np.sin(2 * (y + k) + (3 + k) * x * x) for k in range(channels)
    ]
    return np.stack(planes, -1).astype(np.uint8)


def segment(marker, content):
    return struct.pack(">BBH", 0xFF, marker, 2 + len(content)) + content


def jpegs():
    rgb = Image.fromarray(smooth(3))
    for name, image, options in [
        ("gray", Image.fromarray(smooth(1)[..., 0]), {}),
        ("RGB", rgb, {}),
        ("RGB without subsampling", rgb, {"subsampling": 0}),
        ("CMYK", rgb.convert("CMYK"), {}),
        ("progressive", rgb, {"progressive": True}),
        ("with a profile", rgb, {"icc_profile": b"profile" * 20}),
    ]:
        contents = saved(image, "JPEG", quality=95, **options)
        yield f"JPEG {name}", contents, as_pillow_reads_it(contents)
    plain = saved(rgb, "JPEG", quality=95)
    image = as_pillow_reads_it(plain)
    jfif, rest = plain[2:20], plain[20:]
    assert rest.startswith(b"\xff\xdb")

    def with_exif(content, before=b"", behind=b""):
        return (
            b"\xff\xd8" + before + segment(0xE1, b"Exif\0\0" + content) + behind + rest
        )

    for orientation in range(1, 9):
        upright = turned(image, orientation)
        yield f"JPEG turned {orientation}", with_exif(exif(orientation)), upright
        yield (
            f"JPEG turned {orientation}, big-endian",
            with_exif(exif(orientation, ">"), jfif),
            upright,
        )
    upright = turned(image, 6)
    yield "JPEG with EXIF before JFIF", with_exif(exif(6), behind=jfif), upright
    app1 = segment(0xE1, b"Exif\0\0" + exif(6))
    tables, frame, scan = (
        rest.index(marker) for marker in (b"\xff\xdb", b"\xff\xc0", b"\xff\xda")
    )
    second = rest.index(b"\xff\xdb", tables + 1)
    for name, at in {"a table": second, "tables": frame, "all tables": scan}.items():
        for more, fill in {
            "": b"",
            " and fill": b"\xff" * 3,
            " and much": segment(0xFE, bytes(999)),
        }.items():
            contents = b"\xff\xd8" + jfif + rest[:at] + fill + app1 + rest[at:]
            yield f"JPEG with EXIF behind {name}{more}", contents, upright
    for name, before in {
        "a comment": segment(0xFE, b"a comment"),
        "XMP": segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>"),
        "much": jfif + segment(0xED, bytes(60000)) + segment(0xE2, bytes(65000)),
        "one fill byte": jfif + b"\xff",
        "fill bytes": jfif + b"\xff" * 20,
        "other bytes": jfif + b"\0\x12\xff\0\x34",
        "a marker without a length": jfif + b"\xff\xd0",
    }.items():
        yield f"JPEG with EXIF behind {name}", with_exif(exif(6), before), upright
    late = rest[:-2] + app1 + rest[-2:]
    yield "JPEG with EXIF behind its scan", b"\xff\xd8" + jfif + late, image
    good = exif(6)
    for name, content in {
        "empty": b"",
        "cut in its header": good[:6],
        "cut before the value": good[:28],
        "of another kind": b"XX" + good[2:],
        "with its directory outside": good[:4] + b"\xff\xff\xff\xff" + good[8:],
        "of value 0": exif(0),
        "of value 9": exif(9),
        "of value 65535": exif(65535),
    }.items():
        yield f"JPEG with EXIF {name}", with_exif(content), image
    yield (
        "JPEG with EXIF of too many entries",
        with_exif(good[:8] + b"\xff\xff" + good[10:]),
        upright,
    )


def others():
    """Yields pictures of the other formats: the name, the file, the pixels, and whether it is plain."""
    rgba = samples(4).astype(np.uint8)
    rgb, shown = (
        rgba[..., :3],
        on_white(rgba[..., :3].astype(int), rgba[..., 3:].astype(int)),
    )
    opaque, transparent = Image.fromarray(rgb), Image.fromarray(rgba)
    later = Image.fromarray(255 - rgb)
    for turn in range(1, 9):
        upright = turned(rgb, turn)
        for order in "<>":
            chunks = chunk(b"tEXt", b"eXIf\0EXIF"), chunk(b"eXIf", exif(turn, order))
            yield f"PNG turned {turn}, {order}", png(rgb, 8, 2, *chunks), upright, True
    behind = png(rgb, 8, 2)[:-12] + chunk(b"eXIf", exif(6)) + chunk(b"IEND", b"")
    yield "PNG with EXIF behind its pixels", behind, turned(rgb, 6), True
    yield (
        "PNG with EXIF cut off",
        png(rgb, 8, 2, chunk(b"eXIf", exif(6)[:6])),
        rgb,
        True,
    )
    yield (
        "PNG with the name of EXIF in a text",
        png(rgb, 8, 2, chunk(b"tEXt", b"eXIf\0EXIF")),
        rgb,
        True,
    )
    exact = {"lossless": True, "exact": True}
    yield "WebP lossless", saved(opaque, "WEBP", **exact), rgb, True
    yield "WebP RGBA", saved(transparent, "WEBP", **exact), shown, True
    for turn in range(1, 9):
        for before in (b"", b"Exif\0\0"):
            contents = saved(opaque, "WEBP", **exact, exif=before + exif(turn))
            yield f"WebP turned {turn}, {before!r}", contents, turned(rgb, turn), True
    turned_alpha = on_white(
        turned(rgba, 8)[..., :3].astype(int), turned(rgba, 8)[..., 3:].astype(int)
    )
    yield (
        "WebP RGBA turned 8",
        saved(transparent, "WEBP", **exact, exif=exif(8)),
        turned_alpha,
        True,
    )
    lossy = saved(Image.fromarray(smooth(3)), "WEBP", quality=90)
    yield "WebP lossy", lossy, as_pillow_reads_it(lossy), True
    animated = saved(
        opaque, "WEBP", **exact, save_all=True, append_images=[later], duration=100
    )
    yield "WebP animated", animated, rgb, False

    indices, palette = (
        samples(1, 4)[..., 0].astype(np.uint8),
        RANDOM.integers(0, 256, (16, 3), np.uint8),
    )
    colors = palette[indices]
    image = Image.fromarray(indices, "P")
    image.putpalette(palette.tobytes())
    reverse = Image.fromarray(15 - indices, "P")
    reverse.putpalette(palette.tobytes())
    yield "GIF", saved(image, "GIF"), colors, False
    white = np.where(indices[..., np.newaxis] == 5, 255, colors)
    yield "GIF transparent", saved(image, "GIF", transparency=5), white, False
    moving = saved(image, "GIF", save_all=True, append_images=[reverse], duration=100)
    yield "GIF animated", moving, colors, False
    yield "BMP palette", saved(image, "BMP"), colors, False
    bits = samples(1, 1)
    yield (
        "BMP 1",
        saved(Image.fromarray(bits[..., 0].astype(bool)), "BMP"),
        255 * bits,
        False,
    )
    yield "BMP 24", saved(opaque, "BMP"), rgb, False
    yield "BMP 32", bmp_of_32_bits(rgb), rgb, False
    yield "TIFF gray", tiff(rgb[..., :1]), rgb[..., :1], False
    yield "TIFF", tiff(rgb), rgb, False
    yield "TIFF big-endian", tiff(rgb, ">"), rgb, False
    yield "TIFF RGBA", tiff(rgba), shown, False
    yield "TIFF turned", tiff(rgb, t274=[6]), turned(rgb, 6), False
    for compression in ("tiff_lzw", "tiff_deflate", "packbits"):
        yield (
            f"TIFF {compression}",
            saved(opaque, "TIFF", compression=compression),
            rgb,
            False,
        )
    deep = samples(3, 16)
    for order, name in (("<", "little-endian"), (">", "big-endian")):
        yield (
            f"TIFF gray 16 {name}",
            tiff(deep[..., :1], order, 16),
            deep[..., :1] >> 8,
            False,
        )
        yield f"TIFF RGB 16 {name}", tiff(deep, order, 16), deep >> 8, False
    yield "TIFF of floats", tiff(deep[..., :1] / 65535, depth=32, kind=3), None, False
    yield "TIFF of 32-bit integers", tiff(deep[..., :1], depth=32), None, False


PICTURES = {name: Picture(file, as_rgb(pixels), 2) for name, file, pixels in jpegs()}
PICTURES |= {
    name: Picture(file, as_rgb(pixels))
    for name, file, pixels in (*pngs(), *pngs_of_one_alpha())
}
PICTURES |= {
    name: Picture(file, as_rgb(pixels), 1, plain)
    for name, file, pixels, plain in others()
}

# The images of this recipe are the central squares of pictures, in 0..1.
AS_THEY_ARE = dataclasses.replace(
    configs.get_recipe("folder"),
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
