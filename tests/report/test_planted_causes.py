"""Causes that are planted in pictures and training data are found by a report of the evaluation's folder.

The detector is simulated, and sees pixels: it takes the objects' boxes for candidates, and keeps those that some anchor
fits and whose border shows; it names each by the colors of the training data's objects that are nearest to its own.
What the report knows of sizes, anchors, classes in training and pictures, it reads itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from boxwright.config.load import dump_message
from boxwright.evaluation.data import open_evaluation_data
from boxwright.evaluation.evaluate import samples_by_threads
from boxwright.evaluation.images import evaluate_images
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.evaluation.summary import summarize
from boxwright.evaluation.write import DATA_SETTINGS, ImageResults, write_evaluation
from boxwright.pipeline.load import load_config
from boxwright.report.sources import source_of_evaluation
from boxwright.report.write import write_report
from boxwright.types import Array, Detections, Sample
from tests.conftest import SMALL_MODEL, SMALL_TRAINING

HEIGHT, WIDTH = 128, 160
COLORS = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200], [170, 120, 50]])
ALL_SHAPES, NO_TALL_SHAPES = (1.0, 2.0, 0.5, 3.0, 0.33), (1.0, 2.0, 3.0)


@dataclass(frozen=True)
class Plant:
    """What is wrong with the data or the model; by default nothing."""

    blurred_below: float = 0.0
    last_class_every: int = 4
    aspect_ratios: Sequence[float] = ALL_SHAPES


def boxes_of_picture(random: np.random.Generator) -> NDArray[np.float64]:
    """Up to six boxes that do not touch each other, a third of them tall."""
    boxes: list[NDArray[np.float64]] = []
    for _ in range(12):
        side, tall = np.exp(random.uniform(np.log(20), np.log(56))), random.uniform() < 1 / 3
        aspect = random.uniform(2.3, 3) if tall else random.uniform(0.6, 1.3)
        height, width = min(side * np.sqrt(aspect), 100), side / np.sqrt(aspect)
        x, y = random.uniform(4, WIDTH - width - 4), random.uniform(4, HEIGHT - height - 4)
        box = np.array([x, y, x + width, y + height]).round()
        if all((box[:2] > other[2:] + 6).any() or (box[2:] < other[:2] - 6).any() for other in boxes):
            boxes.append(box)
    return np.stack(boxes[:6])


def write_data(folder: Path, images: int, last_class_every: int, blurred_below: float, seed: int) -> None:
    """Write pictures and COCO's truth: plain rectangles in their classes' colors, more or less, on a grainy ground."""
    random = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    content: dict[str, list[dict[str, object]]] = {"images": [], "annotations": []}
    content["categories"] = [{"id": number + 1, "name": name} for number, name in enumerate("abcd")]
    for image in range(images):
        pixels = random.normal(100, 6, (HEIGHT, WIDTH, 3))
        for box in boxes_of_picture(random):
            left, top, right, bottom = (int(one) for one in box)
            last = len(content["annotations"]) % last_class_every == 0
            label = 3 if last else int(random.integers(0, 3))
            pixels[top:bottom, left:right] = COLORS[label] + random.normal(0, 14, 3)
            if (area := (right - left) * (bottom - top)) < blurred_below:
                around = (slice(max(top - 8, 0), bottom + 8), slice(max(left - 8, 0), right + 8))
                pixels[around] = cv2.GaussianBlur(pixels[around], (0, 0), 5)
            row = {"id": len(content["annotations"]) + 1, "image_id": image, "category_id": label + 1, "area": area}
            content["annotations"].append({**row, "bbox": [left, top, right - left, bottom - top], "iscrowd": 0})
        name = f"{image}.png"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / "images" / name)
        content["images"].append({"id": image, "file_name": name, "width": WIDTH, "height": HEIGHT})
    (folder / "instances.json").write_text(json.dumps(content))


def configuration(folder: Path, aspect_ratios: Sequence[float]) -> str:
    """A small SSD's, on both data sets; by default its anchors are squares."""
    readers = "".join(
        f"""{name}_input_reader {{ label_map_path: "{folder}/map.pbtxt" coco_input_reader {{
            annotations: "{folder}/{name}/instances.json" image_folder: "{folder}/{name}/images" }} }} """
        for name in ("train", "eval")
    )
    (folder / "map.pbtxt").write_text("".join(f"item {{ id: {n + 1} name: '{c}' }}\n" for n, c in enumerate("abcd")))
    model = SMALL_MODEL.replace("height: 64 width: 64", f"height: {HEIGHT} width: {WIDTH}")
    return model.replace("aspect_ratios: 1.0", f"aspect_ratios: {list(aspect_ratios)}") + SMALL_TRAINING + readers


def anchors_of(aspect_ratios: Sequence[float]) -> NDArray[np.float64]:
    """The anchors of levels 3 to 5, sides of 2 and 2√2 strides: xyxy, in the middle of each cell."""
    boxes = []
    for stride in (8, 16, 32):
        for side in (2.0 * stride, 2.0 * stride * np.sqrt(2)):
            for ratio in aspect_ratios:
                half = side * np.array([np.sqrt(ratio), 1 / np.sqrt(ratio)]) / 2
                x, y = np.meshgrid(np.arange(0, WIDTH, stride), np.arange(0, HEIGHT, stride))
                centers = np.stack([x.ravel(), y.ravel()], 1) + stride / 2
                boxes.append(np.concatenate([centers - half, centers + half], 1))
    return np.concatenate(boxes)


