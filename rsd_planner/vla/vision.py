"""Camera pictures to the patches that the vision tower reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

_MAX_ASPECT_RATIO = 200


@dataclass(frozen=True)
class ImagePatches:
    """Pictures ready for the vision tower.

    pixel_values [patches, 3 * temporal * patch * patch] float32, picture by picture, the patches of
    one merge block next to each other; grid_thw [pictures, 3] int64 counts patches per axis.
    """

    pixel_values: Tensor
    grid_thw: Tensor


@dataclass(frozen=True)
class ImageProcessor:
    """Resizes to whole merge blocks inside the area bounds and cuts patches (as Qwen2-VL's processor)."""

    min_pixels: int
    max_pixels: int
    patch_size: int = 16
    merge_size: int = 2
    temporal_patch_size: int = 2

    def size_for(self, height: int, width: int) -> tuple[int, int]:
        """Height and width (pixels) that a picture of this size is resized to.

        Keeps the aspect ratio as far as whole blocks allow. Raises ValueError beyond 200 : 1.
        """
        if min(height, width) < 1 or max(height, width) / min(height, width) > _MAX_ASPECT_RATIO:
            raise ValueError(f"an image of {width} x {height} pixels: sides must be positive and within 200 : 1")
        block = self.patch_size * self.merge_size
        resized_height, resized_width = round(height / block) * block, round(width / block) * block
        if resized_height * resized_width > self.max_pixels:
            scale = math.sqrt(height * width / self.max_pixels)
            resized_height = max(block, math.floor(height / scale / block) * block)
            resized_width = max(block, math.floor(width / scale / block) * block)
        elif resized_height * resized_width < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (height * width))
            resized_height = math.ceil(height * scale / block) * block
            resized_width = math.ceil(width * scale / block) * block
        return resized_height, resized_width

    def grid_for(self, height: int, width: int) -> tuple[int, int, int]:
        """Patches (t, h, w) of a picture of this size."""
        resized_height, resized_width = self.size_for(height, width)
        return 1, resized_height // self.patch_size, resized_width // self.patch_size

    def __call__(self, images: Sequence[np.ndarray]) -> ImagePatches:
        """Patches of RGB pictures, each uint8 [H, W, 3] of any size.

        Resizing runs in uint8 on the CPU whatever the model's device: torch's fixed-point bicubic
        is what the public processor uses, and the float one differs from it by up to 6 % of a pixel
        value in one pixel of eight.
        """
        patches, grids = [], []
        for image in images:
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
                raise ValueError(f"an image must be uint8 [H, W, 3], not {image.dtype} {list(image.shape)}")
            size = self.size_for(image.shape[0], image.shape[1])
            picture = torch.from_numpy(np.array(image)).permute(2, 0, 1).unsqueeze(0)
            resized = F.interpolate(picture, size=size, mode="bicubic", antialias=True, align_corners=False)
            patches.append(self._cut((resized[0].float() - 127.5) / 127.5))
            grids.append([1, size[0] // self.patch_size, size[1] // self.patch_size])
        return ImagePatches(torch.cat(patches), torch.tensor(grids))

    def _cut(self, picture: Tensor) -> Tensor:
        """Patches [n, 3 * T * P * P] of a picture [3, H, W] whose sides are whole blocks."""
        patch, merge = self.patch_size, self.merge_size
        channels, height, width = picture.shape
        blocks = picture.reshape(
            channels, height // patch // merge, merge, patch, width // patch // merge, merge, patch
        )
        blocks = blocks.permute(1, 4, 2, 5, 0, 3, 6)
        frames = blocks.unsqueeze(5).expand(-1, -1, -1, -1, -1, self.temporal_patch_size, -1, -1)
        return frames.reshape(-1, channels * self.temporal_patch_size * patch * patch)
