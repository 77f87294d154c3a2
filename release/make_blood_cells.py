"""Make the blood cells that ship with Boxwright from BCCD, of which a checkout is given.

    python release/make_blood_cells.py BCCD-FOLDER

The folder holds BCCD's `Annotations`, `ImageSets`, `JPEGImages` and `LICENSE`. Written to
`src/boxwright/assets/blood_cells`: all pictures of its list `test`, and as many of its list `trainval`, evenly spread,
as the wheel has room for; smaller, with labels in one file of COCO's format for each list. The same pictures give the
same bytes, with the same release of Pillow.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

TARGET = Path(__file__).parent.parent / "src" / "boxwright" / "assets" / "blood_cells"
CLASSES = ("Platelets", "RBC", "WBC")
SIZE = (384, 288)  # width and height; BCCD's pictures have 640×480
QUALITY = 75
TRAINING_PICTURES = 250
AUTHOR, PAGE = "shenggan", "https://github.com/Shenggan/BCCD_Dataset"


def read_list(source: Path, name: str) -> list[str]:
    """Return the names of the pictures in one of BCCD's lists, in its order."""
    return (source / "ImageSets" / "Main" / f"{name}.txt").read_text().split()


def spread(names: Sequence[str], count: int) -> list[str]:
    """Return so many names at equal distances."""
    return [names[index * len(names) // count] for index in range(count)]


def read_boxes(path: Path) -> list[tuple[str, tuple[float, float, float, float]]]:
    """Return class and corners (x_min, y_min, x_max, y_max) of each object, in pixels of the shipped size."""
    root = ET.parse(path).getroot()
    size = [float(root.findtext(f"size/{side}", "")) for side in ("width", "height")]
    scale, objects = [to / own for to, own in zip(SIZE, size, strict=True)], []
    for item in root.iter("object"):
        corners = [float(item.findtext(f"bndbox/{name}", "")) for name in ("xmin", "ymin", "xmax", "ymax")]
        x_min, y_min, x_max, y_max = (
            round(min(max(corner * scale[axis % 2], 0), SIZE[axis % 2]), 1) for axis, corner in enumerate(corners)
        )
        # Two boxes of BCCD have no area.
        if x_max > x_min and y_max > y_min:
            objects.append((item.findtext("name", ""), (x_min, y_min, x_max, y_max)))
    return objects


def write_split(source: Path, name: str, pictures: Sequence[str]) -> None:
    """Write the pictures of a list, and its labels beside their folder."""
    folder = TARGET / name
    folder.mkdir(parents=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, picture in enumerate(pictures, 1):
        with Image.open(source / "JPEGImages" / f"{picture}.jpg") as image:
            small = image.convert("RGB").resize(SIZE, Image.Resampling.LANCZOS)
        small.save(folder / f"{picture}.jpg", quality=QUALITY, optimize=True)
        images.append({"id": number, "file_name": f"{picture}.jpg", "width": SIZE[0], "height": SIZE[1]})
        for title, (x_min, y_min, x_max, y_max) in read_boxes(source / "Annotations" / f"{picture}.xml"):
            width, height = round(x_max - x_min, 1), round(y_max - y_min, 1)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": CLASSES.index(title) + 1,
                    "bbox": [x_min, y_min, width, height],
                    "area": round(width * height, 1),
                    "iscrowd": 0,
                }
            )
    content = {
        "info": {"description": f"BCCD's list {name}, resized", "contributor": AUTHOR, "url": PAGE, "year": 2017},
        "licenses": [{"id": 1, "name": "MIT", "url": f"{PAGE}/blob/master/LICENSE"}],
        "categories": [{"id": number, "name": title} for number, title in enumerate(CLASSES, 1)],
        "images": images,
        "annotations": annotations,
    }
    (TARGET / f"{name}.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")


def main() -> None:
    """Replace the shipped blood cells."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path, help="a checkout of BCCD, or the folder BCCD in it")
    source = parser.parse_args().source
    if not (source / "ImageSets" / "Main" / "test.txt").is_file():
        sys.exit(f"{source}: expected BCCD's folder, with ImageSets/Main/test.txt")
    shutil.rmtree(TARGET, ignore_errors=True)
    write_split(source, "train", spread(read_list(source, "trainval"), TRAINING_PICTURES))
    write_split(source, "test", read_list(source, "test"))
    shutil.copy(source / "LICENSE", TARGET / "LICENSE")
    files = [path for path in TARGET.rglob("*") if path.is_file()]
    print(f"{TARGET}: {len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
