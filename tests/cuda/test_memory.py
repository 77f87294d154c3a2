"""What a criterion takes beside its predictions, by PyTorch's own tracker, on tensors without data."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

import boxwright as bw
from boxwright.types import AnchorPredictions, Targets
from tests.cuda.fake import fake_cuda

OBJECTS, ANCHORS, COLUMNS = 128, 76725, 91


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "images"),
    [pytest.param("cpu", 4, id="cpu"), pytest.param("cuda", 16, id="cuda", marks=pytest.mark.slow)],
)
def test_retinanet_takes_little_more_than_one_table_of_overlaps(device: str, images: int) -> None:
    """RetinaNet at 640 pixels, 128 objects an image; on the CPU the share is the same with 4 images and with 16.

    On the CPU with the backward pass, into gradients of logits and codes; on a GPU without, as the walk that stands for
    autograd's engine frees nothing on its way.
    """
    with torch.device("meta"):  # of the network nothing is needed
        criterion = bw.build_detector(bw.load_config("preset:ssd_resnet50_v1_fpn_640")).criterion
    table = images * OBJECTS * ANCHORS * 4
    mode: AbstractContextManager[object] = fake_cuda() if device == "cuda" else FakeTensorMode()
    with mode, torch.device(device):
        logits = torch.zeros(images, ANCHORS, COLUMNS).requires_grad_()
        codes = torch.zeros(images, ANCHORS, 4).requires_grad_()
        predictions = AnchorPredictions(codes, logits, torch.zeros(ANCHORS, 4), input_size=(640, 640))
        ones = torch.ones(images, OBJECTS)
        targets = Targets(torch.zeros(images, OBJECTS, 4), ones.long(), ones, ones.bool())
        tracker = MemTracker()
        tracker.track_external(logits, codes, predictions.anchors, targets.boxes, targets.labels, ones, targets.valid)
        with tracker:
            before = total(tracker, "current", device)
            terms = criterion(predictions, targets)
            if device == "cpu":
                torch.autograd.backward(torch.stack([term.total for term in terms.values()]).sum())
                assert logits.grad is not None
                assert logits.grad.shape == logits.shape
            peak = total(tracker, "peak", device)
    assert table < peak - before <= 1.5 * table, (peak - before) / table


def total(tracker: MemTracker, moment: str, device: str) -> int:
    """Return the bytes on a device, now or at their most."""
    (found,) = [sizes["Total"] for where, sizes in tracker.get_tracker_snapshot(moment).items() if where.type == device]
    return int(found)
