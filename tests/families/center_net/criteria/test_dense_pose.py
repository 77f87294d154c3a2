"""DensePose by hand: which cells points are compared in, what is learned there, and what is found in masks."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from boxwright.base.errors import ConfigError
from boxwright.config.load import parse_message
from boxwright.config.support import refuse_unsupported
from boxwright.families.center_net.criteria.masks import SurfaceTask, at_cells, enlarged
from boxwright.families.center_net.postprocessing.masks import SurfaceDecoder
from boxwright.families.center_net.predictions import StageMaps, SurfaceMaps
from boxwright.nn.criteria.losses import AbsoluteError, SoftmaxCrossEntropy
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.message import TrainEvalPipelineConfig as Pipeline
from boxwright.types import PaddedDetections, Targets
from tests.center_nets import with_surface


def test_cells_of_points() -> None:
    """TF's own cases at a stride of 4 on 120 by 80 pixels: a part of the image is truncated to a cell."""
    maps = torch.arange(30 * 20.0).view(1, 1, 30, 20)
    # y, x in 0..1, and the row and column that TF expects.
    cases = [
        ((0.11, 0.2), (3, 4)),
        ((0.6, 0.4), (18, 8)),
        ((0.22, 0.1), (6, 2)),
        ((0.0, 0.4), (0, 8)),
        ((0.5, 0.75), (15, 15)),
    ]
    points = torch.tensor([[x * 80, y * 120] for (y, x), _ in cases])[None]
    assert at_cells(maps, points)[0, :, 0].tolist() == [row * 20 + column for _, (row, column) in cases]
    # A point on the far corner is in the last cell.
    assert at_cells(maps, torch.tensor([[[80.0, 120.0]]])).item() == 599


def test_points_of_enlarged_maps() -> None:
    """What a point reads is what the whole map has there, enlarged as an image."""
    maps = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    large = F.interpolate(maps, scale_factor=4, mode="bilinear", align_corners=False)
    points = torch.rand(2, 200, 2, generator=torch.Generator().manual_seed(1)) * torch.tensor([28.0, 20.0])
    points[:, :2] = torch.tensor([[0.0, 0.0], [28.0, 20.0]])
    columns, rows = points.long().clamp(max=torch.tensor([27, 19])).unbind(-1)
    wanted = torch.stack([image[:, row, column].T for image, row, column in zip(large, rows, columns, strict=True)])
    torch.testing.assert_close(enlarged(maps, points), wanted)


def point(x: float, y: float, part: int, v: float, u: float, known: float = 1.0) -> list[float]:
    return [x, y, known, part, v, u]


def targets_of(points: list[list[list[float]]], weights: list[float]) -> Targets:
    count = len(weights)
    ones = torch.tensor([weights])
    return Targets(
        torch.zeros(1, count, 4),
        torch.zeros(1, count, dtype=torch.int64),
        ones,
        ones > 0,
        dense_pose=torch.tensor([points]),
    )


def stages_of(maps: SurfaceMaps) -> tuple[StageMaps, ...]:
    return (StageMaps(torch.zeros(1, 1, *maps.parts.shape[2:]), surface=maps),)


def test_losses_by_hand() -> None:
    """Points weigh as their objects; padding does not count, a point of half a weight does."""
    parts, coordinates = torch.zeros(1, 24, 2, 2), torch.zeros(1, 48, 2, 2)
    parts[0, 3, 0, 1] = 5.0
    coordinates[0, 6:8, 0, 1] = torch.tensor([0.25, 0.5])  # v and u on part 3
    targets = targets_of(
        [
            [point(5, 1, 3, 0.5, 0.25), point(5, 1, 7, 0.0, 0.0, known=0.0)],
            [point(1, 6, 23, 0.1, 0.2), point(0, 0, 0, 0, 0, known=0.0)],
        ],
        [1.0, 0.5],
    )
    task = SurfaceTask(SoftmaxCrossEntropy(), AbsoluteError(), 2.0, 10.0, at_cells)
    found = task(stages_of(SurfaceMaps(parts, coordinates)), targets, torch.ones(1, 2, 2))
    likely = -math.log(math.exp(5) / (math.exp(5) + 23))
    assert found["Loss/densepose/heatmap"].total.item() == pytest.approx(2 * (likely + 0.5 * math.log(24)), rel=1e-5)
    assert found["Loss/densepose/regression"].total.item() == pytest.approx(10 * (0.5 + 0.5 * 0.3), rel=1e-5)
    assert all(term.count is not None and term.count.item() == 2 for term in found.values())


