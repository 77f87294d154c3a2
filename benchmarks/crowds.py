"""Made-up crowds: many tiny faces among few large ones, and things that are nearly faces.

Most are tiny, as in a crowd: half are less than two octaves above the least size, a few fill the image. Everything
follows from the seed and the image's index.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.data.image_io import encode_jpeg
from boxwright.types import Categories, Category, Sample

_HEIGHT_OVER_WIDTH = 1.25
_MOST_HIDDEN = 0.4


class CrowdsDataset:
    """Any number of made-up crowds, computed when asked for."""

    def __init__(
        self,
        count: int,
        *,
        seed: int = 0,
        size: int = 128,
        most: int = 60,
        heights: tuple[float, float] = (6.0, 100.0),
    ) -> None:
        """Describe the data set.

        Args:
            count: How many images.
            seed: Two seeds give two unrelated data sets.
            size: Height and width of the images.
            most: The most faces that are tried in an image; some find no place.
            heights: The least and the largest of a face, in pixels.
        """
        self.count, self.seed, self.size, self.most, self.heights = count, seed, size, most, heights
        self.name = f"crowds({count}, seed {seed})"
        self.categories = Categories((Category(0, 1, "face"),))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        """Draw one sample.

        Args:
            index: From 0.

        Returns:
            The sample. Largest faces are drawn first, so that small ones are seen; one that would hide two fifths of
            another is not drawn. A third are turned upside down, and are not annotated: no faces.
        """
        if not 0 <= index < self.count:
            raise IndexError(index)
        rng = np.random.default_rng([self.seed, index])
        noise = rng.integers(0, 256, (8, 8, 3)).astype(np.uint8)
        image = cv2.resize(noise, (self.size, self.size), interpolation=cv2.INTER_CUBIC)
        image = np.clip(0.5 * image + rng.normal(64, 12, image.shape), 0, 255).astype(np.uint8)
        low, high = self.heights
        tries = rng.random(int(rng.integers(2, self.most + 1)))
        sizes = np.sort(low * (high / low) ** tries**2)[::-1]
        taken = np.zeros((self.size, self.size), bool)
        boxes = []
        for height in sizes:
            width = height / _HEIGHT_OVER_WIDTH
            x, y = rng.uniform(0, self.size - width), rng.uniform(0, self.size - height)
            rows, columns = slice(int(y), int(np.ceil(y + height))), slice(int(x), int(np.ceil(x + width)))
            if taken[rows, columns].mean() > _MOST_HIDDEN:
                continue
            taken[rows, columns] = True
            face = bool(rng.random() < 2 / 3)
            _draw(image, rng, (x + width / 2, y + height / 2), (width / 2, height / 2), face=face)
            if face:
                boxes.append((x, y, x + width, y + height))
        return Sample(
            image=image,
            boxes=np.array(boxes, np.float32).reshape(-1, 4),
            labels=np.zeros(len(boxes), np.int64),
            id=f"crowd{index:06d}",
            filename=f"crowd{index:06d}.jpg",
        )

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return a JPEG file's bytes and its name."""
        sample = self[index]
        return encode_jpeg(sample.image), sample.filename


def _draw(
    image: NDArray[np.uint8],
    rng: np.random.Generator,
    centre: tuple[float, float],
    half: tuple[float, float],
    *,
    face: bool,
) -> None:
    """Draw an oval, with eyes above and a mouth below where it is a face, or the other way round."""
    skin = tuple(int(v) for v in rng.integers(110, 240, 3))
    dark = tuple(v // 4 for v in skin)

    def oval(dx: float, dy: float, wide: float, tall: float, colour: tuple[int, ...]) -> None:
        middle = (round(16 * (centre[0] + dx * half[0] - 0.5)), round(16 * (centre[1] + dy * half[1] - 0.5)))
        axes = (max(round(16 * wide * half[0]), 6), max(round(16 * tall * half[1]), 6))
        cv2.ellipse(image, middle, axes, 0, 0, 360, colour, -1, cv2.LINE_AA, 4)

    oval(0, 0, 1, 1, skin)
    up = 1 if face else -1
    for side in (-1, 1):
        oval(0.4 * side, -0.3 * up, 0.2, 0.14, dark)
    oval(0, 0.5 * up, 0.45, 0.12, dark)
