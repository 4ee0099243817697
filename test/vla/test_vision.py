"""Pictures to patches, against the recorded reference and the resizing rule itself."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import assert_close
from hypothesis import given, settings
from hypothesis import strategies as st

from rsd_planner.vla.vision import ImageProcessor

PUBLIC = ImageProcessor(min_pixels=163840, max_pixels=196608)


def test_raw_frames_give_the_references_pixels(reference, record):
    recorded = record("r1_prefill")
    frames = [np.ascontiguousarray(frame.transpose(1, 2, 0)) for frame in recorded["raw_frames"]]
    patches = reference.image_processor(frames)
    np.testing.assert_array_equal(patches.grid_thw, recorded["image_grid_thw"])
    assert_close(patches.pixel_values, recorded["pixel_values"], relative=1e-6)


def test_a_full_size_picture_gives_the_references_pixels(record):
    y, x = np.mgrid[0:1080, 0:1920]
    picture = np.stack([(x // 4 + y // 8) % 256, (x // 3) % 256, (y // 2 + x // 16) % 256], axis=2).astype(np.uint8)
    patches = PUBLIC([picture])
    assert patches.grid_thw.tolist() == [[1, 20, 36]]
    assert_close(patches.pixel_values[::8], record("real_prompt")["image_pixel_values_every8th"], relative=1e-6)


def test_a_patch_holds_its_own_pixels():
    """No resizing at 64 x 96: the patch at row r, column c is the picture there, twice in time."""
    processor = ImageProcessor(min_pixels=1, max_pixels=64 * 96)
    picture = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    values = processor([picture]).pixel_values.reshape(-1, 3, 2, 16, 16).numpy()
    order = [(2 * R + r, 2 * C + c) for R in range(2) for C in range(3) for r in range(2) for c in range(2)]
    for patch, (row, column) in zip(values, order, strict=True):
        expected = picture[16 * row : 16 * row + 16, 16 * column : 16 * column + 16].transpose(2, 0, 1) / 127.5 - 1
        np.testing.assert_allclose(patch[:, 0], expected, atol=1e-6)
        np.testing.assert_allclose(patch[:, 1], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "resized"), [((1080, 1920), (320, 576)), ((1860, 2880), (352, 544)), ((320, 576), (320, 576))]
)
def test_public_sizes(size, resized):
    assert PUBLIC.size_for(*size) == resized


@settings(max_examples=300, deadline=None)
@given(st.integers(40, 3000), st.integers(40, 4000))
def test_any_size_gives_whole_blocks_within_the_area(height, width):
    if max(height, width) / min(height, width) > 4:
        return  # beyond that whole blocks and the area bounds exclude each other
    h, w = PUBLIC.size_for(height, width)
    assert h % 32 == w % 32 == 0
    assert 163840 <= h * w <= 196608 or abs(round(height / 32) * round(width / 32) * 1024 - h * w) == 0
    assert w / h == pytest.approx(width / height, rel=0.25)


def test_what_is_no_picture_is_refused():
    with pytest.raises(ValueError, match="200 : 1"):
        PUBLIC.size_for(10, 3000)
    with pytest.raises(ValueError, match="uint8"):
        PUBLIC([np.zeros((8, 8, 3), dtype=np.float32)])
    with pytest.raises(ValueError, match="uint8"):
        PUBLIC([np.zeros((8, 8), dtype=np.uint8)])
