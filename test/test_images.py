"""Every image encoding, pixel by pixel against a known picture."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from sensor_msgs.msg import CompressedImage, Image

from rsd_planner.images import ENCODINGS, decode_compressed_image, decode_image

HEIGHT, WIDTH = 8, 12


def _known() -> np.ndarray:
    """RGB picture without two equal pixels."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    return np.stack([10 + 15 * x, 20 + 25 * y, 255 - 10 * x - 12 * y], axis=2).astype(np.uint8)


def _message(encoding: str, rows: np.ndarray, padding: int = 0, height: int = HEIGHT, width: int = WIDTH) -> Image:
    rows = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
    padded = np.pad(rows, ((0, 0), (0, padding)), constant_values=0xAB)
    return Image(height=height, width=width, encoding=encoding, step=padded.shape[1], data=padded.tobytes())


@pytest.mark.parametrize("padding", [0, 1, 20])
@pytest.mark.parametrize(
    ("encoding", "channels"),
    [("rgb8", [0, 1, 2]), ("bgr8", [2, 1, 0]), ("rgba8", [0, 1, 2, 0]), ("bgra8", [2, 1, 0, 1])],
)
def test_packed_colours(encoding, channels, padding):
    picture = _known()
    found = decode_image(_message(encoding, picture[:, :, channels], padding))
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, picture)


def test_mono():
    grey = _known()[:, :, 0]
    np.testing.assert_array_equal(decode_image(_message("mono8", grey, 3)), np.repeat(grey[:, :, None], 3, axis=2))


