from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.ops import nms

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.families.shared.post_processing import build_nms, build_score_converter
from boxwright.nn.ops.boxes import pairwise_iou
from boxwright.nn.postprocessing.anchor import ScoreConverter
from boxwright.nn.postprocessing.nms import (
    BestOfClass,
    BestOfImage,
    ClassAgnostic,
    LinearLowering,
    Nms,
    PerClass,
    SoftPerClass,
    SoftVoting,
    Voting,
    _from_operator,
    _pairs_on_gpu,
    decompositions,
    operator_arguments,
    pair_decompositions,
    suppress_on_cuda,
)
from boxwright.nn.suppression import fixed_shape, image_by_image
from boxwright.nn.suppression.fixed_shape import fits_on_gpu
from boxwright.nn.suppression.image_by_image import suppress_pairs
from boxwright.pipeline import messages as m
from boxwright.types import PaddedDetections
from tests.conftest import GOLDEN, assert_close, xyxy, yxyx
from tests.exporters.small_detectors import FAMILIES, build, pictures

RECORDED = np.load(GOLDEN / "tensorflow_ops.npz")


def hard(score: float, iou: float = 0.6, per_class: int = 100, total: int = 100) -> Nms:
    """Suppress each class by itself."""
    return Nms(PerClass(iou, per_class), score, total)


def soft(sigma: float, score: float, per_class: int = 100, total: int = 100) -> Nms:
    return Nms(SoftPerClass(sigma, per_class), score, total)


def exhaustive(
    boxes: torch.Tensor, scores: torch.Tensor, settings: Nms, window: torch.Tensor
) -> list[tuple[float, int, int]]:
    """Suppress class by class over everything: TF's procedure, written out."""
    rows, rules = [], settings.suppression
    assert isinstance(rules, PerClass)
    for label in range(scores.shape[1]):
        above = torch.nonzero(scores[:, label] > settings.score_threshold).flatten()
        kept = above[nms(boxes[above], scores[above, label], rules.iou_threshold)][: rules.max_detections_per_class]
        for anchor in kept.tolist():
            box = boxes[anchor].clamp(min=0)
            box = torch.minimum(box, window.flip(0).repeat(2))
            if (box[2] - box[0]) * (box[3] - box[1]) > 0:
                rows.append((scores[anchor, label].item(), label, anchor))
    return sorted(rows, key=lambda row: -row[0])[: settings.max_total_detections]


@pytest.mark.slow_except("0")
@pytest.mark.parametrize("seed", range(4))
def test_equals_the_exhaustive_computation(seed: int) -> None:
    """Over twenty thousand candidates, of which the first few thousand are tried first."""
    generator = torch.Generator().manual_seed(seed)
    corner, side = torch.rand(2000, 2, generator=generator) * 300 - 10, torch.rand(2000, 2, generator=generator) * 60
    boxes, scores = torch.cat([corner, corner + side], 1), torch.rand(2000, 12, generator=generator)
    window = torch.tensor([200.0, 260.0])
    settings = hard(0.01, 0.3 + 0.1 * seed, 5 + 20 * seed, 50 + 300 * seed)
    found = settings(boxes[None], scores[None], window[None]).image(0)
    expected = exhaustive(boxes, scores, settings, window)
    assert list(zip(found.scores.tolist(), found.labels.tolist(), found.anchors.tolist(), strict=True)) == expected


