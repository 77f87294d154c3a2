"""Image scaling by OpenCV, for published results that depend on its interpolation.

Dimensions: C channels, H W image.
"""

from __future__ import annotations

import cv2
import torch
from torch import Tensor


def scaled_by_opencv(image: Tensor, scale: float) -> Tensor:
    """Return an image [C, H, W] scaled by OpenCV's bilinear interpolation, with its dtype and device."""
    pixels = image.permute(1, 2, 0).contiguous().cpu().numpy()
    # By factors: given a size, OpenCV maps pixels by the ratio of whole sides, which is another scale.
    scaled = cv2.resize(pixels, (0, 0), fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
    return torch.from_numpy(scaled.reshape(*scaled.shape[:2], -1)).permute(2, 0, 1).to(image.device)
