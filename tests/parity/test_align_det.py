"""AlignDet against its recordings: where RoIConv looks, what each box is to learn, what is left of a level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.ops import deform_conv2d

import boxwright as bw
from boxwright.config.load import parse_message
from boxwright.families.align_det.network import AlignDet
from boxwright.nn.criteria.anchor import CascadeCriterion
from boxwright.nn.criteria.target_assigner import IGNORED, UNMATCHED
from boxwright.nn.heads.aligned import AlignedHead, Border, RoIConv, box_offsets, roi_conv
from boxwright.nn.ops.boxes import FasterRcnnBoxCoder, clip_boxes
from boxwright.nn.postprocessing.anchor import CascadePostprocessor
from boxwright.pipeline import messages as m
from boxwright.types import AnchorPredictions, Targets
from tests.conftest import assert_close
from tests.parity.recordings import Case, components
from tests.parity.test_srn import SWAP, inclusive

CASES = components("aligndet")
ABSENT = "the folder has no recordings of AlignDet"
CODER = FasterRcnnBoxCoder(1.0, 1.0, 1.0, 1.0)
BORDERS: tuple[tuple[Border, str], ...] = (("last", "mxnet"), ("zero", "zero_pad"))


def detector_of(step: str = "step { }", classes: int = 80) -> bw.Detector:
    text = f"""align_det {{ num_classes: {classes} image_resizer {{ identity_resizer {{ }} }} {step}
      feature_extractor {{ type: "timm/resnet18" }} }}"""
    return bw.build_detector(parse_message(text, m.DetectionModel))


def exclusive(boxes: Any) -> Tensor:
    """Bring their boxes, which end on their last pixel, to ours, which end behind it."""
    found = torch.from_numpy(np.ascontiguousarray(boxes))
    return torch.cat([found[..., :2], found[..., 2:] + 1], -1)


def tensor(case: Case, name: str) -> Tensor:
    return torch.from_numpy(case.array(name))


def sampled(case: Case) -> None:
    """Every tap by itself: a kernel that returns what each of them reads."""
    features, boxes = tensor(case, "in/feature")[None], exclusive(case.array("in/boxes"))[None]
    kernel_size = case.params["kernel"]
    offsets = box_offsets(boxes, (features.shape[2], features.shape[3]), case.params["stride"], kernel_size)
    assert_close(offsets[0], case.array("out/offset"), 1e-9, 0)
    if case.id.endswith("/window"):
        assert not offsets.any()
    taps = features.shape[1] * kernel_size**2
    each = torch.eye(taps, dtype=features.dtype).view(taps, features.shape[1], kernel_size, kernel_size)
    assert_close(roi_conv(features, offsets, each, border="last")[0], case.array("out/sampled"))
    plain = roi_conv(features, offsets, each, border="zero")
    assert_close(plain[0], case.array("out/sampled_zero_pad"))
    assert_close(plain, deform_conv2d(features, offsets, each, padding=(kernel_size - 1) // 2))


def head(case: Case) -> None:
    """The sampling, and the hidden layer behind it, as the detector has them."""
    features, boxes = tensor(case, "in/feature")[None], exclusive(case.array("in/boxes"))[None]
    kernel_size = case.params["kernel"]
    w1, w2 = tensor(case, "in/w1"), tensor(case, "in/w2")
    for border, name in BORDERS:
        kind = {"last": "LAST_CELL", "zero": "ZERO"}[border]
        network = detector_of(f"depth: {features.shape[1]} step {{ depth: {len(w1)} border: {kind} }}").network
        assert isinstance(network, AlignDet)
        aligned = network.aligned[0]
        assert isinstance(aligned, AlignedHead)
        assert len(aligned.samplings) == len(aligned.hidden) == 1
        sampling = aligned.samplings[0].double()
        assert isinstance(sampling, RoIConv)
        sampling.conv.load_state_dict(
            {"weight": w1.view(len(w1), -1, kernel_size, kernel_size), "bias": tensor(case, "in/b1")}
        )
        first = aligned.activation(sampling(features, boxes, case.params["stride"]))[0].detach()
        assert_close(first, case.array(f"out/conv1_{name}"), 1e-5, 1e-4)
        # The recorded layer is narrower than the one before it, which ours is not.
        second = torch.relu(torch.einsum("oc,chw->ohw", w2, first) + tensor(case, "in/b2")[:, None, None])
        assert_close(second, case.array(f"out/conv2_{name}"), 1e-5, 1e-4)


def anchors(case: Case) -> None:
    strides = case.params["strides"]
    network = detector_of().network
    assert isinstance(network, AlignDet)
    by_level = network.anchors.generator([tuple(case.params["feature_map_shape"])] * 5, (999, 999))
    for stride, found in zip(strides, by_level, strict=True):
        assert_close(inclusive(found), case.array(f"out/s{stride}"))


def decode(case: Case) -> None:
    height, width, _ = case.array("in/im_info")
    decoded = CODER.decode(tensor(case, "in/deltas")[:, SWAP], exclusive(case.array("in/boxes")))
    found = clip_boxes(decoded, height, width)
    wanted = exclusive(case.array("out/decoded"))
    # Theirs leaves a pixel of what lies outside.
    inside = ((found[:, 2:] - found[:, :2]) >= 1).all(1)
    assert inside.any()
    assert_close(found[inside], wanted[inside])


def targets(case: Case) -> None:
    criterion = detector_of().criterion
    assert isinstance(criterion, CascadeCriterion)
    params, rows = case.params, case.array("in/groundtruth")
    valid = torch.from_numpy(rows[:, 4] > 0)[None]
    boxes = torch.where(valid[..., None], exclusive(rows[:, :4])[None], 0.0)
    labels = torch.where(valid, torch.from_numpy(rows[:, 4]).long()[None] - 1, 0)
    truth = Targets(boxes, labels, valid.float(), valid)
    height, width, _ = case.array("in/im_info").tolist()
    first = case.has("out/fg_count")
    if first:
        network = detector_of().network
        assert isinstance(network, AlignDet)
        tall, wide = ("short", "long") if height < width else ("long", "short")
        grids = list(zip(params[tall], params[wide], strict=True))
        anchors = torch.cat(network.anchors.generator(grids, (int(height), int(width))))
    else:
        anchors = exclusive(case.array("in/boxes"))[None]
    count = anchors.shape[-2]
    step = AnchorPredictions(torch.zeros(1, count, 4), torch.zeros(1, count, 80), anchors)
    judge = criterion.steps[0 if first else 1].criterion
    found, _, _ = judge.assign(step, truth)
    matched = found.match[0]
    classes = torch.where(matched >= 0, labels[0, matched.clamp(min=0)] + 1, 0)
    classes = torch.where(matched == IGNORED, -1, classes)
    assert classes.tolist() == case.array("out/label").tolist()
    positive = (matched >= 0).numpy()
    assert np.array_equal(np.broadcast_to(positive, (4, count)), case.array("out/weight") > 0)
    assert torch.equal(found.class_weights[0, :, 0] > 0, matched != IGNORED)
    if first:
        assert max(int(positive.sum()), 1) == case.array("out/fg_count")
    codes = found.box_codes[0][:, SWAP].numpy()
    assert_close(codes[positive], case.array("out/target").T[positive])
    if not valid.any():
        assert (matched == UNMATCHED).all()


def loss(case: Case) -> None:
    """Sums over the batch; the release divides by one more than the positives, ours by the positives."""
    criterion = detector_of(classes=6).criterion
    assert isinstance(criterion, CascadeCriterion)
    judge = criterion.steps[1].criterion
    labels = tensor(case, "in/labels")
    logits = tensor(case, "in/logits").requires_grad_()
    codes = tensor(case, "in/deltas").transpose(1, 2).clone().requires_grad_()
    positive = (labels > 0).double()
    assert case.params["normalizer"] == positive.sum() + 1
    wanted = torch.nn.functional.one_hot(labels.clamp(min=0), 7)[..., 1:].double()
    class_loss = judge.classification(logits, wanted, (labels >= 0).double()[..., None]).sum()
    box_loss = judge.localization(codes, tensor(case, "in/targets").transpose(1, 2), positive).sum()
    box_loss = judge.normalizer.localization_weight * box_loss
    for found, leaf, kind, array in (
        (class_loss, logits, "classification_loss", "grad_logits"),
        (box_loss, codes, "box_loss", "grad_deltas"),
    ):
        mean = found / case.params["normalizer"]
        assert_close(mean.detach(), case.array(f"out/{kind}"))
        (gradient,) = torch.autograd.grad(mean, leaf)
        recorded = case.array(f"out/{array}")
        assert_close(gradient if leaf is logits else gradient.transpose(1, 2), recorded, 1e-6)


def level(case: Case) -> None:
    """Which pairs of cell and class take part, best first, and where their boxes lie."""
    probabilities = tensor(case, "in/class_probabilities")
    post = detector_of(classes=len(probabilities)).postprocessor
    assert isinstance(post, CascadePostprocessor)
    candidates = post.detection.candidates
    assert candidates is not None
    assert (candidates.count, candidates.score_threshold, candidates.any_score_coarsest) == (1000, 0.05, 1)
    threshold, count = case.params["threshold"], case.params["pre_nms_top_n"]
    rule = replace(
        candidates,
        count=count,
        score_threshold=threshold or candidates.score_threshold,
        any_score_coarsest=int(threshold == 0),
    )
    grid = (probabilities.shape[1], probabilities.shape[2])
    scores = probabilities.permute(1, 2, 0).reshape(1, -1, len(probabilities))
    kept = rule(scores, [grid], [scores.shape[1]])[0].flatten()
    order = kept.argsort(descending=True, stable=True)[: int((kept > -torch.inf).sum())]
    cells, classes = order // len(probabilities), order % len(probabilities)
    assert_close(kept[order], case.array("out/scores"))
    assert classes.tolist() in (case.array("out/classes").tolist(), (case.array("out/classes") - 1).tolist())
    height, width, _ = case.array("in/im_info")
    decoded = CODER.decode(tensor(case, "in/deltas")[:, SWAP], exclusive(case.array("in/proposals")))
    found = clip_boxes(decoded, height, width)[cells]
    assert_close(inclusive(found), case.array("out/boxes"), 1e-2)


CHECKS: dict[str, Callable[[Case], None]] = {
    "roi_conv": sampled,
    "align_head": head,
    "anchors": anchors,
    "decode": decode,
    "targets": targets,
    "loss": loss,
    "detections_level": level,
}


def test_every_kind_of_recording_is_known() -> None:
    if not CASES:
        pytest.skip(ABSENT)
    assert {case.kind for case in CASES} <= set(CHECKS)
    assert len(CASES) >= 39


@pytest.mark.slow_cases(
    *(f"targets/step{step}_{image}" for step in (1, 2) for image in (1, 2, 3)),
    *(f"detections_level/{level}" for level in (1, 2)),
)
@pytest.mark.parametrize("case", [case for case in CASES if case.kind in CHECKS], ids=lambda case: str(case.id))
def test_component(case: Case) -> None:
    CHECKS[case.kind](case)


def test_anchors_of_a_picture() -> None:
    """At 800 × 1333 there are 22,300: one a cell."""
    grids = [(100, 167), (50, 84), (25, 42), (13, 21), (7, 11)]
    network = detector_of().network
    assert isinstance(network, AlignDet)
    by_level = network.anchors.generator(grids, (800, 1333))
    assert sum(map(len, by_level)) == 22_300
    sides = [round(float(boxes[0, 2] - boxes[0, 0]), 1) for boxes in by_level]
    assert sides == [40.3, 80.6, 161.3, 322.5, 645.1]
    with torch.device("meta"):
        maps = network.to("meta").feature_maps(torch.zeros(1, 3, 800, 1333))
    assert [tuple(level.shape[2:]) for level in maps] == grids
