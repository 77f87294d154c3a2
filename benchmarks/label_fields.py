"""What fields of labels cost where they are not used, and where they are: decoding, resizing and collating records.

    python benchmarks/label_fields.py [--rounds 15] [--json FILE]

Batches of 16 records of 320×240 pixels with 8 objects are made as a plain SSD's loader makes them, in rounds that take
turns in one process. "absent" is the same data without the field, "present" has it in the records but does not read it,
"read" reads it. Each is compared with "absent" within a round; the memory is that of the batch's targets. "again" is
"absent" once more: how far two equal things differ. Times are the process's own, with one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import cv2
import numpy as np
import torch

from boxwright.data.batch import collate, to_input
from boxwright.data.groundtruth import without_verified_labels
from boxwright.data.image_io import encode_jpeg
from boxwright.data.shapes import ShapesDataset
from boxwright.data.tf_example import BOXES_ONLY, RecordFields, decode_example, read_features
from boxwright.data.tf_example_writer import encode_example
from boxwright.nn.preprocessing.image_resizer import FixedShapeResizer
from boxwright.types import Categories, Sample

IMAGES, OBJECTS, POINTS = 16, 8, 100
SIZE, INPUT = (240, 320), FixedShapeResizer(300, 300)
RNG = np.random.default_rng(0)


def main() -> None:
    """Measure every field and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    samples, categories = made_up()
    plain = encoded(samples, categories)
    rows: dict[str, dict[str, float]] = {}
    for name, (add, fields) in FIELDS.items():
        with_field = encoded([add(sample) for sample in samples], categories)
        ways = {
            "absent": (plain, BOXES_ONLY),
            "again": (plain, BOXES_ONLY),
            "present": (with_field, BOXES_ONLY),
            "read": (with_field, fields),
        }
        rows[name] = measured(ways, categories, arguments.rounds)
        print(name, {key: round(value, 3) for key, value in rows[name].items()}, flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def made_up() -> tuple[list[Sample], Categories]:
    """Return samples of some objects each, and their classes."""
    shapes, rng = ShapesDataset(IMAGES, seed=5, size=SIZE), np.random.default_rng(0)
    samples = []
    for number in range(IMAGES):
        corners = rng.uniform(0, 100, (OBJECTS, 2)).astype(np.float32)
        boxes = np.concatenate([corners, corners + 60], 1)
        image = shapes[number].image
        samples.append(Sample(image, boxes, rng.integers(0, len(shapes.categories), OBJECTS), id=str(number)))
    return samples, shapes.categories


def encoded(samples: list[Sample], categories: Categories) -> list[bytes]:
    """Return samples as records."""
    return [encode_example(sample, encode_jpeg(sample.image), categories) for sample in samples]


def _tracks(sample: Sample) -> Sample:
    offsets, flags = np.ones((OBJECTS, 2), np.float32), np.ones(OBJECTS, np.float32)
    return replace(sample, track_ids=np.arange(OBJECTS), temporal_offsets=offsets, track_match_flags=flags)


def _dense_pose(sample: Sample) -> Sample:
    points = np.tile(np.array([9, 8, 1, 23, 0.5, 0.25], np.float32), (OBJECTS, POINTS, 1))
    return replace(sample, dense_pose=points)


def _keypoints(sample: Sample) -> Sample:
    return replace(sample, keypoints=np.ones((OBJECTS, 17, 3), np.float32))


def _image_labels(sample: Sample) -> Sample:
    return replace(sample, verified_labels=np.arange(3), negative_labels=np.arange(1))


FIELDS: dict[str, tuple[Callable[[Sample], Sample], RecordFields]] = {
    "keypoints": (_keypoints, RecordFields(num_keypoints=17)),
    "dense_pose": (_dense_pose, RecordFields(dense_pose=True)),
    "tracks": (_tracks, RecordFields(track_ids=True)),
    "confidences": (lambda sample: sample, RecordFields(confidences=True)),
    "image_labels": (_image_labels, BOXES_ONLY),
}


def measured(
    ways: dict[str, tuple[list[bytes], RecordFields]], categories: Categories, rounds: int
) -> dict[str, float]:
    """Return the milliseconds of a batch without the field, ratios to it within rounds, and bytes of targets."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    sizes: dict[str, int] = {}
    for number in range(rounds + 1):
        # Each way is first as often as last.
        for name in list(ways) if number % 2 else reversed(ways):
            start = time.process_time()
            sizes[name] = batch_bytes(*ways[name], categories)
            times[name].append(time.process_time() - start)
    times = {name: values[1:] for name, values in times.items()}  # the first round warms up
    found: dict[str, float] = {"absent_ms": 1000 * min(times["absent"])}
    for name in ("again", "present", "read"):
        found[f"{name}_median"] = median(a / b for a, b in zip(times[name], times["absent"], strict=True))
        found[f"{name}_min"] = min(times[name]) / min(times["absent"])
    return found | {f"{name}_bytes": sizes[name] for name in ("absent", "present", "read")}


def batch_bytes(records: list[bytes], fields: RecordFields, categories: Categories) -> int:
    """Decode, resize and collate records; return how many bytes the targets have."""
    samples = [decode_example(read_features(record, "r"), categories, "r", fields) for record in records]
    learned = [without_verified_labels(sample, RNG) for sample in samples]  # a step of an SSD's training, as there
    batch = collate([to_input(sample, INPUT) for sample in learned])
    return sum(one.numel() * one.element_size() for one in batch.targets.tensors())


if __name__ == "__main__":
    main()
