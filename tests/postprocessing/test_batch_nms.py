from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torchvision.ops import nms

from boxwright.builders.post_processing import build_nms, build_score_converter
from boxwright.config import messages as m
from boxwright.config import parse_message
from boxwright.errors import ConfigError
from boxwright.postprocessing.batch_nms import BatchNms, ClassAgnosticNms, CombinedNms, Kept, SoftNms, _candidates
from boxwright.postprocessing.padded_nms import PaddedNms
from boxwright.postprocessing.score_converters import ScoreConverter
from tests.conftest import GOLDEN, assert_close, xyxy, yxyx

RECORDED = np.load(GOLDEN / "tensorflow_ops.npz")


def exhaustive(
    boxes: torch.Tensor, scores: torch.Tensor, settings: BatchNms, window: torch.Tensor
) -> list[tuple[float, int, int]]:
    """Suppress class by class over everything: TF's procedure, written out."""
    rows = []
    for label in range(scores.shape[1]):
        above = torch.nonzero(scores[:, label] > settings.score_threshold).flatten()
        kept = above[nms(boxes[above], scores[above, label], settings.iou_threshold)][
            : settings.max_detections_per_class
        ]
        for anchor in kept.tolist():
            box = boxes[anchor].clamp(min=0)
            box = torch.minimum(box, window.flip(0).repeat(2))
            if (box[2] - box[0]) * (box[3] - box[1]) > 0:
                rows.append((scores[anchor, label].item(), label, anchor))
    return sorted(rows, key=lambda row: -row[0])[: settings.max_total_detections]


@pytest.mark.parametrize("seed", range(4))
def test_equals_the_exhaustive_computation(seed: int) -> None:
    """Over twenty thousand candidates, of which the first few thousand are tried first."""
    generator = torch.Generator().manual_seed(seed)
    corner, side = torch.rand(2000, 2, generator=generator) * 300 - 10, torch.rand(2000, 2, generator=generator) * 60
    boxes, scores = torch.cat([corner, corner + side], 1), torch.rand(2000, 12, generator=generator)
    window = torch.tensor([200.0, 260.0])
    settings = BatchNms(0.01, 0.3 + 0.1 * seed, 5 + 20 * seed, 50 + 300 * seed)
    (found,) = settings(boxes[None], scores[None], window[None])
    expected = exhaustive(boxes, scores, settings, window)
    assert list(zip(found.scores.tolist(), found.labels.tolist(), found.anchors.tolist(), strict=True)) == expected


def rows(kept: Kept) -> list[tuple[float, int, int]]:
    return list(zip(kept.scores.tolist(), kept.labels.tolist(), kept.anchors.tolist(), strict=True))


def test_every_pair_passing_is_still_exact_and_fast() -> None:
    """51,150 anchors of 90 classes, all above the threshold: the exhaustive result, in less than its time."""
    generator = torch.Generator().manual_seed(1)
    corner, side = torch.rand(51150, 2, generator=generator) * 600, torch.rand(51150, 2, generator=generator) * 90
    boxes, scores = torch.cat([corner, corner + side], 1), torch.rand(51150, 90, generator=generator) * 0.9 + 0.05
    scores[:, 1:] *= torch.rand(51150, 1, generator=generator)  # crowd one class, so that suppression has work
    window = torch.tensor([640.0, 640.0])
    settings = BatchNms(1e-8, 0.5, 100, 100)
    start = time.perf_counter()
    (found,) = settings(boxes[None], scores[None], window[None])
    ours = time.perf_counter() - start
    best = scores.flatten().topk(60000).indices
    kept = torch.zeros_like(scores).flatten().index_put((best,), scores.flatten()[best]).view_as(scores)
    start = time.perf_counter()
    expected = exhaustive(boxes, kept, settings, window)
    assert ours < time.perf_counter() - start
    assert len(expected) == 100
    assert sorted(rows(found)) == sorted(expected)


