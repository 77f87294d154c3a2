"""Made-up camera traps: every camera sees one kind of animal, clearly by day, as a gray blob by night."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from boxwright.data.convert import encode_example
from boxwright.data.example_messages import Example
from boxwright.data.image_io import encode_png
from boxwright.data.tfrecord import write_records
from boxwright.types import Categories, Category, Sample

ANIMALS = {"zebra": (235, 235, 235), "lion": (225, 165, 40), "parrot": (40, 190, 60), "ibis": (225, 50, 60)}
CATEGORIES = Categories(tuple(Category(number, number + 1, name) for number, name in enumerate(ANIMALS)))
_FIRST = datetime(2015, 7, 1, 6, 0, 0)


@dataclass(frozen=True)
class Frame:
    """An image of a camera."""

    sample: Sample
    location: str
    time: datetime
    dark: bool


def frames_of(cameras: int, frames: int, *, seed: int, side: int = 96) -> list[Frame]:
    """Return the frames of cameras, camera by camera; the animal of the dark ones cannot be told from their pixels."""
    rng = np.random.default_rng(seed)
    found = []
    for camera in range(cameras):
        label = int(rng.integers(len(ANIMALS)))
        for number in range(frames):
            dark = number % 2 == 1
            image, box = _drawn(rng, side, label, dark=dark)
            sample = Sample(
                image=image,
                boxes=np.array([box], np.float32),
                labels=np.array([label]),
                id=f"camera{seed}-{camera}-{number}",
                filename=f"camera{seed}-{camera}-{number}.png",
            )
            time = _FIRST + timedelta(hours=12 * number, minutes=camera % 60)
            found.append(Frame(sample, f"camera{seed}-{camera}", time, dark))
    return found


def _drawn(
    rng: np.random.Generator, side: int, label: int, *, dark: bool
) -> tuple[NDArray[np.uint8], tuple[float, float, float, float]]:
    ground = rng.normal((96, 110, 84), 12, (side, side, 3))
    width, height = rng.uniform(0.25, 0.45, 2) * side
    left, top = rng.uniform(0, side - width), rng.uniform(0, side - height)
    box = (float(left), float(top), float(left + width), float(top + height))
    outline = Image.new("L", (side, side))
    ImageDraw.Draw(outline).ellipse(box, fill=255)
    color = (150, 150, 150) if dark else list(ANIMALS.values())[label]
    inside = np.asarray(outline)[..., None] > 0
    image = np.where(inside, rng.normal(color, 12, ground.shape), ground)
    if dark:
        image = image * 0.35
    return np.clip(image, 0, 255).astype(np.uint8), box


def record_of(frame: Frame) -> bytes:
    """Return a frame as a record with the keys of TF's converter of camera traps."""
    example = Example()
    example.ParseFromString(encode_example(frame.sample, encode_png(frame.sample.image), CATEGORIES))
    feature = example.features.feature
    feature["image/location"].bytes_list.value.append(frame.location.encode())
    feature["image/date_captured"].bytes_list.value.append(str(frame.time).encode())
    return bytes(example.SerializeToString(deterministic=True))


def write_frames(path: Path, frames: list[Frame]) -> Path:
    """Write frames to a TFRecord file, and the label map beside it."""
    write_records(path, [record_of(frame) for frame in frames])
    items = "".join(f'item {{ id: {one.id} name: "{one.name}" }}\n' for one in CATEGORIES)
    (path.parent / "label_map.pbtxt").write_text(items)
    return path
