"""sensor_msgs/Image and CompressedImage to RGB arrays, with OpenCV's conversions.

One path on every machine: cv_bridge and rosbags-image differ in what they do with padded rows,
nv12 / nv21 and truncated files.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

# Encoding -> bytes a pixel, OpenCV conversion to RGB (None: already RGB). Names of ROS's
# sensor_msgs/image_encodings; its Bayer names give the top left 2 x 2 pixels, as OpenCV's long names do.
_PACKED: dict[str, tuple[int, int | None]] = {
    "rgb8": (3, None),
    "bgr8": (3, cv2.COLOR_BGR2RGB),
    "rgba8": (4, cv2.COLOR_RGBA2RGB),
    "bgra8": (4, cv2.COLOR_BGRA2RGB),
    "mono8": (1, cv2.COLOR_GRAY2RGB),
    "yuv422": (2, cv2.COLOR_YUV2RGB_UYVY),
    "uyvy": (2, cv2.COLOR_YUV2RGB_UYVY),
    "yuv422_yuy2": (2, cv2.COLOR_YUV2RGB_YUY2),
    "yuyv": (2, cv2.COLOR_YUV2RGB_YUY2),
    "bayer_rggb8": (1, cv2.COLOR_BayerRGGB2RGB),
    "bayer_bggr8": (1, cv2.COLOR_BayerBGGR2RGB),
    "bayer_gbrg8": (1, cv2.COLOR_BayerGBRG2RGB),
    "bayer_grbg8": (1, cv2.COLOR_BayerGRBG2RGB),
    "bayer_rggb16": (2, cv2.COLOR_BayerRGGB2RGB),
    "bayer_bggr16": (2, cv2.COLOR_BayerBGGR2RGB),
    "bayer_gbrg16": (2, cv2.COLOR_BayerGBRG2RGB),
    "bayer_grbg16": (2, cv2.COLOR_BayerGRBG2RGB),
}
_YUV422 = frozenset({"yuv422", "uyvy", "yuv422_yuy2", "yuyv"})
_SEMI_PLANAR = {"nv12": cv2.COLOR_YUV2RGB_NV12, "nv21": cv2.COLOR_YUV2RGB_NV21}

ENCODINGS = tuple(sorted([*_PACKED, *_SEMI_PLANAR]))
"""Encodings of raw images that are understood."""

_JPEG_START, _JPEG_END = b"\xff\xd8", b"\xff\xd9"
_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"


def decode_image(message: Any) -> NDArray[np.uint8]:
    """RGB uint8 [H, W, 3] of a sensor_msgs/Image.

    Raises ValueError that names the encoding, size or step that does not fit.
    """
    encoding, height, width, step = message.encoding, message.height, message.width, message.step
    if encoding not in _PACKED and encoding not in _SEMI_PLANAR:
        raise ValueError(f"image encoding {encoding!r} is not supported; supported are {', '.join(ENCODINGS)}")
    if height < 1 or width < 1:
        raise ValueError(f"an image of {width} x {height} pixels")
    pixel_bytes = 1 if encoding in _SEMI_PLANAR else _PACKED[encoding][0]
    subsampled = encoding in _SEMI_PLANAR or encoding.startswith("bayer")
    if (width % 2 and (subsampled or encoding in _YUV422)) or (height % 2 and subsampled):
        raise ValueError(f"{encoding} needs even sides, got {width} x {height}")
    rows = height * 3 // 2 if encoding in _SEMI_PLANAR else height
    if step < width * pixel_bytes:
        raise ValueError(f"{encoding}, {width} pixels a row: step {step} is less than {width * pixel_bytes} bytes")
    data = np.frombuffer(message.data, dtype=np.uint8)
    if len(data) < rows * step - (step - width * pixel_bytes):
        raise ValueError(f"{encoding}, {width} x {height}, step {step}: {len(data)} bytes of {rows * step}")
    pixels = _rows(data, rows, step, width * pixel_bytes)
    if encoding in _SEMI_PLANAR:
        return _converted(pixels, _SEMI_PLANAR[encoding])
    code = _PACKED[encoding][1]
    if encoding.endswith("16"):
        wide = pixels.view(">u2" if message.is_bigendian else "<u2")
        return _converted((wide >> 8).astype(np.uint8), code)
    return _converted(pixels.reshape(height, width, pixel_bytes), code)


def decode_compressed_image(message: Any) -> NDArray[np.uint8]:
    """RGB uint8 [H, W, 3] of a sensor_msgs/CompressedImage that holds a whole JPEG or PNG file.

    Raises ValueError for empty, truncated, damaged or other content. An orientation tag is ignored:
    the camera's extrinsics speak of the pixels as they are.
    """
    data = bytes(message.data)
    if not data:
        raise ValueError("the compressed image is empty")
    if data.startswith(_JPEG_START):
        if _JPEG_END not in data[-64:]:  # drivers pad the end
            raise ValueError(f"the JPEG of {len(data)} bytes is truncated (no end marker)")
    elif data.startswith(_PNG_START):
        if _PNG_END not in data[-64:]:
            raise ValueError(f"the PNG of {len(data)} bytes is truncated (no end chunk)")
    else:
        raise ValueError(f"compressed image format {message.format!r} is neither JPEG nor PNG")
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        picture = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), flags)
    except cv2.error as error:
        raise ValueError(f"the compressed image of {len(data)} bytes is damaged: {error.err}") from error
    if picture is None:
        raise ValueError(f"the compressed image of {len(data)} bytes is damaged")
    return _converted(picture, cv2.COLOR_BGR2RGB)


def _rows(data: NDArray[np.uint8], rows: int, step: int, used: int) -> NDArray[np.uint8]:
    """The used bytes [rows, used] of each row of step bytes; the last row may lack its padding."""
    strides = (step, 1)
    view = np.lib.stride_tricks.as_strided(data, shape=(rows, used), strides=strides, writeable=False)
    return np.ascontiguousarray(view)


def _converted(pixels: NDArray[Any], code: int | None) -> NDArray[np.uint8]:
    if code is None:
        return pixels
    return np.asarray(cv2.cvtColor(pixels, code), dtype=np.uint8)
