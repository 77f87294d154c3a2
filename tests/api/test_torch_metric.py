"""Our metric of torchmetrics beside torchmetrics' own, which pycocotools computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def _torchmetrics() -> None:
    """Import it no sooner than a test needs it: it takes three seconds, of each process that collects."""
    pytest.importorskip("torchmetrics")


NAMES = {
    "map": "Precision/mAP",
    "map_50": "Precision/mAP@.50IOU",
    "map_75": "Precision/mAP@.75IOU",
    "map_small": "Precision/mAP (small)",
    "map_medium": "Precision/mAP (medium)",
    "map_large": "Precision/mAP (large)",
    "mar_1": "Recall/AR@1",
    "mar_10": "Recall/AR@10",
    "mar_100": "Recall/AR@100",
}


def images(count: int, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Objects of three sizes, and detections near them, doubled, confused and made up."""
    generator = torch.Generator().manual_seed(seed)

    def boxes(number: int) -> torch.Tensor:
        corner = torch.rand(number, 2, generator=generator) * 200
        side = torch.rand(number, 2, generator=generator) ** 3 * 200 + 4
        return torch.cat([corner, corner + side], 1)

    found, there = [], []
    for number in range(count):
        truth = boxes(number % 5)
        labels = torch.randint(3, (len(truth),), generator=generator)
        moved = truth.repeat(2, 1) + torch.randn(2 * len(truth), 4, generator=generator) * 3
        every = torch.cat([moved, boxes(3)])
        classes = torch.cat([labels.repeat(2), torch.randint(3, (3,), generator=generator)])
        found.append({"boxes": every, "scores": torch.rand(len(every), generator=generator), "labels": classes})
        there.append({"boxes": truth, "labels": labels, "iscrowd": (torch.arange(len(labels)) == 3).long()})
    return found, there


def test_it_equals_torchmetrics_own() -> None:
    from torchmetrics.detection import MeanAveragePrecision

    from boxwright.api.torch_metric import CocoMetric

    # Its own recalls and overlaps are float32, so that a recall of exactly 0.07 is below its 0.07: COCO's are float64.
    exact = {"iou_thresholds": np.linspace(0.5, 0.95, 10).tolist(), "rec_thresholds": np.linspace(0, 1, 101).tolist()}
    ours, theirs = CocoMetric(["a", "b", "c"]), MeanAveragePrecision(backend="pycocotools", **exact)
    for seed in range(2):
        found, there = images(10, seed)
        ours.update(found, there)
        theirs.update(found, there)
    values, expected = ours.compute(), theirs.compute()
    for key, name in NAMES.items():
        assert float(values[f"DetectionBoxes_{name}"]) == pytest.approx(float(expected[key]), abs=1e-6), key
    assert 0.05 < float(expected["map"]) < 0.95


def test_as_many_images_of_both() -> None:
    from boxwright.api.torch_metric import CocoMetric

    with pytest.raises(ValueError, match="shorter"):
        CocoMetric(["a"]).update(images(2, 0)[0], images(1, 0)[1])
