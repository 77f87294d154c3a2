"""What share of a CenterNet's step and inference is spent outside the network: MobileNetV2-FPN 512, batch 4 and 1.

    python benchmarks/center_net_step.py [--steps 10] [--threads 2] [--json FILE]

Ten steps of four images, and ten inferences of four and of one: of a detector of boxes, of one with keypoints (both as
the model zoo has them), and of one with masks too. Images and objects are made up. The criterion's part of a step is
its targets and losses, and their gradients until these reach the network's maps. Outside the network an inference
resizes, scales, finds peaks and decodes. Times are of the processor, over all threads, which other programs disturb
less; medians.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import boxwright  # first: it sets how long threads spin, which PyTorch reads when it is imported

# isort: split
import numpy as np
import torch

from boxwright.config.load import parse_message
from boxwright.nn.criteria.terms import LossTerm
from boxwright.nn.detector import Detector
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.runtime.allocator import keep_freed_memory
from boxwright.runtime.measure import load
from boxwright.types import Targets
from boxwright.types.masks import InstanceMasks
from boxwright.types.packing import tensors_of

BATCH, SIDE, OBJECTS, POINTS, WARM_UPS = 4, 512, 16, 17, 2
FOCAL = "classification_loss { penalty_reduced_logistic_focal_loss { alpha: 2 beta: 4 } }"
L1 = "localization_loss { l1_localization_loss { } }"
BOXES = f"""
num_classes: 90 image_resizer {{ fixed_shape_resizer {{ height: {SIDE} width: {SIDE} }} }}
feature_extractor {{ type: "mobilenet_v2_fpn" }}
object_detection_task {{ {L1} }} object_center_params {{ {FOCAL} max_box_predictions: 100 }}
"""
KEYPOINTS = f"""
keypoint_label_map_path: "LABEL_MAP"
keypoint_estimation_task {{ task_name: "pose" keypoint_class_name: "person" loss {{ {FOCAL} {L1} }} }}
"""
MASKS = """
mask_estimation_task { classification_loss { weighted_sigmoid { } } mask_height: 64 mask_width: 64 }
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    versions = {"boxwright": boxwright.__version__, "torch": torch.__version__}
    rows: dict[str, Any] = {**versions, "load per core": round(load()[0], 2), "threads": arguments.threads}
    for name, text in (
        ("boxes", BOXES),
        ("boxes, keypoints", BOXES + KEYPOINTS),
        ("boxes, keypoints, masks", BOXES + KEYPOINTS + MASKS),
    ):
        detector = built(text)
        rows[name] = of_steps(detector, arguments.steps)
        for images in (BATCH, 1):
            rows[name][f"{images} images" if images > 1 else "1 image"] = of_inferences(
                detector, images, arguments.steps
            )
        print(name, json.dumps(rows[name]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def built(text: str) -> Detector:
    """Build a detector of one class map of a person's keypoints."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keypoints.pbtxt"
        points = " ".join(f'keypoints {{ id: {number} label: "point {number}" }}' for number in range(POINTS))
        path.write_text(f'item {{ id: 1 name: "person" {points} }}')
        message = parse_message(f"center_net {{ {text.replace('LABEL_MAP', str(path))} }}", m.DetectionModel)
        torch.manual_seed(0)
        return build_detector(message).to(memory_format=torch.channels_last)


def made_up() -> Targets:
    """Return objects of random sizes with keypoints in their boxes and masks that fill these."""
    generator = torch.Generator().manual_seed(1)
    low = torch.rand(BATCH, OBJECTS, 2, generator=generator) * SIDE * 0.7
    boxes = torch.cat([low, low + 8 + torch.rand(BATCH, OBJECTS, 2, generator=generator) * SIDE * 0.25], -1)
    share = torch.rand(BATCH, OBJECTS, POINTS, 2, generator=generator)
    keypoints = boxes[..., None, :2] + share * (boxes[..., None, 2:] - boxes[..., None, :2])
    masks = [np.zeros((OBJECTS, SIDE, SIDE), np.uint8) for _ in range(BATCH)]
    for image, corners in zip(masks, boxes.long().tolist(), strict=True):
        for mask, (left, top, right, bottom) in zip(image, corners, strict=True):
            mask[top:bottom, left:right] = 1
    ones = torch.ones(BATCH, OBJECTS)
    stacked = InstanceMasks.stack(masks, OBJECTS, (SIDE, SIDE))
    labels = torch.arange(OBJECTS).expand(BATCH, -1) % 3
    return Targets(boxes, labels, ones, ones > 0, keypoints=keypoints, masks=stacked)


def of_steps(detector: Detector, count: int) -> dict[str, Any]:
    """Return the milliseconds of a step, and the criterion's share."""
    detector.train()
    inputs, sizes = detector.preprocess(torch.randint(0, 256, (BATCH, SIDE, SIDE, 3), dtype=torch.uint8))
    targets = made_up()
    weights = [one for one in detector.parameters() if one.requires_grad]
    optimizer = torch.optim.SGD(weights, 1e-12, momentum=0.9)
    wholes, parts = [], []
    for _ in range(WARM_UPS + count):
        began = time.process_time()
        optimizer.zero_grad(set_to_none=True)
        predictions = detector.predict(inputs, sizes, targets)
        reached: list[float] = []
        for tensor in tensors_of(predictions.stages):
            tensor.register_hook(lambda _gradient, at=reached: at.append(time.process_time()))
        predicted = time.process_time()
        loss = LossTerm.sum(detector.criterion(predictions, targets))
        # Autograd goes back through what was computed last first: the criterion, then the layers of the network, the
        # first of which starts with a hook.
        torch.autograd.backward(loss)
        optimizer.step()
        wholes.append(1000 * (time.process_time() - began))
        parts.append(1000 * (reached[0] - predicted))
    return summary("step", "criterion", wholes, parts)


def of_inferences(detector: Detector, images: int, count: int) -> dict[str, float]:
    """Return the milliseconds of an inference of so many images at once, and the share outside the network."""
    detector.eval()
    image = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    marks: list[float] = []
    before = detector.network.register_forward_pre_hook(lambda *_: marks.append(time.process_time()))
    after = detector.network.register_forward_hook(lambda *_: marks.append(time.process_time()))
    wholes, parts = [], []
    for _ in range(WARM_UPS + count):
        marks.clear()
        began = time.process_time()
        detector.detect([image] * images)
        wholes.append(1000 * (time.process_time() - began))
        parts.append(wholes[-1] - 1000 * (marks[1] - marks[0]))
    before.remove()
    after.remove()
    return summary("inference", "outside", wholes, parts)


def summary(whole: str, part: str, wholes: list[float], parts: list[float]) -> dict[str, float]:
    """Return the medians of what was measured after warming up."""
    shares = np.array(parts[WARM_UPS:]) / np.array(wholes[WARM_UPS:])
    return {
        f"{whole}_ms": round(float(np.median(wholes[WARM_UPS:])), 1),
        f"{part}_ms": round(float(np.median(parts[WARM_UPS:])), 1),
        f"{part}_share": round(float(np.median(shares)), 3),
    }


if __name__ == "__main__":
    main()