def largest_overlap(box: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    sides = np.minimum(others[:, 2:], box[2:]) - np.maximum(others[:, :2], box[:2])
    shared = sides.clip(0).prod(1)
    return float((shared / ((others[:, 2:] - others[:, :2]).prod(1) + (box[2:] - box[:2]).prod() - shared)).max())


def color_and_contrast(pixels: NDArray[np.uint8], box: NDArray[np.float32]) -> tuple[NDArray[np.float64], float]:
    """The mean color of a box's middle, and how much its inner border differs from its outer one."""
    left, top, right, bottom = (int(one) for one in box)
    wide = (right - left) // 4, (bottom - top) // 4
    color = pixels[top + wide[1] : bottom - wide[1], left + wide[0] : right - wide[0]].mean((0, 1))
    rows, columns = slice(top + 2, bottom - 2), slice(left + 2, right - 2)
    pairs = [
        (pixels[rows, left + 1], pixels[rows, left - 2]),
        (pixels[rows, right - 2], pixels[rows, right + 1]),
        (pixels[top + 1, columns], pixels[top - 2, columns]),
        (pixels[bottom - 2, columns], pixels[bottom + 1, columns]),
    ]
    return color, float(np.mean([np.abs(a.astype(float).mean(0) - b.mean(0)).mean() for a, b in pairs]))


def detect(
    learned: tuple[NDArray[np.float64], NDArray[np.int64]],
    anchors: NDArray[np.float64],
    samples: list[Sample],
    seed: int,
) -> Iterator[tuple[Detections[Array], dict[str, float]]]:
    """Find what shows; miss a tenth of it anyway, and be wrong about a place in each picture."""
    random = np.random.default_rng(seed)
    colors, labels = learned
    for sample in samples:
        rows = []
        for box in sample.boxes:
            color, contrast = color_and_contrast(sample.image, box)
            if contrast > 22 and largest_overlap(box.astype(float), anchors) >= 0.5 and random.uniform() > 0.1:
                nearest = labels[np.argsort(((colors - color) ** 2).sum(1))[:15]]
                moved = box + random.normal(0, 0.01 * (box[2:] - box[:2]).mean(), 4)
                rows.append((moved, random.uniform(0.4, 1), int(np.bincount(nearest).argmax())))
        corner = random.uniform(10, 70, 2)
        rows.append((np.concatenate([corner, corner + 40]), random.uniform(0.1, 0.6), int(random.integers(0, 4))))
        rows.sort(key=lambda row: -row[1])
        boxes, scores, found = zip(*rows, strict=True)
        yield (
            Detections(
                np.stack(boxes).astype(np.float32), np.array(scores, np.float32), np.array(found), (HEIGHT, WIDTH)
            ),
            {},
        )


def first_cause(folder: Path, plant: Plant, seed: int) -> tuple[str, str]:
    """Write data, evaluate the simulated detector on them, report, and return what the report ranks first."""
    write_data(folder / "train", 40, plant.last_class_every, plant.blurred_below, seed + 100)
    write_data(folder / "eval", 60, 4, plant.blurred_below, seed)
    (folder / "pipeline.config").write_text(configuration(folder, plant.aspect_ratios))
    config = load_config(folder / "pipeline.config")
    of_training = open_evaluation_data(config, EvaluationSettings(eval_on_train_data=True), None).dataset
    samples = [of_training[index] for index in range(len(of_training))]
    colors = [color_and_contrast(sample.image, box)[0] for sample in samples for box in sample.boxes]
    learned = np.stack(colors), np.concatenate([sample.labels for sample in samples])
    data = open_evaluation_data(config, EvaluationSettings(), None)
    finder = partial(detect, learned, anchors_of(plant.aspect_ratios))
    out = folder / "out"
    with ImageResults(out) as results:
        images = evaluate_images(finder, data, partial(samples_by_threads, workers=0))
        evaluation = summarize(images, data.plan, data.counted_categories, results.add)
        about = {"settings": {name: getattr(EvaluationSettings(), name) for name in DATA_SETTINGS}}
        write_evaluation(evaluation, results, out, about=about)
    (out / "pipeline.config").write_text(dump_message(config))
    write_report(source_of_evaluation(out), folder / "report")
    first = json.loads((folder / "report" / "report.json").read_text())["parts"][0]
    # Not by chance: the interval is above 0.
    assert first["gain"][1] > 0
    return first["factor"], first["name"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("plant", "factor", "parts"),
    [
        (Plant(blurred_below=32**2), "size", ("tiny", "small")),
        (Plant(last_class_every=40), "class frequency in training", ("rare",)),
        (Plant(aspect_ratios=NO_TALL_SHAPES), "anchors", ("no anchor fits",)),
    ],
    ids=["small objects blurred", "a class rare in training", "no tall anchors"],
)
def test_a_cause_planted_in_pictures(
    plant: Plant, factor: str, parts: tuple[str, ...], seed: int, tmp_path: Path
) -> None:
    found = first_cause(tmp_path, plant, seed)
    assert found[0] == factor
    assert found[1].startswith(parts)