def test_ties_fall_to_the_first_class_and_anchor() -> None:
    """An untrained head scores everything alike; suppression must not look at millions of pairs."""
    corner = torch.rand(5000, 2, generator=torch.Generator().manual_seed(2)) * 600
    boxes = torch.cat([corner, corner + 20], 1)
    (found,) = BatchNms(1e-8, 0.6, 5, 12)(boxes[None], torch.full((1, 5000, 90), 0.01), torch.tensor([[700.0, 700]]))
    assert found.labels.tolist() == [0] * 5 + [1] * 5 + [2] * 2
    assert found.anchors[:5].tolist() == found.anchors[5:10].tolist()
    assert found.anchors[:2].tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(4))
def test_padded_equals_per_image(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    corner, side = (
        torch.rand(2, 300, 2, generator=generator) * 300 - 10,
        torch.rand(2, 300, 2, generator=generator) * 60,
    )
    boxes, scores = torch.cat([corner, corner + side], 2), torch.rand(2, 300, 4, generator=generator)
    windows = torch.tensor([[200.0, 260.0], [150.0, 100.0]])
    settings = BatchNms(0.01, 0.3 + 0.1 * seed, 5 + 20 * seed, 20 + 40 * seed)
    padded = PaddedNms(settings, candidates=1200)(boxes, scores, windows)
    assert padded.final.all()
    for image, kept in enumerate(settings(boxes, scores, windows)):
        valid = padded.valid[image]
        assert int(valid.sum()) == len(kept.scores)
        assert padded.anchors[image][valid].tolist() == kept.anchors.tolist()
        assert padded.labels[image][valid].tolist() == kept.labels.tolist()
        torch.testing.assert_close(padded.boxes[image][valid], kept.boxes)
        assert not padded.scores[image][~valid].any()


def test_padded_says_where_candidates_did_not_do() -> None:
    boxes, scores = torch.tensor([[[0.0, 0, 9, 9]] * 50]), torch.linspace(0.9, 0.1, 50)[None, :, None]
    few = PaddedNms(BatchNms(0.0, 0.5, 10, 10), candidates=20)(boxes, scores, torch.tensor([[9.0, 9.0]]))
    assert few.valid.sum() == 1
    assert not few.final.any()
    all_of_them = PaddedNms(BatchNms(0.0, 0.5, 10, 10), candidates=50)(boxes, scores, torch.tensor([[9.0, 9.0]]))
    assert all_of_them.final.all()
    nothing = PaddedNms(BatchNms(0.95), candidates=20)(boxes, scores, torch.tensor([[9.0, 9.0]]))
    assert nothing.final.all()
    assert not nothing.valid.any()


@pytest.mark.parametrize(("sigma", "threshold"), [(0.5, 0.2), (0.1, 0.05)])
def test_soft_suppression_is_tensorflows(sigma: float, threshold: float) -> None:
    boxes, scores = xyxy(RECORDED["nms/boxes"]), torch.from_numpy(RECORDED["nms/scores"])
    (kept,) = SoftNms(sigma, threshold, 30, 90)(boxes[None] + 1, scores[None], torch.tensor([[9.0, 9.0]]))
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
    (kept,) = SoftNms(0.02, 0.01, 25, 25)(boxes[None], scores[None], torch.tensor([[1000.0, 1000.0]]))
    assert kept.anchors.tolist() == [0, *range(1000, 1020)]


@pytest.mark.parametrize("far", [1e20, torch.inf])
@pytest.mark.parametrize("settings", [BatchNms(0.05, 0.45), SoftNms(0.1, 0.05)], ids=["hard", "soft"])
def test_a_box_that_overflowed_does_not_spoil_the_others(settings: BatchNms | SoftNms, far: float) -> None:
    """It is the whole image; one without number is nothing; three that overlap fully leave one, in every class."""
    boxes = torch.tensor([[-far, -far, far, far], *[[10.0, 10, 30, 30]] * 3, [torch.nan] * 4])
    scores = torch.zeros(1, 5, 3)
    scores[0, 0, 0], scores[0, 4, 0], scores[0, 1:4, 1], scores[0, 1:4, 0] = 0.95, 0.99, 0.5, 0.4
    scores[0, 1:4, 2] = torch.tensor([0.7, 0.9, 0.8])
    (found,) = settings(boxes[None], scores, torch.tensor([[50.0, 60.0]]))
    best = found.scores > 0.2
    assert found.boxes[best].tolist() == [[0, 0, 60, 50], *[[10, 10, 30, 30]] * 3]
    assert found.labels[best].tolist() == [0, 2, 1, 0]
    assert found.scores[best].tolist() == pytest.approx([0.95, 0.9, 0.5, 0.4])


def test_combined_suppression_is_tensorflows() -> None:
    """Of boxes that cross the window, TF's combined operation clips each side one way only."""
    boxes, scores = xyxy(RECORDED["nms/boxes"]), torch.from_numpy(RECORDED["nms/scores"])
    (kept,) = CombinedNms(BatchNms(0.1, 0.4, 10, 25))(boxes[None], scores[None], torch.tensor([[0.5, 0.6]]))
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
    (kept,) = ClassAgnosticNms(0.25, 0.5, 3)(boxes, scores, torch.tensor([[40.0, 40.0]]))
    # The box outside takes a place, and is dropped by clipping after that.
    assert rows(kept) == [(pytest.approx(0.9), 1, 1), (pytest.approx(0.3), 0, 2)]
    (kept,) = ClassAgnosticNms(0.25, 0.5, 2)(boxes, scores, torch.tensor([[40.0, 40.0]]))
    assert rows(kept) == [(pytest.approx(0.9), 1, 1)]


def test_boxes_of_each_class() -> None:
    boxes = torch.tensor([[[[0.0, 0, 10, 10], [20, 0, 30, 10]], [[0, 0, 10, 9], [50, 0, 60, 10]]]])
    scores = torch.tensor([[[0.9, 0.8], [0.7, 0.6]]])
    (kept,) = BatchNms(0.1, 0.5, 10, 10)(boxes, scores, torch.tensor([[99.0, 99.0]]))
    assert rows(kept) == [(pytest.approx(s), c, a) for s, c, a in ((0.9, 0, 0), (0.8, 1, 0), (0.6, 1, 1))]
    assert kept.boxes[2].tolist() == [50, 0, 60, 10]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("iou_threshold: 1.5", "less than or equal to 1"),
        ("soft_nms_sigma: -1", "greater than or equal to 0"),
        ("soft_nms_sigma: 1 use_hard_nms: true", "exclude each other"),
        ("soft_nms_sigma: 1 use_static_shapes: true", "exclude each other"),
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
        ("", "is empty"),
    ],
)
def test_bad_calibration(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        converter(text)


def test_nothing_above_the_threshold() -> None:
    (found,) = BatchNms(0.5)(torch.rand(1, 10, 4), torch.zeros(1, 10, 3), torch.ones(1, 2))
    assert found.boxes.shape == (0, 4)
    assert found.labels.dtype == torch.int64


def test_contradictory_caps() -> None:
    config = m.BatchNonMaxSuppression(max_detections_per_class=10, max_total_detections=5)
    with pytest.raises(ConfigError, match="max_detections_per_class 10 is over max_total_detections 5"):
        build_nms(config)


def test_full_classes_end_the_search() -> None:
    """Every box lies outside the window, so that the image never fills; two classes of five each do."""
    corner = torch.rand(20000, 2, generator=torch.Generator().manual_seed(3)) * 5000 + 100
    boxes = torch.cat([corner, corner + 5], 1)
    scores = torch.rand(20000, 2, generator=torch.Generator().manual_seed(4)) * 0.9 + 0.05
    settings = BatchNms(1e-8, 0.6, 5, 100)
    tried = list(_candidates(scores, 1e-8))
    assert len(tried) > 2
    assert settings.is_full(settings.suppress(boxes, scores, tried[0]), 2)
    start = time.perf_counter()
    (found,) = settings(boxes[None], scores[None], torch.tensor([[50.0, 50.0]]))
    assert time.perf_counter() - start < 1
    assert len(found.scores) == 0


def test_static_shapes_drop_equal_overlap() -> None:
    boxes, scores = torch.tensor([[[0.0, 0, 10, 10], [0, 0, 10, 5]]]), torch.tensor([[[0.9], [0.8]]])
    for text, left in (("", 2), ("use_static_shapes: true", 1)):
        nms = build_nms(parse_message(f"iou_threshold: 0.5 {text}", m.BatchNonMaxSuppression))
        assert len(nms(boxes, scores, torch.tensor([[20.0, 20.0]]))[0].scores) == left
