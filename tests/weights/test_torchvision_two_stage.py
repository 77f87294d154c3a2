"""torchvision's Faster and Mask R-CNN, loaded by name: the same detections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.models import detection

import boxwright as bw
from boxwright.pipeline.detector import build_detector
from boxwright.weights.load_weights import load_weights
from tests.conftest import nothing_drawn

SIZES = ["model.faster_rcnn.image_resizer.keep_aspect_ratio_resizer.min_dimension=192"]
SIZES += ["model.faster_rcnn.image_resizer.keep_aspect_ratio_resizer.max_dimension=320"]
# A third of the usual: each passes through the box head's layers of 1024.
PROPOSALS = 300
SIZES += [f"model.faster_rcnn.first_stage_max_proposals={PROPOSALS}"]


def theirs(name: str) -> nn.Module:
    """Make torchvision's with random weights that find something: its fresh ones find nothing."""
    torch.manual_seed(11)
    options = {"min_size": 192, "max_size": 320, "rpn_post_nms_top_n_test": PROPOSALS}
    model: nn.Module = getattr(detection, name)(weights=None, weights_backbone=None, **options)
    state = model.state_dict()
    for key, spread in (("cls_score.weight", 0.02), ("bbox_pred.weight", 0.002), ("cls_logits.weight", 0.003)):
        for full in [full for full in state if full.endswith(key)]:
            state[full].normal_(0, spread)
    if "roi_heads.mask_predictor.mask_fcn_logits.weight" in state:
        state["roi_heads.mask_predictor.mask_fcn_logits.weight"].normal_(0, 0.05)
    for full in [full for full in state if "bn" in full and full.endswith("running_var")]:
        state[full].uniform_(0.5, 1.5)
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fasterrcnn", "maskrcnn"])
def test_equal_detections(kind: str, tmp_path: Path) -> None:
    model = theirs(f"{kind}_resnet50_fpn")
    torch.save(model.state_dict(), tmp_path / "theirs.pth")
    config = bw.load_config(f"preset:torchvision_{kind}_resnet50_fpn_coco", overrides=SIZES)
    with nothing_drawn():  # all is loaded
        ours = build_detector(config)
    report = load_weights(ours, tmp_path / "theirs.pth")
    assert not report.kept
    assert not [name for name in report.unused if not name.endswith("num_batches_tracked")]
    generator = np.random.default_rng(5)
    found_in_all = 0
    # Inputs of multiples of 64: where the fifth level has an odd side, torchvision lays the sixth's anchors closer.
    for height, width in ((180, 240), (240, 180), (120, 200)):
        coarse = generator.integers(0, 255, (6, 7, 3), np.uint8)
        image = np.kron(coarse, np.ones((height // 6 + 1, width // 7 + 1, 1), np.uint8))[:height, :width]
        (found,) = ours.detect([image])
        with torch.no_grad():
            (wanted,) = model([torch.from_numpy(image).permute(2, 0, 1) / 255])
        assert len(found) == len(wanted["scores"]) > 0
        found_in_all += len(found)
        expected = partners(found, wanted)
        torch.testing.assert_close(found.scores, wanted["scores"][expected], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(found.boxes, wanted["boxes"][expected], atol=1e-2, rtol=1e-4)
        if kind == "maskrcnn":
            assert found.masks is not None
            within = masks_within_boxes(model, image)
            # A box that differs in its last digits is cropped elsewhere by as much.
            torch.testing.assert_close(found.masks, within[expected], atol=1e-3, rtol=1e-3)
    assert found_in_all > 50


def partners(found: bw.Detections[Tensor], wanted: dict[str, Tensor]) -> Tensor:
    """Return, for each of ours, which of theirs is most like it, of the same class: scores tie here and there."""
    apart = (found.boxes[:, None] - wanted["boxes"]).abs().amax(-1) + (found.scores[:, None] - wanted["scores"]).abs()
    other = found.labels[:, None] + 1 != wanted["labels"]
    cost, chosen = apart.masked_fill(other, torch.inf), []
    for row in cost:
        chosen.append(int(row.argmin()))
        cost[:, chosen[-1]] = torch.inf  # each is one's partner only
    return torch.tensor(chosen, dtype=torch.int64)


def masks_within_boxes(model: Any, image: np.ndarray[Any, Any]) -> Tensor:
    """Return torchvision's masks before it pastes them, which it does with other corners."""
    with torch.no_grad():
        images, _ = model.transform([torch.from_numpy(image).permute(2, 0, 1) / 255])
        features = model.backbone(images.tensors)
        proposals, _ = model.rpn(images, features)
        detections, _ = model.roi_heads(features, proposals, images.image_sizes)
    masks: Tensor = detections[0]["masks"][:, 0]
    return masks
