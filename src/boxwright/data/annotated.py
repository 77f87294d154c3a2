"""What annotation tools are given: images by name, with boxes that may have scores and reasons."""

from __future__ import annotations

from dataclasses import dataclass

from boxwright.types import Categories


@dataclass(frozen=True)
class AnnotatedObject:
    """One object.

    Attributes:
        label: Of its class, 0-based.
        box: x_min, y_min, x_max, y_max in pixels.
        score: Of a detection; None for an annotation.
        reason: Why it is shown to an annotator; may be empty.
    """

    label: int
    box: tuple[float, float, float, float]
    score: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class AnnotatedImage:
    """One image.

    Attributes:
        name: Its file, relative to the images' folder.
    """

    name: str
    width: int
    height: int
    objects: tuple[AnnotatedObject, ...]


@dataclass(frozen=True)
class AnnotatedDataset:
    """Images with their classes."""

    categories: Categories
    images: tuple[AnnotatedImage, ...]

    @property
    def has_scores(self) -> bool:
        """Whether they are detections."""
        return any(annotation.score is not None for image in self.images for annotation in image.objects)
