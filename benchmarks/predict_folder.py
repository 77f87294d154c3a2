"""How much of a detector's own rate remains when a folder of images becomes a folder of pictures.

    python benchmarks/predict_folder.py [--images 60] [--rounds 5] [--json benchmarks/results/predict-folder-cpu.json]

The demo's detector, exported to ONNX with fresh weights; images of 640×480 as JPEG; ten boxes are drawn in each. Ways
take turns in one process: looking alone, at images that are decoded; then `boxwright predict` without pictures, with
JPEG, with PNG. Prints images a second, and ratios to looking alone within a round: the most, the median.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxwright.cli.demo_data import SHAPES, write_demo_data
from boxwright.data.image_io import encode_jpeg, read_image
from boxwright.data.shapes import ShapesDataset
from boxwright.exporters.export import export
from boxwright.inference.predict import predict
from boxwright.inference.settings import PredictionSettings
from boxwright.inference.sources import find_sources
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config
from boxwright.runtime.exported import open_exported
from boxwright.runtime.measure import load
from boxwright.types import Array, Detections

SIZE = (480, 640)
BOXES = 10


def prepared(folder: Path, count: int) -> tuple[Path, Path]:
    """Write an exported detector and images.

    Args:
        folder: Where to.
        count: How many images.

    Returns:
        The detector's file, and the images' folder.
    """
    config = load_config(write_demo_data(folder / "demo", SHAPES, 4, 2, lambda items: items))
    detector = build_detector(config)
    shapes = ShapesDataset(count, seed=3, size=SIZE)
    images = folder / "images"
    images.mkdir()
    for number in range(count):
        (images / f"{number:03}.jpg").write_bytes(encode_jpeg(shapes[number].image))
    export(detector, folder / "detector.onnx", images=[shapes[number].image for number in range(2)])
    return folder / "detector.onnx", images


def ways(file: Path, images: Path, out: Path) -> dict[str, Callable[[], Any]]:
    """Return what is timed, by name; the first is what others are compared with."""
    opened = open_exported(file)
    decoded = [read_image(path) for path in sorted(images.iterdir())]

    def look(pictures: Sequence[NDArray[np.uint8]]) -> list[Detections[Array]]:
        return [found.first(BOXES) for found in opened.detect(pictures)]

    def folder(name: str, **settings: Any) -> Callable[[], Any]:
        chosen = PredictionSettings(min_score=0, **settings)
        return lambda: predict(look, find_sources([str(images)]), out / name, chosen)

    return {
        "looking alone": lambda: [look([image]) for image in decoded],
        "predict --no_pictures": folder("none", pictures=False),
        "predict": folder("jpg"),
        "predict --picture_format png": folder("png", picture_format="png"),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as name:
        contenders = ways(*prepared(Path(name), given.images), Path(name))
        rates: dict[str, list[float]] = {way: [] for way in contenders}
        before = load()[0]
        for number in range(given.rounds + 1):
            for way, run in contenders.items():
                began = time.perf_counter()
                run()
                if number:  # the first round warms up
                    rates[way].append(given.images / (time.perf_counter() - began))
        loads = [round(before, 2), round(load()[0], 2)]
    alone = rates["looking alone"]
    found = {}
    for way, own in rates.items():
        ratios = [mine / theirs for mine, theirs in zip(own, alone, strict=True)]
        found[way] = {
            "images_per_s_most": round(max(own), 1),
            "images_per_s_median": round(statistics.median(own), 1),
            "ratio_most": round(max(ratios), 3),
            "ratio_median": round(statistics.median(ratios), 3),
        }
        most, median = (f"{pick(own):7.1f} images/s ({pick(ratios):.2f})" for pick in (max, statistics.median))
        print(f"{way:30} {most}, median {median}")
    if given.json:
        content = {"images": given.images, "load of a core, before and after": loads, **found}
        given.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
