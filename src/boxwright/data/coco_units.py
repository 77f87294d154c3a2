"""COCO annotations whose coordinates are in another unit, or of pictures of another size, turned into COCO's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from boxwright.base.errors import DataError
from boxwright.data.coordinates import BoxesAre, Size
from boxwright.data.image_io import ImageHeader


@dataclass(frozen=True)
class CocoUnits:
    """What the numbers of a file are.

    Attributes:
        boxes_are: The four numbers of `bbox`; shares of the picture also stand for keypoints and polygons.
        rescale: Whether pixels are those of a picture of the declared size, and the picture has another one now.
    """

    boxes_are: BoxesAre = "xywh"
    rescale: bool = False

    def __post_init__(self) -> None:
        if self.rescale and self.boxes_are.startswith("normalized"):
            raise DataError("shares of a picture need no rescaling: choose normalized boxes, or rescale")

    @property
    def are_usual(self) -> bool:
        """Whether the file is as COCO's are."""
        return self.boxes_are == "xywh" and not self.rescale

    def in_pixels(self, row: dict[str, Any], box: list[float], size: Size, declared: Size | None) -> dict[str, Any]:
        """Return an annotation in pixels of its picture, its box as x, y, width, height.

        Args:
            row: The annotation.
            box: Its four numbers.
            size: (height, width) of the picture as it is read.
            declared: (height, width) in the file.
        """
        x, y = self._factors(size, declared)
        first, second, third, fourth = box[0] * x, box[1] * y, box[2] * x, box[3] * y
        corners = self.boxes_are.endswith("xyxy")
        # Sizes that stood for corners have had the first corner taken from them.
        sign = -1 if corners else 1 if self.boxes_are == "sizes" else 0
        changed = {**row, "bbox": [first, second, third + sign * first, fourth + sign * second]}
        if self.boxes_are == "xywh" and row.get("area") is not None:
            changed["area"] = row["area"] * x * y
        else:
            # A tool that writes other boxes may compute the area from them as if they were COCO's.
            changed.pop("area", None)
        if isinstance(row.get("keypoints"), list):
            factors = (x, y, 1)
            changed["keypoints"] = [value * factors[n % 3] for n, value in enumerate(row["keypoints"])]
        if isinstance(row.get("segmentation"), list):
            changed["segmentation"] = [
                [value * (y if n % 2 else x) for n, value in enumerate(polygon)] for polygon in row["segmentation"]
            ]
        return changed

    def _factors(self, size: Size, declared: Size | None) -> tuple[float, float]:
        if self.boxes_are.startswith("normalized"):
            return size[1], size[0]
        if not self.rescale or declared is None:
            return 1.0, 1.0
        return size[1] / declared[1], size[0] / declared[0]

    def size_meant(self, header: ImageHeader, declared: Size | None) -> Size | None:
        """Return the declared size; of a resized picture, the size that the declared one has become.

        It is that of the stored or of the upright picture, whichever has the proportions of the declared size.
        """
        if not self.rescale or declared is None:
            return declared
        wanted = math.log(declared[0] / declared[1])
        candidates = (header.size, header.size[::-1]) if header.orientation >= 5 else (header.size,)
        distances = [abs(math.log(height / width) - wanted) for height, width in candidates]
        # Both are as far from a square as from each other: nothing shows which is meant.
        if len(distances) > 1 and math.isclose(*distances):
            return None
        return candidates[distances.index(min(distances))]
