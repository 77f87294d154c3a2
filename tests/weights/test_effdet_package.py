"""effdet's published files by name, against effdet itself: each of its networks with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import boxwright as bw
from boxwright.pipeline.detector import build_detector
from boxwright.types.predictions import AnchorPredictions
from boxwright.weights.published import published_weights

NAMES = [weights.name for weights in published_weights() if weights.name.startswith("effdet_")]
# Places of anchors in our order, ratio by ratio, among effdet's, scale by scale.
ORDER = [0, 3, 6, 1, 4, 7, 2, 5, 8]
REASON = "effdet itself: uv pip install --group oracles"


def randomize(network: nn.Module, side: int) -> None:
    """Fill a network with random numbers, and statistics of its own activations, so that images reach the outputs."""
    random = torch.Generator().manual_seed(1)
    for name, value in network.state_dict().items():
        if not value.dtype.is_floating_point:
            continue
        if value.ndim > 1:
            value.copy_(torch.randn(value.shape, generator=random) / value[0].numel() ** 0.5)
        elif name.endswith("bias"):
            value.copy_(torch.randn(value.shape, generator=random) * 0.05)
        else:
            value.copy_(torch.rand(value.shape, generator=random) * 0.5 + 0.75)
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    network(torch.randn(4, 3, side, side, generator=random))
    for norm in norms:
        norm.eval()


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_published_file_computes_what_effdet_computes(name: str, tmp_path: Path) -> None:
    effdet: Any = pytest.importorskip("effdet", reason=REASON)
    (weights,) = (one for one in published_weights() if one.name == name)
    theirs: Any = effdet.config.get_efficientdet_config(name.removeprefix("effdet_"))
    side = 2 ** (theirs.max_level + 1)  # two cells of the coarsest map
    theirs.image_size = (side, side)
    network = effdet.EfficientDet(theirs, pretrained_backbone=False).eval()
    randomize(network, side)
    network.box_net.predict.conv_pw.weight.mul_(0.01)  # whose outputs are logarithms of sides
    torch.save(network.state_dict(), tmp_path / weights.file)
    detector = build_detector(weights.configuration().model).eval()
    report = bw.load_weights(detector, tmp_path / weights.file)
    assert not report.kept
    images = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(2))
    classes, codes = (
        torch.cat([level.permute(0, 2, 3, 1).reshape(-1, 9, level.shape[1] // 9) for level in levels])
        for levels in network(images)
    )
    places = effdet.anchors.Anchors.from_config(theirs).boxes
    boxes = effdet.anchors.decode_box_outputs(codes.flatten(0, 1), places, output_xyxy=True)
    predictions = detector.predict(images)
    assert isinstance(predictions, AnchorPredictions)
    decoded = detector.postprocessor.decode(predictions).boxes[0]  # type: ignore[attr-defined]
    wanted = classes[:, ORDER].flatten(0, 1)
    assert torch.allclose(predictions.class_logits[0], wanted, atol=1e-5 * float(wanted.abs().max()))
    assert torch.allclose(decoded, boxes.view(-1, 9, 4)[:, ORDER].flatten(0, 1), rtol=1e-4, atol=1e-2)