@pytest.mark.parametrize("levels", [2, 7, 300])
@pytest.mark.parametrize("anchors", [40, 1500])
def test_equal_scores_and_scores_that_are_no_numbers(levels: int, anchors: int) -> None:
    """Of a view with a background column, as scores are; up to 16,500 pairs, of which thousands are equal."""
    generator = torch.Generator().manual_seed(levels)
    corner, side = torch.rand(anchors, 2, generator=generator) * 300 - 10, torch.rand(anchors, 2, generator=generator)
    boxes = torch.cat([corner, corner + 60 * side], 1)
    scores = (torch.randint(levels, (anchors, 12), generator=generator) / levels)[:, 1:]
    valid = scores.clone()
    broken = torch.rand(scores.shape, generator=generator) < 0.05
    scores[broken], valid[broken] = torch.nan, 0.0
    scores[anchors // 2, 3] = valid[anchors // 2, 3] = torch.inf
    window = torch.tensor([200.0, 260.0])
    settings = hard(0.01, 0.4, 300, 900)
    found = settings(boxes[None], scores[None], window[None]).image(0)
    expected = exhaustive(boxes, valid, settings, window)
    assert len(expected) > 100
    assert rows(found) == expected


def rows(kept: PaddedDetections) -> list[tuple[float, int, int]]:
    return list(zip(kept.scores.tolist(), kept.labels.tolist(), kept.anchors.tolist(), strict=True))


@pytest.mark.slow
def test_every_pair_passing_is_still_exact() -> None:
    """51,150 anchors of 90 classes, all above the threshold."""
    generator = torch.Generator().manual_seed(1)
    corner, side = torch.rand(51150, 2, generator=generator) * 600, torch.rand(51150, 2, generator=generator) * 90
    boxes, scores = torch.cat([corner, corner + side], 1), torch.rand(51150, 90, generator=generator) * 0.9 + 0.05
    scores[:, 1:] *= torch.rand(51150, 1, generator=generator)  # crowd one class, so that suppression has work
    window = torch.tensor([640.0, 640.0])
    settings = hard(1e-8, 0.5, 100, 100)
    found = settings(boxes[None], scores[None], window[None]).image(0)
    best = scores.flatten().topk(60000).indices
    kept = torch.zeros_like(scores).flatten().index_put((best,), scores.flatten()[best]).view_as(scores)
    expected = exhaustive(boxes, kept, settings, window)
    assert len(expected) == 100
    assert sorted(rows(found)) == sorted(expected)


def test_ties_fall_to_the_first_class_and_anchor() -> None:
    """An untrained head scores everything alike; suppression must not look at millions of pairs."""
    corner = torch.rand(5000, 2, generator=torch.Generator().manual_seed(2)) * 600
    boxes = torch.cat([corner, corner + 20], 1)
    found = hard(1e-8, 0.6, 5, 12)(boxes[None], torch.full((1, 5000, 90), 0.01), torch.tensor([[700.0, 700]])).image(0)
    assert found.labels.tolist() == [0] * 5 + [1] * 5 + [2] * 2
    assert found.anchors[:5].tolist() == found.anchors[5:10].tolist()
    assert found.anchors[:2].tolist() == [0, 1]


# One where time is short: each walks through the same lines.
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
KINDS = {
    "per class": hard(0.01, 0.4, 25, 60),
    "few per class": hard(0.01, 0.3, 5, 20),
    "kept outside": replace(hard(0.01, 0.5, 25, 60), outside="keep"),
    "class-agnostic": Nms(ClassAgnostic(0.4), 0.01, 40),
    "soft": soft(0.3, 0.05, 15, 50),
    "hardly soft": soft(0.002, 0.05, 15, 50),
    "voting": Nms(Voting(), max_total_detections=80, outside="unclipped"),
    "voting of several": Nms(Voting(0.3, least_members=2), max_total_detections=80, outside="unclipped"),
    "soft voting": Nms(SoftVoting(), max_total_detections=200, outside="unclipped"),
    "best of a class, lowered": Nms(PerClass(0.45, 50), 0.01, 50, BestOfClass(20), lowering=LinearLowering(0.3, 0.05)),
    "best of the image": Nms(PerClass(0.45, 50), 0.01, 50, BestOfImage(70)),
}


def some_batch(seed: int, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(2, 250, 2, generator=generator) * 300 - 10
    side = torch.rand(2, 250, 2, generator=generator) * 60
    scores = torch.rand(2, 250, classes, generator=generator)
    return torch.cat([corner, corner + side], 2), scores, torch.tensor([[200.0, 260.0], [150.0, 100.0]])


def assert_same(found: PaddedDetections, expected: PaddedDetections) -> None:
    assert found.valid.tolist() == expected.valid.tolist()
    assert found.labels.tolist() == expected.labels.tolist()
    assert found.anchors.tolist() == expected.anchors.tolist()
    torch.testing.assert_close(found.scores, expected.scores)
    torch.testing.assert_close(found.boxes, expected.boxes, rtol=1e-4, atol=1e-3)


@pytest.mark.slow_cases("soft-0", "voting-0")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_operator_and_its_meaning_in_tensors_are_equal(kind: str, seed: int) -> None:
    """A thousand pairs: as many as the tensors look at."""
    nms, (boxes, scores, windows) = KINDS[kind], some_batch(seed)
    taking_part = scores if nms.candidates is None else nms.candidates(scores)
    expected = PaddedDetections(
        *torch.ops.boxwright.suppress(boxes, taking_part, windows, *operator_arguments(nms).values())
    )
    assert_same(nms(boxes, scores, windows), expected)  # outside of graphs its function is called
    found = nms.in_tensors(boxes, scores, windows, suppress_pairs=suppress_pairs)
    assert expected.valid.any()
    assert_same(found, expected)
    by_class = boxes[:, :, None] + torch.arange(4.0)[:, None] * 7
    if "voting" not in kind and kind != "class-agnostic":
        found = nms.in_tensors(by_class, scores, windows, suppress_pairs=suppress_pairs)
        assert_same(found, nms(by_class, scores, windows))


@pytest.mark.slow_except("4-0.3-5-0")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("classes", "iou", "most"), [(1, 0.5, 300), (4, 0.3, 5), (4, 0.7, 60)])
def test_suppression_of_pairs_and_its_meaning_are_equal(classes: int, iou: float, most: int, seed: int) -> None:
    boxes, scores, _ = some_batch(seed, 1)
    generator = torch.Generator().manual_seed(seed)
    ranked = scores[..., 0].sort(1, descending=True).values - 0.2  # a fifth takes no part
    pairs = (boxes, ranked, torch.randint(classes, ranked.shape, generator=generator), classes, iou, most)
    kept = torch.ops.boxwright.suppress_pairs(*pairs)
    meaning = decompositions()[torch.ops.boxwright.suppress_pairs.default]
    assert torch.equal(kept, meaning(*pairs))
    assert 0 < int(kept.sum()) < kept.numel()
    assert not (kept & (ranked < 0)).any()
    for image in range(2):  # by loops
        overlaps = pairwise_iou(boxes[image], boxes[image]).tolist()
        chosen: list[int] = []
        for one in range(250):
            own = [other for other in chosen if pairs[2][image, other] == pairs[2][image, one]]
            far = all(overlaps[one][other] <= iou for other in own)
            if ranked[image, one] >= 0 and far and len(own) < most:
                chosen.append(one)
        assert kept[image].nonzero().squeeze(1).tolist() == chosen
    torch.library.opcheck(torch.ops.boxwright.suppress_pairs.default, pairs)


@pytest.mark.parametrize("kind", ["per class", "class-agnostic", "soft"])
def test_a_graph_says_where_candidates_were_too_few(kind: str) -> None:
    nms, (boxes, scores, windows) = replace(KINDS[kind], max_total_detections=128), some_batch(3)
    boxes, scores = boxes.repeat(1, 9, 1), scores.repeat(1, 9, 1)  # 2250 boxes, each nine times
    scores[1] = torch.where(scores[1] > 0.9, scores[1], 0.0)
    found = nms.in_tensors(boxes, scores, windows, suppress_pairs=suppress_pairs)
    expected = nms(boxes, scores, windows)
    assert expected.complete is not None
    assert expected.complete.all()
    assert found.complete is not None
    assert found.complete.tolist() == [False, True]
    torch.testing.assert_close(found.scores[1], expected.scores[1])
    if kind == "soft":  # its rounds would take a minute
        return
    more = nms.in_tensors(boxes, scores, windows, suppress_pairs=suppress_pairs, times=16)
    assert more.complete is not None
    assert more.complete.all()
    torch.testing.assert_close(more.scores, expected.scores)
    nine_places = replace(nms, max_total_detections=9, suppression=PerClass(0.4, 9))
    full = nine_places.in_tensors(boxes, scores, windows, suppress_pairs=suppress_pairs)
    assert full.complete is not None
    assert full.complete.all()


@pytest.mark.slow_cases("class-agnostic-0")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["per class", "class-agnostic"])
def test_what_a_gpu_calls_complete_is_what_the_operator_finds(kind: str, seed: int) -> None:
    nms, (boxes, scores, windows) = KINDS[kind], some_batch(seed)
    found = nms.in_rounds(boxes, scores, windows)
    assert found.complete is not None
    assert found.complete.all()
    assert_same(found, nms(boxes, scores, windows))


