"""Small folders of YOLO's data, written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from PIL import Image


def picture(path: Path, size: tuple[int, int] = (20, 10), orientation: int = 1) -> Path:
    """Write a black picture of (width, height) pixels as stored."""
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", size).save(path, exif=exif)
    return path


def folder(
    root: Path, labels: Mapping[str, str], yaml: str = "train: images\nnames: [a, b, c]\n", ending: str = ".png"
) -> Path:
    """Write `data.yaml`, a picture of 20 × 10 in `images` for each label file, and the label files in `labels`."""
    (root / "labels").mkdir(parents=True, exist_ok=True)
    for stem, text in labels.items():
        picture(root / "images" / f"{stem}{ending}")
        (root / "labels" / f"{stem}.txt").write_text(text)
    if yaml:
        (root / "data.yaml").write_text(yaml)
    return root


def row(number: int, *values: float) -> str:
    return " ".join([str(number), *(f"{value:.6f}" for value in values)]) + "\n"