def _bt601(y: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """RGB of studio-range Y'CbCr by ITU-R BT.601."""
    luma, cb, cr = 1.164383 * (y.astype(float) - 16), u.astype(float) - 128, v.astype(float) - 128
    rgb = [luma + 1.596027 * cr, luma - 0.391762 * cb - 0.812968 * cr, luma + 2.017232 * cb]
    return np.clip(np.stack(rgb, axis=2), 0, 255)


def _yuv() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Y of every pixel, U and V of every second column."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    half = np.mgrid[0:HEIGHT, 0 : WIDTH // 2]
    return 40 + 10 * x + 7 * y, 90 + 8 * half[1] + 3 * half[0], 170 - 9 * half[1] - 2 * half[0]


@pytest.mark.parametrize("padding", [0, 8])
@pytest.mark.parametrize(
    ("encoding", "order"), [("yuv422", "uyvy"), ("uyvy", "uyvy"), ("yuv422_yuy2", "yuyv"), ("yuyv", "yuyv")]
)
def test_yuv422(encoding, order, padding):
    y, u, v = _yuv()
    planes = {"u": u, "v": v}
    luma = iter((y[:, 0::2], y[:, 1::2]))
    columns = [next(luma) if letter == "y" else planes[letter] for letter in order]
    rows = np.stack(columns, axis=2).reshape(HEIGHT, -1).astype(np.uint8)
    expected = _bt601(y, np.repeat(u, 2, axis=1), np.repeat(v, 2, axis=1))
    found = decode_image(_message(encoding, rows, padding))
    assert np.abs(found - expected).max() <= 1.0


@pytest.mark.parametrize("padding", [0, 4])
@pytest.mark.parametrize("encoding", ["nv12", "nv21"])
def test_semi_planar(encoding, padding):
    y, u, v = _yuv()
    u, v = u[0::2], v[0::2]  # one chroma sample for 2 x 2 pixels
    pair = (u, v) if encoding == "nv12" else (v, u)
    chroma = np.stack(pair, axis=2).reshape(HEIGHT // 2, WIDTH)
    found = decode_image(_message(encoding, np.concatenate([y, chroma]).astype(np.uint8), padding))

    def spread(plane: np.ndarray) -> np.ndarray:
        return plane.repeat(2, axis=0).repeat(2, axis=1)

    assert np.abs(found - _bt601(y, spread(u), spread(v))).max() <= 1.0


@pytest.mark.parametrize("depth", ["8", "16", "16 big-endian"])
@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
def test_bayer(pattern, depth):
    """Each colour is constant, so every interpolation must give it back away from the border."""
    colour = {"r": 200, "g": 100, "b": 50}
    mosaic = np.zeros((HEIGHT, WIDTH), dtype=np.uint16)
    for k, letter in enumerate(pattern):
        mosaic[k // 2 :: 2, k % 2 :: 2] = colour[letter]
    if depth == "8":
        message = _message(f"bayer_{pattern}8", mosaic.astype(np.uint8), 2)
    else:
        big = depth.endswith("big-endian")
        message = _message(f"bayer_{pattern}16", (mosaic * 256 + 99).astype(">u2" if big else "<u2"))
        message.is_bigendian = int(big)
    found = decode_image(message)
    assert np.all(found[2:-2, 2:-2] == [200, 100, 50])


def test_bayer_keeps_places():
    """A red square in a mosaic comes out red where it was."""
    mosaic = np.zeros((16, 16), dtype=np.uint8)
    mosaic[8:16:2, 0:8:2] = 255  # red samples of rggb in the lower left quarter
    found = decode_image(_message("bayer_rggb8", mosaic, height=16, width=16))
    assert found[12, 4, 0] == 255 and found[12, 4, 1:].max() == 0
    assert found[:6].max() == 0 and found[:, 10:].max() == 0


def test_png_is_exact_and_jpeg_is_close():
    picture = cv2.resize(_known(), (96, 64), interpolation=cv2.INTER_CUBIC)
    for suffix, tolerance in ((".png", 0), (".jpg", 6)):
        encoded = cv2.imencode(suffix, picture[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 98])[1].tobytes()
        for padding in (b"", b"\0" * 16):
            found = decode_compressed_image(CompressedImage(format=suffix, data=encoded + padding))
            assert np.abs(found.astype(int) - picture).max() <= tolerance


def test_unusable_images_are_refused_by_name():
    picture = _known()
    for encoding in ("32FC1", "mono16", "yuv444", "nv24", ""):
        with pytest.raises(ValueError, match=f"image encoding '{encoding}' is not supported; supported are bayer"):
            decode_image(_message(encoding, picture))
    with pytest.raises(ValueError, match="287 bytes of 288"):
        decode_image(Image(height=8, width=12, encoding="rgb8", step=36, data=bytes(287)))
    with pytest.raises(ValueError, match="step 35 is less than 36"):
        decode_image(Image(height=8, width=12, encoding="rgb8", step=35, data=bytes(400)))
    with pytest.raises(ValueError, match="0 x 8 pixels"):
        decode_image(Image(height=8, width=0, encoding="rgb8"))
    with pytest.raises(ValueError, match="even sides, got 11 x 8"):
        decode_image(Image(height=8, width=11, encoding="nv12", step=11, data=bytes(200)))
    assert {"rgb8", "bgr8", "rgba8", "bgra8", "mono8", "yuv422", "yuv422_yuy2", "nv12", "nv21"} <= set(ENCODINGS)


def test_unusable_files_are_refused_by_name(data):
    jpeg = (data / "udacity_highway" / "test1.jpg").read_bytes()
    for content, message in (
        (b"", "is empty"),
        (jpeg[: len(jpeg) // 2], "JPEG of .* bytes is truncated"),
        (b"\xff\xd8garbage\xff\xd9", "is damaged"),
        (b"GIF89a", "'gif' is neither JPEG nor PNG"),
        (b"\x89PNG\r\n\x1a\nxxxx", "PNG of 12 bytes is truncated"),
    ):
        with pytest.raises(ValueError, match=message):
            decode_compressed_image(CompressedImage(format="gif", data=content))
    assert decode_compressed_image(CompressedImage(format="jpeg", data=jpeg)).shape == (720, 1280, 3)