def test_no_points_at_all() -> None:
    maps = SurfaceMaps(torch.zeros(1, 24, 2, 2, requires_grad=True), torch.zeros(1, 48, 2, 2, requires_grad=True))
    task = SurfaceTask(SoftmaxCrossEntropy(), AbsoluteError())
    nothing = Targets(
        torch.zeros(1, 0, 4), torch.zeros(1, 0, dtype=torch.int64), torch.zeros(1, 0), torch.zeros(1, 0) > 0
    )
    found = task(stages_of(maps), nothing, torch.ones(1, 2, 2))
    assert [term.value.item() for term in found.values()] == [0, 0]
    torch.stack([term.value for term in found.values()]).sum().backward()
    assert maps.parts.grad is not None


def test_what_masks_hold() -> None:
    """Of the class that has them, the likeliest part, counted from 1, and its coordinates; the first of equal ones."""
    parts, coordinates = torch.zeros(1, 24, 2, 2), torch.zeros(1, 48, 2, 2)
    parts[0, 5, 0, 0], parts[0, 23, 1, 1] = 1.0, 2.0
    coordinates[0, 10:12, 0, 0], coordinates[0, 46:48, 1, 1] = torch.tensor([0.1, 0.2]), torch.tensor([0.3, 0.4])
    coordinates[0, 0:2] = 0.9
    masks = torch.tensor([[1.0, 1.0], [0.0, 1.0]]).expand(1, 2, 2, 2)
    box = torch.tensor([[[0.0, 0.0, 8.0, 8.0]] * 2])
    numbers = torch.tensor([[1, 0]])
    found = PaddedDetections(box, torch.ones(1, 2), numbers, numbers, torch.ones(1, 2) > 0, masks=masks)
    seen = SurfaceDecoder(1, (2, 2))(SurfaceMaps(parts, coordinates), found)
    assert seen.surface_parts is not None
    assert seen.surface_coordinates is not None
    assert seen.surface_parts[0].tolist() == [[[6, 1], [0, 24]], [[0, 0], [0, 0]]]
    wanted = torch.tensor([[[0.1, 0.2], [0.9, 0.9]], [[0.0, 0.0], [0.3, 0.4]]])
    torch.testing.assert_close(seen.surface_coordinates[0, 0], wanted)
    assert not seen.surface_coordinates[0, 1].any()
    (outputs,) = (one.to_tf() for one in seen.to_list(torch.tensor([[8, 8]])))
    assert outputs["detection_masks"].tolist() == [[[6, 1], [0, 24]], [[1, 1], [0, 1]]]
    assert outputs["detection_surface_coords"].shape == (2, 2, 2, 2)


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ("num_parts: 23", "TF's targets are of 24 parts, and its loss raises for another number"),
        ("task_loss_weight: -1", "should be greater than or equal to 0"),
    ],
)
def test_options_that_do_not_fit(more: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        build_detector(parse_message(with_surface(more), m.DetectionModel))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("class_id: 2", "class_id: 4"), "densepose_estimation_task.class_id: counted from 0, of 4 classes"),
        (
            (
                "weighted_softmax { } } localization_loss { l1_localization_loss",
                "weighted_softmax { } } localization_loss { weighted_giou",
            ),
            "compares boxes, not vectors",
        ),
        (
            ("weighted_softmax { } }", "weighted_softmax { } } classification_weight: 2"),
            "weigh them with part_loss_weight",
        ),
    ],
)
def test_a_model_that_does_not_fit(change: tuple[str, str], line: str) -> None:
    text = with_surface().replace(*change)
    assert text != with_surface()
    with pytest.raises(ConfigError) as caught:
        build_detector(parse_message(text, m.DetectionModel))
    assert line in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_reader_that_leaves_out_what_is_learned() -> None:
    text = f"""model {{ {with_surface()} }} train_config {{ batch_size: 2 }}
      train_input_reader {{ load_instance_masks: true tf_record_input_reader {{ input_path: "none" }} }}"""
    with pytest.raises(ConfigError, match="load_dense_pose: the detector learns DensePose; set it to true"):
        refuse_unsupported(parse_message(text, Pipeline), "")


def test_a_network_without_the_heads() -> None:
    with pytest.raises(ValueError, match="has no heads of the task"):
        SurfaceTask(SoftmaxCrossEntropy(), AbsoluteError())(
            (StageMaps(torch.zeros(1, 1, 2, 2)),), targets_of([[point(1, 1, 0, 0, 0)]], [1.0]), torch.ones(1, 2, 2)
        )
