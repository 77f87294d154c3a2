"""A data set whose large pictures are made smaller, with all that is annotated in them."""

from __future__ import annotations

from dataclasses import dataclass

from boxwright.data.augmentation.functional.geometry import resize
from boxwright.data.convert import encoded_as
from boxwright.data.dataset import Dataset
from boxwright.nn.ops.resize import resize_antialiased, resize_bilinear
from boxwright.types import Categories, Sample


@dataclass(frozen=True)
class SmallerPictures:
    """The samples of a data set, of which no picture has a side longer than a limit; smaller ones are as they were.

    Pictures are resized with antialiasing. Masks, keypoints and areas follow their boxes.

    Attributes:
        dataset: The samples as they are.
        max_side: In pixels, of the longer side.
    """

    dataset: Dataset
    max_side: int

    @property
    def name(self) -> str:
        """The data set's own name."""
        return self.dataset.name

    @property
    def categories(self) -> Categories:
        """The data set's own classes."""
        return self.dataset.categories

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        """Return one sample, as `Dataset` does."""
        return self._shrunk(self.dataset[index])

    def _shrunk(self, sample: Sample) -> Sample:
        """Return a sample whose picture is within the limit; the same one if it was before."""
        height, width = sample.image.shape[:2]
        if max(height, width) <= self.max_side:
            return sample
        scale = self.max_side / max(height, width)
        size = (max(round(height * scale), 1), max(round(width * scale), 1))
        return resize(sample, *size, resize_antialiased, resize_bilinear)

    def encoded(self, index: int) -> tuple[bytes, str]:
        """Return an image file's bytes and its name: as stored, or of the smaller picture, upright."""
        data, name = self.dataset.encoded(index)
        sample = self.dataset[index]
        smaller = self._shrunk(sample)
        return (data, name) if smaller is sample else encoded_as(smaller.image, data, name)