@pytest.mark.parametrize("seed", range(40))
def test_a_gpu_suppresses_crowded_equal_and_degenerate_boxes_as_a_cpu(seed: int) -> None:
    """Incomplete images are suppressed again, so that all are exact; few candidates make many incomplete."""
    boxes, scores, windows = crowded_batch(seed)
    nms = hard((0.0, 0.3)[seed % 2], iou=(0.3, 0.6, 0.99)[seed % 3])
    found = PaddedDetections(*suppress_on_cuda(boxes, scores, windows, *operator_arguments(nms).values()))
    expected = nms(boxes, scores, windows)
    assert torch.equal(found.valid, expected.valid)
    assert torch.equal(found.scores, expected.scores)
    assert torch.equal(found.anchors, expected.anchors)
    assert torch.equal(found.boxes, expected.boxes)


@pytest.mark.slow_except("0")
@pytest.mark.parametrize("seed", range(0, 24, 2))
def test_kernels_suppress_crowded_equal_and_degenerate_boxes_as_a_cpu(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Triton's interpreter, where there is no GPU; for this, few boxes."""
    pytest.importorskip("triton", reason="no Triton here: nothing shows that its kernels suppress as a CPU does")
    monkeypatch.setattr("boxwright.nn.postprocessing.nms.has_kernels", lambda: True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    boxes, scores, windows = (tensor.to(device) for tensor in crowded_batch(seed))
    boxes, scores = boxes[:, :70], scores[:, :70, :2]
    nms = hard((0.0, 0.3)[seed % 4 // 2], iou=(0.3, 0.6, 0.99)[seed % 3], per_class=(100, 7)[seed % 8 == 4])
    found, expected = nms.in_rounds(boxes, scores, windows, _pairs_on_gpu(nms, scores)), nms(boxes, scores, windows)
    assert found.complete is not None
    assert found.complete.all()
    for name in ("valid", "scores", "anchors", "boxes"):
        assert torch.equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("most", [300, 1000])
def test_a_gpu_counts_exactly_where_the_network_computes_in_half_precision(most: int) -> None:
    """Under autocast, which bfloat16 counts to 256 in; no box overlaps another."""
    corners = torch.arange(1200.0)[None, :, None] * 20
    boxes, scores = torch.cat([corners, corners, corners + 10, corners + 10], -1), torch.linspace(1, 0.1, 1200)[None]
    labels = torch.zeros(1, 1200, dtype=torch.long)
    with torch.autocast("cpu", torch.bfloat16):
        kept, certain = fixed_shape.suppress_in_checked_rounds(boxes, scores, labels, 1, 0.5, most)
    assert certain.all()
    assert kept[0].nonzero().squeeze(1).tolist() == list(range(most))


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("seed", [2, 6])
def test_a_gpu_lowers_scores_in_rounds_as_a_cpu_one_after_the_other(seed: int, equal: bool) -> None:
    """Rounds do not suffice for equal scores that overlap, which is reported."""
    boxes, scores, windows = crowded_batch(seed)
    boxes[:, :, 2:] -= (boxes[:, :, 2:] - boxes[:, :, :2]) / 3  # shorter chains
    scores = (scores * 10).ceil() / 10 if equal else scores
    nms = replace(hard(0.0, iou=0.6), max_total_detections=60, lowering=LinearLowering(0.1, 0.05))
    found, expected = nms.in_rounds(boxes, scores, windows), nms(boxes, scores, windows)
    assert found.complete is not None
    assert bool(found.complete[:2].all()) is not equal
    for image in found.complete.nonzero().squeeze(1).tolist():
        ours, theirs = found.image(image), expected.image(image)
        torch.testing.assert_close(ours.scores, theirs.scores, atol=1e-6, rtol=1e-5)
        assert equal or torch.equal(ours.anchors, theirs.anchors)
    assert (expected.scores[:2] < replace(nms, lowering=None)(boxes, scores, windows).scores[:2]).any()


@pytest.mark.parametrize("outside", ["drop", "keep", "unclipped"])
@pytest.mark.parametrize("suppression", [PerClass(0.4, 9), PerClass(0.6), ClassAgnostic(0.5)])
def test_a_threshold_in_suppression_is_one_after_it(suppression: PerClass | ClassAgnostic, outside: Any) -> None:
    """What is left out comes last."""
    boxes, scores, windows = crowded_batch(2)
    nms = Nms(suppression, max_total_detections=50, outside=outside if isinstance(suppression, PerClass) else "drop")
    plain = nms(boxes, scores, windows)
    score = float(plain.scores[plain.valid].median())
    found, kept = nms.above(score)(boxes, scores, windows), plain.valid & (plain.scores >= score)
    assert torch.equal(found.valid, kept)
    assert 0 < int(kept.sum()) < int(plain.valid.sum())
    assert torch.equal(found.boxes, plain.boxes * kept[..., None])
    assert torch.equal(found.anchors, plain.anchors * kept)


def test_a_threshold_does_not_enter_voting_and_softness() -> None:
    for kind in ("soft", "voting", "soft voting"):
        assert KINDS[kind].above(0.5) is KINDS[kind]


def crowded_batch(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return boxes that are crowded, chained, without area or inside out, and scores that all differ."""
    random = torch.Generator().manual_seed(seed)
    batch, anchors, classes = 3, (200, 1500)[seed % 2], 1 + seed % 4
    corners = torch.rand(batch, anchors, 2, generator=random) * (20 if seed % 4 < 2 else 300)
    sides = torch.rand(batch, anchors, 2, generator=random) * 30
    boxes = torch.cat([corners, corners + sides], 2)
    boxes[0, ::5, 2:] = boxes[0, ::5, :2]  # without area
    boxes[1, ::7] = boxes[1, ::7].flip(-1)
    chain = torch.arange(100.0)
    boxes[2, :100] = torch.stack([chain * 4, 0 * chain, chain * 4 + 10, 0 * chain + 10], 1)
    scores = torch.randperm(batch * anchors * classes, generator=random).view(batch, anchors, classes)
    return boxes, scores / scores.numel(), torch.tensor([[200.0, 300.0]] * batch)


@pytest.mark.parametrize("length", [5, 15, 60])
def test_a_long_chain_of_overlaps_is_not_called_complete(length: int) -> None:
    """Each box overlaps the one before: every other one stays, which takes as many rounds as there are boxes."""
    left = torch.arange(length) * 4.0
    boxes = torch.stack([left, torch.zeros(length), left + 10, torch.full((length,), 10.0)], 1)[None]
    scores = torch.linspace(0.9, 0.1, length)[None, :, None]
    nms, windows = hard(0.01, iou=0.3), torch.tensor([[20.0, 1000.0]])
    expected = nms(boxes, scores, windows)
    assert expected.anchors[0, : int(expected.valid.sum())].tolist() == list(range(0, length, 2))
    found = nms.in_rounds(boxes, scores, windows)
    assert found.complete is not None
    assert found.complete.tolist() == [length <= 16]
    if length <= 16:
        assert_same(found, expected)


def test_kernels_follow_a_chain_of_overlaps_to_its_end_and_cap_classes() -> None:
    """Boxes of two classes in turn, each of which overlaps the one of its class before: every other one stays."""
    bit_matrix = pytest.importorskip("boxwright.nn.suppression.bit_matrix", reason="no Triton here")
    length, device = 70, "cuda" if torch.cuda.is_available() else "cpu"
    left = torch.arange(length, device=device) // 2 * 4.0
    boxes = torch.stack([left, 0 * left, left + 10, 0 * left + 10], 1)[None]
    scores, labels = (
        torch.linspace(0.9, 0.1, length, device=device)[None],
        torch.arange(length, device=device)[None] % 2,
    )
    kept, exact = bit_matrix.suppress_by_bits(boxes, scores, labels, 2, 0.3, 1000)
    assert kept[0].nonzero().squeeze(1).tolist() == [number for number in range(length) if number // 2 % 2 == 0]
    assert exact.tolist() == [True]
    kept, _ = bit_matrix.suppress_by_bits(boxes, scores, labels, 2, 0.3, 3)
    assert kept[0].nonzero().squeeze(1).tolist() == [0, 1, 4, 5, 8, 9]
    scores[0, :2] = -1.0
    kept, _ = bit_matrix.suppress_by_bits(boxes, scores, labels, 2, 0.3, 1)
    assert kept[0].nonzero().squeeze(1).tolist() == [2, 3]
    assert bit_matrix.suppress_sorted(boxes[:, :0], labels[:, :0], labels[:, :0] > 0, 0.3).shape == (1, 0)


@pytest.mark.slow_cases(
    "soft voting-0-1",
    "soft voting-0-2097152",
    "soft voting-0-67108864",
    "voting of several-0-1",
    "voting of several-0-2097152",
    "voting of several-0-67108864",
    "voting-0-1",
    "voting-0-2097152",
    "voting-0-67108864",
    "per class-0-2097152",
    "per class-0-67108864",
    "few per class-0-2097152",
    "few per class-0-67108864",
)
@pytest.mark.parametrize("together", [1, 1 << 21, 1 << 26])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [*KINDS])
def test_images_together_are_as_images_one_by_one(
    kind: str, seed: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU runs, on the CPU: greedy kinds in groups of images, others image by image.

    One pair fits no image, so that torchvision's kernel suppresses each.
    """
    monkeypatch.setattr(fixed_shape, "_MOST_PAIRS", together)
    monkeypatch.setattr(image_by_image, "_MOST_TOGETHER", together)
    nms, (boxes, scores, windows) = KINDS[kind], some_batch(seed)
    taking_part = scores if nms.candidates is None else nms.candidates(scores)
    found = PaddedDetections(*suppress_on_cuda(boxes, taking_part, windows, *operator_arguments(nms).values()))
    assert found.complete is not None
    assert found.complete.all()
    assert_same(found, nms(boxes, scores, windows))


def test_images_of_which_more_than_the_candidates_matter_are_suppressed_one_by_one() -> None:
    boxes, scores, windows = some_batch(3)
    boxes, scores = boxes.repeat(1, 9, 1), scores.repeat(1, 9, 1)
    nms = replace(KINDS["per class"], max_total_detections=128)
    few = nms.in_tensors(boxes, scores, windows, suppress_pairs=suppress_pairs)
    assert few.complete is not None
    assert not few.complete.all()
    found = PaddedDetections(*suppress_on_cuda(boxes, scores, windows, *operator_arguments(nms).values()))
    expected = nms(boxes, scores, windows)
    assert found.complete is not None
    assert found.complete.all()
    torch.testing.assert_close(found.scores, expected.scores)


def test_what_is_for_a_gpu_is_hard_and_not_too_large() -> None:
    scores = torch.zeros(8, 5000, 90)
    assert fits_on_gpu(scores, 100)
    assert fits_on_gpu(scores, 1000)
    assert not fits_on_gpu(scores, 2000)
    assert {kind for kind, nms in KINDS.items() if not nms.is_greedy} == {
        *("soft", "hardly soft", "voting", "voting of several", "soft voting"),
    }


def test_a_batch_that_is_not_complete_is_suppressed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = build(FAMILIES["ssd"])
    plain = detector.detect(pictures()[:2])
    calls: list[list[int]] = []
    exact = Nms.image_by_image

    def few(self: Nms, boxes: torch.Tensor, scores: torch.Tensor, windows: torch.Tensor) -> PaddedDetections:
        found = exact(self, boxes, scores, windows, range(len(boxes)))
        return replace(found, scores=found.scores * torch.tensor([[0.0], [1.0]]), complete=torch.arange(len(boxes)) > 0)

    def anew(self: Nms, *batch: torch.Tensor, indices: list[int]) -> PaddedDetections:
        calls.append(indices)
        return exact(self, *batch, indices)

    monkeypatch.setattr(Nms, "without_wait", few)
    monkeypatch.setattr(Nms, "image_by_image", anew)
    found = detector.detect(pictures()[:2])
    assert calls == [[0]], "the image that is not complete, and no other"
    assert len(found[0]) > 0
    for one, expected in zip(found, plain, strict=True):
        assert torch.equal(one.boxes, expected.boxes)
        assert torch.equal(one.scores, expected.scores)


class Suppresses(torch.nn.Module):
    def __init__(self, nms: Nms) -> None:
        super().__init__()
        self.nms = nms

    def forward(
        self, boxes: torch.Tensor, scores: torch.Tensor, windows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        found = self.nms(boxes, scores, windows)
        return found.boxes, found.scores, found.labels, found.anchors, found.valid


@pytest.mark.slow_except("per class")
@pytest.mark.parametrize("kind", ["per class", "class-agnostic", "best of the image"])
def test_suppression_exports_with_and_without_the_operator(kind: str) -> None:
    nms, batch = KINDS[kind], some_batch(5)
    exported = torch.export.export(Suppresses(nms), batch)
    expected = nms(*batch)
    assert "boxwright.suppress" in str(exported.graph)
    assert_same(PaddedDetections(*exported.module()(*batch)), expected)
    pairs = exported.run_decompositions(pair_decompositions())
    assert "boxwright.suppress_pairs" in str(pairs.graph)
    assert_same(PaddedDetections(*pairs.module()(*batch)), expected)
    plain = exported.run_decompositions(decompositions())
    assert "boxwright" not in str(plain.graph)
    assert_same(PaddedDetections(*plain.module()(*batch)), expected)


def test_suppression_compiles_as_one_graph() -> None:
    nms, batch = KINDS["per class"], some_batch(6)
    compiled = torch.compile(Suppresses(nms), fullgraph=True, backend="eager")
    assert_same(PaddedDetections(*compiled(*batch)), nms(*batch))


def test_the_operator_keeps_what_pytorch_asks_of_one() -> None:
    boxes, scores, windows = some_batch(7)
    arguments = (boxes, scores, windows, *operator_arguments(KINDS["soft"]).values())
    torch.library.opcheck(torch.ops.boxwright.suppress.default, arguments)


@pytest.mark.parametrize("kind", KINDS)
def test_the_operators_arguments_say_all_of_the_rules_but_candidates(kind: str) -> None:
    nms = KINDS[kind]
    assert _from_operator(tuple(operator_arguments(nms).values())) == replace(nms, candidates=None)


def test_the_operators_schema_is_that_of_files_exported_before() -> None:
    assert str(torch.ops.boxwright.suppress.default._schema) == (
        "boxwright::suppress(Tensor boxes, Tensor scores, Tensor windows, str kind, float score_threshold, "
        "float iou_threshold, float sigma, SymInt max_per_class, SymInt max_total, str outside, float lowering_iou, "
        "float lowering_score) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
    )
    assert operator_arguments(KINDS["best of a class, lowered"]) == {
        "kind": "per_class",
        "score_threshold": 0.01,
        "iou_threshold": 0.45,
        "sigma": 0.0,
        "max_per_class": 50,
        "max_total": 50,
        "outside": "drop",
        "lowering_iou": 0.3,
        "lowering_score": 0.05,
    }
    assert operator_arguments(KINDS["soft"]) == {
        "kind": "soft",
        "score_threshold": 0.05,
        "iou_threshold": 1.0,
        "sigma": 0.3,
        "max_per_class": 15,
        "max_total": 50,
        "outside": "drop",
        "lowering_iou": 2.0,
        "lowering_score": 0.0,
    }


def test_an_empty_batch_and_no_anchors() -> None:
    nms = KINDS["per class"]
    assert nms(torch.zeros(0, 9, 4), torch.zeros(0, 9, 3), torch.zeros(0, 2)).boxes.shape == (0, 60, 4)
    assert not nms(torch.zeros(2, 0, 4), torch.zeros(2, 0, 3), torch.ones(2, 2)).valid.any()


@pytest.mark.parametrize(("sigma", "threshold"), [(0.5, 0.2), (0.1, 0.05)])
def test_soft_suppression_is_tensorflows(sigma: float, threshold: float) -> None:
    boxes, scores = xyxy(RECORDED["nms/boxes"]), torch.from_numpy(RECORDED["nms/scores"])
    kept = soft(sigma, threshold, 30, 90)(boxes[None] + 1, scores[None], torch.tensor([[9.0, 9.0]])).image(0)
    for label in range(3):
        mine = kept.labels == label
        path = f"soft/{sigma}/{threshold}/{label}"
        assert kept.anchors[mine].tolist() == RECORDED[f"{path}/indices"].tolist()
        assert_close(kept.scores[mine], RECORDED[f"{path}/scores"])
    assert (kept.scores.diff() <= 0).all()


def test_soft_suppression_widens_until_it_is_exact() -> None:
    """A thousand copies of one box in front: only far down lie boxes that are not lowered away."""
    copies, others = torch.tensor([[0.0, 0, 10, 10]]).repeat(1000, 1), torch.arange(20.0)[:, None] * 30 + 50
    apart = torch.cat([others, others, others + 9, others + 9], 1)
    boxes = torch.cat([copies, apart])
    scores = torch.cat([torch.linspace(0.99, 0.5, 1000), torch.linspace(0.4, 0.3, 20)])[:, None]
    kept = soft(0.02, 0.01, 25, 25)(boxes[None], scores[None], torch.tensor([[1000.0, 1000.0]])).image(0)
    assert kept.anchors.tolist() == [0, *range(1000, 1020)]


@pytest.mark.parametrize("far", [1e20, torch.inf])
@pytest.mark.parametrize("settings", [hard(0.05, 0.45), soft(0.1, 0.05)], ids=["hard", "soft"])
def test_a_box_that_overflowed_does_not_spoil_the_others(settings: Nms, far: float) -> None:
    """It is the whole image; one without number is nothing; three that overlap fully leave one, in every class."""
    boxes = torch.tensor([[-far, -far, far, far], *[[10.0, 10, 30, 30]] * 3, [torch.nan] * 4])
    scores = torch.zeros(1, 5, 3)
    scores[0, 0, 0], scores[0, 4, 0], scores[0, 1:4, 1], scores[0, 1:4, 0] = 0.95, 0.99, 0.5, 0.4
    scores[0, 1:4, 2] = torch.tensor([0.7, 0.9, 0.8])
    found = settings(boxes[None], scores, torch.tensor([[50.0, 60.0]])).image(0)
    best = found.scores > 0.2
    assert found.boxes[best].tolist() == [[0, 0, 60, 50], *[[10, 10, 30, 30]] * 3]
    assert found.labels[best].tolist() == [0, 2, 1, 0]
    assert found.scores[best].tolist() == pytest.approx([0.95, 0.9, 0.5, 0.4])


def test_combined_suppression_is_tensorflows() -> None:
    """Of boxes that cross the window, TF's combined operation clips each side one way only."""
    boxes, scores = xyxy(RECORDED["nms/boxes"]), torch.from_numpy(RECORDED["nms/scores"])
    kept = replace(hard(0.1, 0.4, 10, 25), outside="keep")(boxes[None], scores[None], torch.tensor([[0.5, 0.6]])).image(
        0
    )
    count = int(RECORDED["combined/count"][0])
    assert_close(kept.scores, RECORDED["combined/scores"][:count])
    assert kept.labels.tolist() == RECORDED["combined/classes"][:count].tolist()
    expected = RECORDED["combined/boxes"][:count].copy()
    expected[:, :2] = np.maximum(expected[:, :2], 0)
    expected[:, 2:] = np.minimum(expected[:, 2:], [0.5, 0.6])
    assert_close(yxyx(kept.boxes), expected)
    assert (kept.boxes[:, 2] < kept.boxes[:, 0]).any()


def test_class_agnostic_by_hand() -> None:
    """Two boxes of different classes overlap: the better stays, with its best class; the third lies apart."""
    boxes = torch.tensor([[[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30], [-9, -9, -1, -1]]])
    scores = torch.tensor([[[0.6, 0.2], [0.1, 0.9], [0.3, 0.2], [0.5, 0.1]]])
    kept = Nms(ClassAgnostic(0.5), 0.25, 3)(boxes, scores, torch.tensor([[40.0, 40.0]])).image(0)
    # The box outside takes a place, and is dropped by clipping after that.
    assert rows(kept) == [(pytest.approx(0.9), 1, 1), (pytest.approx(0.3), 0, 2)]
    kept = Nms(ClassAgnostic(0.5), 0.25, 2)(boxes, scores, torch.tensor([[40.0, 40.0]])).image(0)
    assert rows(kept) == [(pytest.approx(0.9), 1, 1)]


def test_boxes_of_each_class() -> None:
    boxes = torch.tensor([[[[0.0, 0, 10, 10], [20, 0, 30, 10]], [[0, 0, 10, 9], [50, 0, 60, 10]]]])
    scores = torch.tensor([[[0.9, 0.8], [0.7, 0.6]]])
    kept = hard(0.1, 0.5, 10, 10)(boxes, scores, torch.tensor([[99.0, 99.0]])).image(0)
    assert rows(kept) == [(pytest.approx(s), c, a) for s, c, a in ((0.9, 0, 0), (0.8, 1, 0), (0.6, 1, 1))]
    assert kept.boxes[2].tolist() == [50, 0, 60, 10]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("iou_threshold: 1.5", "less than or equal to 1"),
        ("soft_nms_sigma: -1", "greater than or equal to 0"),
        ("soft_nms_sigma: 1 use_hard_nms: true", "soft_nms_sigma: excludes use_hard_nms"),
        ("soft_nms_sigma: 1 use_static_shapes: true", "soft_nms_sigma: excludes use_static_shapes"),
        ("use_class_agnostic_nms: true max_classes_per_detection: 2", "supports only 1"),
        ("use_combined_nms: true", "change_coordinate_frame"),
        ("soft_nms_sigma: 1 use_class_agnostic_nms: true", "not supported"),
    ],
)
def test_contradictions(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        build_nms(parse_message(text, m.BatchNonMaxSuppression))


def converter(calibration: str) -> ScoreConverter:
    text = f"score_converter: SIGMOID calibration_config {{ {calibration} }}"
    return build_score_converter(parse_message(text, m.PostProcessing))


def test_calibration_by_hand() -> None:
    """Scores 0.1, 0.5 and 0.9 of two columns."""
    logits = torch.logit(torch.tensor([[0.1, 0.5, 0.9]])).T.repeat(1, 2)
    curve = "x_y_pair { x: 0.2 y: 0.1 } x_y_pair { x: 0.6 y: 0.5 } x_y_pair { x: 0.8 y: 0.9 }"
    # Level below the first point and above the last; between, 0.1 + 0.75 × 0.4.
    wanted = torch.tensor([0.1, 0.4, 0.9])
    found = converter(f"function_approximation {{ x_y_pairs {{ {curve} }} }}")(logits)
    torch.testing.assert_close(found, wanted[:, None].repeat(1, 2))
    found = converter(f"class_id_function_approximations {{ class_id_xy_pairs_map {{ key: 1 value {{ {curve} }} }} }}")(
        logits
    )
    torch.testing.assert_close(found, torch.stack([torch.tensor([0.1, 0.5, 0.9]), wanted], dim=1))
    found = converter("sigmoid_calibration { sigmoid_parameters { a: -2 b: 1 } }")(logits)
    torch.testing.assert_close(found[:, 0], 1 / (1 + torch.exp(torch.tensor([0.8, 0.0, -0.8]))))
    found = converter("temperature_scaling_calibration { scaler: 2 }")(logits)
    torch.testing.assert_close(found, torch.sigmoid(logits / 2))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("function_approximation { }", "at least one"),
        ("function_approximation { x_y_pairs { x_y_pair { x: 1 } x_y_pair { x: 0 } } }", "must rise"),
        ("", "calibration_config: empty"),
    ],
)
def test_bad_calibration(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        converter(text)


def test_nothing_above_the_threshold() -> None:
    found = hard(0.5)(torch.rand(1, 10, 4), torch.zeros(1, 10, 3), torch.ones(1, 2)).image(0)
    assert found.boxes.shape == (0, 4)
    assert found.labels.dtype == torch.int64


def test_contradictory_caps() -> None:
    config = m.BatchNonMaxSuppression(max_detections_per_class=10, max_total_detections=5)
    with pytest.raises(ConfigError, match="max_detections_per_class: 10 is over max_total_detections 5"):
        build_nms(config)


def test_full_classes_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every box lies outside the window, so that the image never fills; two classes of five each do at once."""
    corner = torch.rand(20000, 2, generator=torch.Generator().manual_seed(3)) * 5000 + 100
    boxes = torch.cat([corner, corner + 5], 1)
    scores = torch.rand(20000, 2, generator=torch.Generator().manual_seed(4)) * 0.9 + 0.05
    plain, tried = image_by_image._candidates, []

    def counted(scores: torch.Tensor, threshold: float) -> Iterator[torch.Tensor]:
        for pairs in plain(scores, threshold):
            tried.append(len(pairs))
            yield pairs

    assert len(list(plain(scores, 1e-8))) > 2
    monkeypatch.setattr(image_by_image, "_candidates", counted)
    found = hard(1e-8, 0.6, 5, 100)(boxes[None], scores[None], torch.tensor([[50.0, 50.0]])).image(0)
    assert len(tried) == 1
    assert len(found.scores) == 0


def test_static_shapes_drop_equal_overlap() -> None:
    boxes, scores = torch.tensor([[[0.0, 0, 10, 10], [0, 0, 10, 5]]]), torch.tensor([[[0.9], [0.8]]])
    for text, left in (("", 2), ("use_static_shapes: true", 1)):
        nms = build_nms(parse_message(f"iou_threshold: 0.5 {text}", m.BatchNonMaxSuppression))
        assert len(nms(boxes, scores, torch.tensor([[20.0, 20.0]])).image(0).scores) == left


def test_what_goes_with_what() -> None:
    with pytest.raises(ValueError, match="SoftPerClass takes drop, found 'keep'"):
        replace(KINDS["soft"], outside="keep")
    with pytest.raises(ValueError, match="Voting takes unclipped, found 'drop'"):
        Nms(Voting())
