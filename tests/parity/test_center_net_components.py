"""The parts of CenterNet against TensorFlow: targets, losses, peaks and decoding, case by case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxwright.config.load import parse_message
from boxwright.families.center_net.cells import CellBoxes, gaussian_deviations, valid_cells
from boxwright.families.center_net.criteria.criterion import BoxTargets, CentersOfBoxes, CentersOfKeypoints
from boxwright.families.center_net.criteria.keypoints import KeypointHeatmap, KeypointTargets, KeypointVectors
from boxwright.families.center_net.criteria.masks import class_masks, mask_weights
from boxwright.families.center_net.postprocessing.keypoints import (
    Candidates,
    GaussianWeighted,
    Nearest,
    Ranking,
    ScoreByDistance,
    ScoreByScaledDistance,
    Snapping,
    in_frame,
    regressed_at,
)
from boxwright.families.center_net.postprocessing.masks import MaskDecoder, own_maps
from boxwright.families.center_net.postprocessing.peaks import best_of_each_channel, best_peaks
from boxwright.families.center_net.postprocessing.postprocessor import CenterNetPostprocessor
from boxwright.families.center_net.predictions import CenterPredictions, KeypointMaps, StageMaps
from boxwright.families.shared.criterion import build_classification_loss
from boxwright.nn.criteria.losses import AbsoluteError
from boxwright.pipeline import messages as m
from boxwright.types import Targets
from boxwright.types.masks import InstanceMasks
from tests.conftest import GOLDEN, assert_close, xyxy, yxyx
from tests.parity.recordings import FOLDER, Case, components

CASES = components("centernet")
# TF's functions that no configuration reaches, and of which nothing here has an equivalent.
UNREACHED = {"corner_offset", "center_from_boxes/3", "center_from_boxes/4"}


def test_the_folder_is_whole() -> None:
    if FOLDER == GOLDEN:
        assert len(CASES) == 53
    assert {kind for kind in (case.kind for case in CASES) if kind not in CHECKS} <= {_CORNERS}
    unreached = {case.id for case in CASES} & UNREACHED
    assert len(unreached) == (len(UNREACHED) if CASES else 0)


@pytest.mark.parametrize("case", [case for case in CASES if case.id not in UNREACHED], ids=lambda case: case.id)
def test_component(case: Case) -> None:
    CHECKS[case.kind](case)


def image_rows(case: Case, name: str, fill: float = 0.0) -> Tensor:
    """Stack what was recorded image by image, padded to the larger count."""
    rows = []
    while case.has(f"in/{name}_{len(rows)}"):
        rows.append(case.array(f"in/{name}_{len(rows)}"))
    count = max(len(row) for row in rows)
    padded = [np.concatenate([row, np.full((count - len(row), *row.shape[1:]), fill, row.dtype)]) for row in rows]
    return torch.from_numpy(np.stack(padded))


def unpadded(case: Case, name: str, *values: Tensor) -> list[NDArray[Any]]:
    """Drop padding from values [B, G, …], and put the images one after the other, as TF does."""
    counts = [len(case.array(f"in/{name}_{number}")) for number in range(len(values[0]))]
    return [
        np.concatenate([np.asarray(row[:count]) for row, count in zip(value, counts, strict=True)]) for value in values
    ]


def size_of(case: Case) -> tuple[int, int]:
    return case.params["height"], case.params["width"]


def grid_of_case(case: Case) -> tuple[int, int]:
    height, width = size_of(case)
    return height // case.params["stride"], width // case.params["stride"]


def targets_of(case: Case) -> Targets:
    """Make targets of what a case has, in pixels."""
    height, width = size_of(case)
    classes = image_rows(case, "classes") if case.has("in/classes_0") else None
    weights = (
        image_rows(case, "weights") if case.has("in/weights_0") else torch.ones(image_rows(case, "boxes").shape[:2])
    )
    boxes = torch.zeros(*weights.shape, 4)
    if case.has("in/boxes_0"):
        boxes = xyxy(image_rows(case, "boxes").numpy()) * torch.tensor([width, height] * 2)
    keypoints = None
    if case.has("in/keypoints_0"):
        keypoints = image_rows(case, "keypoints", np.nan).flip(-1) * torch.tensor([width, height])
    counts = [len(case.array(f"in/{case.inputs[0].rpartition('_')[0]}_{number}")) for number in range(len(weights))]
    valid = torch.arange(weights.shape[1]) < torch.tensor(counts)[:, None]
    labels = torch.zeros(weights.shape, dtype=torch.int64) if classes is None else classes.argmax(-1)
    return Targets(boxes, labels, weights, valid, keypoints=keypoints)


def hwc(maps: Tensor) -> NDArray[Any]:
    return maps.permute(0, 2, 3, 1).numpy()


def maps_of(case: Case, name: str) -> Tensor:
    return torch.from_numpy(case.array(f"in/{name}")).permute(0, 3, 1, 2)


def check_centers_of_boxes(case: Case) -> None:
    options, targets = case.params["constructor"], targets_of(case)
    num_classes = image_rows(case, "classes").shape[-1]
    heatmap = CentersOfBoxes(options.get("min_overlap", 0.7))(targets, num_classes, grid_of_case(case))
    assert_close(hwc(heatmap), case.array("out/0"))


def check_centers_of_keypoints(case: Case) -> None:
    options, targets = case.params["constructor"], targets_of(case)
    keypoints = _Weighted(KeypointTargets(options["keypoint_class_id"], tuple(options["keypoint_indices"])), case)
    assigner = CentersOfKeypoints(keypoints, tuple(options["keypoint_weights_for_center"]))
    heatmap = assigner(targets, image_rows(case, "classes").shape[-1], grid_of_case(case))
    assert_close(hwc(heatmap), case.array("out/0"))


class _Weighted:
    """Keypoints with weights of their own, which no configuration gives them."""

    def __init__(self, keypoints: KeypointTargets, case: Case) -> None:
        self.keypoints, self.weights = keypoints, image_rows(case, "keypoint_weights")

    def __call__(self, targets: Targets) -> tuple[Tensor, Tensor]:
        points, weights = self.keypoints(targets)
        return points, weights * self.keypoints.of_task(self.weights)


def check_boxes(case: Case) -> None:
    targets = targets_of(case)
    found = BoxTargets.assign(targets.boxes, grid_of_case(case))
    cells, sizes, offsets, weights = unpadded(case, "boxes", found.cells, found.sizes, found.offsets, targets.weights)
    assert cells.astype(int).tolist() == case.array("out/0")[:, 1:].tolist()
    assert_close(sizes, case.array("out/1"))
    assert_close(offsets, case.array("out/2"))
    assert_close(weights, case.array("out/3"))


def _keypoints(case: Case) -> tuple[Tensor, Tensor, Targets]:
    options, targets = case.params["constructor"], targets_of(case)
    points, weights = _Weighted(KeypointTargets(options["class_id"], tuple(options["keypoint_indices"])), case)(targets)
    return points, weights, targets


def check_keypoint_heatmap(case: Case) -> None:
    points, weights, targets = _keypoints(case)
    options, boxes = case.params["constructor"], CellBoxes.of_pixels(targets.boxes)
    # TF's default, in a component alone: a model always has deviations.
    deviations = tuple(options.get("keypoint_std_dev", [_DEFAULT_DEVIATION] * points.shape[1]))
    found = KeypointHeatmap.assign(points, weights, boxes, deviations, grid_of_case(case), targets.valid)
    assert_close(hwc(found.values), case.array("out/0"))
    assert found.count == case.array("out/1").sum()
    assert_close(hwc(found.learned.float()), case.array("out/2"))


_DEFAULT_DEVIATION = 1.0


def _compare_vectors(case: Case, found: KeypointVectors, *, of_each: bool) -> None:
    """Compare with TF's rows, which go object by object, then keypoint by keypoint."""
    neighbors = found.cells.shape[2] // image_rows(case, "weights").shape[1]

    def rows(values: Tensor) -> Tensor:
        by_object = values.unflatten(2, (-1, neighbors)).transpose(1, 2)
        return by_object.flatten(2, 3) if values.ndim > 3 else by_object

    cells, vectors, weights = unpadded(
        case,
        "weights",
        rows(found.cells),
        rows(found.vectors),
        found.weights.unflatten(2, (-1, neighbors)).transpose(1, 2),
    )
    recorded, weights = case.array("out/0"), weights.reshape(-1)
    assert_close(weights, case.array("out/2"))
    assert cells.reshape(-1, 2).astype(int).tolist() == recorded[:, 1:3].tolist()
    assert_close(vectors.reshape(-1, vectors.shape[-1]), case.array("out/1"))
    if of_each:
        count = found.cells.shape[1]
        numbers = np.tile(np.repeat(np.arange(count), neighbors), len(recorded) // count // neighbors)
        assert recorded[:, 3].tolist() == numbers.tolist()


def check_keypoint_offset(case: Case) -> None:
    points, weights, _ = _keypoints(case)
    options = case.params["constructor"]
    found = KeypointVectors.toward(points, weights, points, options.get("peak_radius", 0), grid_of_case(case))
    _compare_vectors(case, found, of_each=options.get("per_keypoint_offset", False))


def check_keypoint_regression(case: Case) -> None:
    points, weights, targets = _keypoints(case)
    centers = CellBoxes.of_pixels(targets.boxes).centers[:, None].expand_as(points)
    radius = case.params["constructor"].get("peak_radius", 0)
    found = KeypointVectors.toward(points, weights, centers, radius, grid_of_case(case))
    _compare_vectors(case, found, of_each=True)


def check_keypoint_depth(case: Case) -> None:
    points, weights, _ = _keypoints(case)
    options = case.params["constructor"]
    keypoints = KeypointTargets(options["class_id"], tuple(options["keypoint_indices"]))
    depths, own = (keypoints.of_task(image_rows(case, name)) for name in ("depths", "depth_weights"))
    radius = options.get("peak_radius", 0)
    found = KeypointVectors.depths(points, weights, depths, own, radius, grid_of_case(case))
    _compare_vectors(case, found, of_each=options.get("per_keypoint_depth", False))


def check_masks(case: Case) -> None:
    classes, grid = image_rows(case, "classes"), grid_of_case(case)
    masks = image_rows(case, "masks")
    stored = InstanceMasks.stack([image.numpy() > 0 for image in masks], masks.shape[1], size_of(case))
    found = class_masks(stored, classes.argmax(-1), classes.shape[-1], grid)
    assert_close(hwc(found), case.array("out/0"))
    for number in range(len(masks)):
        height, width = size_of(case)
        boxes = xyxy(case.array(f"in/boxes_{number}")) * torch.tensor([width, height] * 2)
        weights = torch.from_numpy(case.array(f"in/mask_weights_{number}"))
        margin = case.params["constructor"].get("boxes_scale", 1.0)
        each = mask_weights(CellBoxes.of_pixels(boxes[None]), weights[None], grid, margin=margin)
        assert_close(each[0], case.array("out/1")[number])


def check_temporal_offset(case: Case) -> None:
    targets = targets_of(case)
    cells = BoxTargets.assign(targets.boxes, grid_of_case(case)).cells
    weights = targets.weights * image_rows(case, "match")
    cells, offsets, weights = (
        torch.from_numpy(part) for part in unpadded(case, "boxes", cells, image_rows(case, "offsets"), weights)
    )
    assert cells.int().tolist() == case.array("out/0")[:, 1:].tolist()
    assert_close(offsets, case.array("out/1"))
    assert_close(weights, case.array("out/2"))


def check_focal_loss(case: Case) -> None:
    """TF returns a loss for each class, we their sum."""
    loss = build_classification_loss(parse_message(case.params["text"], m.ClassificationLoss))
    logits, targets, weights = (torch.from_numpy(case.array(f"in/{name}")) for name in ("logits", "targets", "weights"))
    assert_close(loss(logits, targets, weights), case.array("out/0").sum(-1))


def check_l1_loss(case: Case) -> None:
    found, wanted, weights = (
        torch.from_numpy(case.array(f"in/{name}")) for name in ("prediction", "target", "weights")
    )
    recorded = case.array("out/0").sum(-1)
    assert_close(AbsoluteError()(found, wanted, weights.reshape(recorded.shape)), recorded)


def check_peaks(case: Case) -> None:
    """The peaks that score; which cells fill up the rest is left to chance."""
    heatmap, options = maps_of(case, "feature_map"), case.params
    window, scores = options.get("max_pool_kernel_size", 3), case.array("out/0")
    find = best_of_each_channel if options.get("per_channel") else best_peaks
    peaks = find(heatmap, options["k"], window)
    found = [peaks.scores, peaks.cells[..., 0], peaks.cells[..., 1], peaks.channels]
    shape = (len(scores), -1, options["k"])
    for number, values in enumerate(found):
        recorded = case.array(f"out/{number}").reshape(shape)[..., : values.shape[-1]]
        seen = scores.reshape(shape)[..., : values.shape[-1]] > 0
        assert_close(values.reshape(recorded.shape)[torch.from_numpy(seen)], recorded[seen])
    assert not scores.reshape(shape)[..., peaks.scores.shape[-1] :].any()


def _cells(case: Case) -> Tensor:
    return torch.stack([torch.from_numpy(case.array(f"in/{axis}_indices")).long() for axis in ("y", "x")], dim=-1)


def _predictions(maps: StageMaps, sizes: Tensor) -> CenterPredictions:
    height, width = maps.centers.shape[2:]
    return CenterPredictions((maps,), sizes, (4 * height, 4 * width))


def check_decoded_boxes(case: Case) -> None:
    sizes, offsets = maps_of(case, "height_width"), maps_of(case, "offset")
    height, width = sizes.shape[-2:]
    maps = StageMaps(torch.zeros(len(sizes), 1, height, width), sizes, offsets)
    boxes = CenterNetPostprocessor().decode(_predictions(maps, torch.tensor([[1, 1]]))).boxes
    cells = _cells(case)
    picked = boxes[torch.arange(len(boxes))[:, None], cells[..., 0] * width + cells[..., 1]] / STRIDE_OF_MODELS
    limits = torch.tensor([width, height] * 2)
    assert_close(yxyx(picked.clamp(min=0).minimum(limits)), case.array("out/0"))


STRIDE_OF_MODELS = 4


def check_frame(case: Case) -> None:
    """Boxes in cells become boxes in 0..1 of the true image."""
    stride = case.params["stride"]
    sizes = torch.from_numpy(case.array("in/true_image_shapes"))[:, :2].float()
    boxes = xyxy(case.array("in/boxes")) * stride
    frame = sizes.flip(-1).repeat(1, 2)[:, None]
    assert_close(yxyx(boxes.clamp(min=0).minimum(frame) / frame), case.array("out/0"))


def check_candidates(case: Case) -> None:
    heatmap = maps_of(case, "heatmap")
    depths = maps_of(case, "depths") if case.has("in/depths") else None
    logits = torch.logit(heatmap.double()).float()
    maps = KeypointMaps(logits, heatmap, maps_of(case, "offsets"), depths)
    options = case.params
    threshold = options.get("keypoint_score_threshold", 0.1)
    found = Candidates.find(maps, options["max_candidates"], options.get("max_pool_kernel_size", 1), threshold)
    assert_close(found.points.transpose(1, 2), case.array("out/0"))
    assert_close(found.scores.transpose(1, 2), case.array("out/1"))
    assert found.valid.sum(-1).tolist() == case.array("out/2").tolist()
    if depths is not None:
        assert found.depths is not None
        assert_close(found.depths.transpose(1, 2), case.array("out/3"))


def check_regressed(case: Case) -> None:
    regression = maps_of(case, "regression")
    maps = KeypointMaps(regression[:, ::2], regression, regression)
    found = regressed_at(maps, _cells(case)).transpose(1, 2)
    assert_close(found.flatten(2), case.array("out/0"))


def _ranking(options: dict[str, Any]) -> Ranking:
    mode = options.get("candidate_ranking_mode", "min_distance")
    rankings: dict[str, Callable[[], Ranking]] = {
        "min_distance": Nearest,
        "score_distance_ratio": lambda: ScoreByDistance(options["score_distance_offset"]),
        "score_scaled_distance_ratio": lambda: ScoreByScaledDistance(options["score_distance_multiplier"]),
        "gaussian_weighted": lambda: GaussianWeighted(tuple(options["keypoint_std_dev"])),
    }
    return rankings[mode]()


def check_snapping(case: Case) -> None:
    options = case.params
    names = {
        "score_threshold": "keypoint_score_threshold",
        "unmatched_score": "unmatched_keypoint_score",
        "box_scale": "box_scale",
        "search_scale": "candidate_search_scale",
    }
    given = {ours: options[theirs] for ours, theirs in names.items() if theirs in options}
    snapping = Snapping(_ranking(options), **given)
    regressed, points, scores, depths = (
        torch.from_numpy(case.array(f"in/{name}")).transpose(1, 2)
        for name in ("regressed", "candidates", "scores", "depths")
    )
    valid = torch.arange(scores.shape[-1]) < torch.from_numpy(case.array("in/num_candidates"))[..., None]
    bounded = case.has("in/boxes")
    boxes = xyxy(case.array("in/boxes")) * STRIDE_OF_MODELS if bounded else torch.zeros(*regressed.shape[::2], 4)
    found = snapping(regressed, Candidates(points, scores, valid, depths), CellBoxes.of_pixels(boxes), bounded=bounded)
    assert found.depths is not None
    for number, value in enumerate((found.points, found.scores, found.depths)):
        assert_close(value.transpose(1, 2), case.array(f"out/{number}"))


def check_keypoint_frame(case: Case) -> None:
    sizes = torch.from_numpy(case.array("in/true_image_shapes"))[:, :2].float()
    points, scores = (torch.from_numpy(case.array(f"in/{name}")).transpose(1, 2) for name in ("keypoints", "scores"))
    pixels, marks = points.flip(-1) * case.params["stride"], scores
    if case.params["clip_out_of_frame_keypoints"]:
        pixels, marks = in_frame(pixels, marks, sizes)
    relative = pixels.flip(-1) / sizes[:, None, None]
    assert_close(relative.transpose(1, 2), case.array("out/0"))
    assert_close(marks.transpose(1, 2), case.array("out/1"))


def check_instance_masks(case: Case) -> None:
    options = case.params
    sizes = torch.from_numpy(case.array("in/true_image_shapes"))[:, :2].float()
    boxes = xyxy(case.array("in/boxes")) * sizes.flip(-1).repeat(1, 2)[:, None]
    decode = MaskDecoder((options["mask_height"], options["mask_width"]), options["score_threshold"])
    labels = torch.from_numpy(case.array("in/classes")).long()
    found = decode(*own_maps(maps_of(case, "masks"), labels), boxes)
    assert found.int().tolist() == case.array("out/0").tolist()


def check_valid_cells(case: Case) -> None:
    sizes = torch.from_numpy(case.array("in/true_image_shapes"))[:, :2].long()
    grid = (case.params["height"], case.params["width"])
    assert_close(valid_cells(sizes * STRIDE_OF_MODELS, grid).flatten(1).float(), case.array("out/0"))


def check_deviations(case: Case) -> None:
    sizes = torch.stack([torch.from_numpy(case.array(f"in/{side}")) for side in ("height", "width")], dim=-1)
    assert_close(gaussian_deviations(sizes, case.params["min_overlap"]), case.array("out/0"))


_CORNERS = "CenterNetCornerOffsetTargetAssigner.assign_corner_offset_targets"
_KEYPOINTS = "CenterNetKeypointTargetAssigner"
CHECKS: dict[str, Callable[[Case], None]] = {
    "CenterNetCenterHeatmapTargetAssigner.assign_center_targets_from_boxes": check_centers_of_boxes,
    "CenterNetCenterHeatmapTargetAssigner.assign_center_targets_from_keypoints": check_centers_of_keypoints,
    "CenterNetBoxTargetAssigner.assign_size_and_offset_targets": check_boxes,
    f"{_KEYPOINTS}.assign_keypoint_heatmap_targets": check_keypoint_heatmap,
    f"{_KEYPOINTS}.assign_keypoints_offset_targets": check_keypoint_offset,
    f"{_KEYPOINTS}.assign_joint_regression_targets": check_keypoint_regression,
    f"{_KEYPOINTS}.assign_keypoints_depth_targets": check_keypoint_depth,
    "CenterNetMaskTargetAssigner.assign_segmentation_targets": check_masks,
    "CenterNetTemporalOffsetTargetAssigner.assign_temporal_offset_targets": check_temporal_offset,
    "PenaltyReducedLogisticFocalLoss": check_focal_loss,
    "L1LocalizationLoss": check_l1_loss,
    "top_k_feature_map_locations": check_peaks,
    "prediction_tensors_to_boxes": check_decoded_boxes,
    "convert_strided_predictions_to_normalized_boxes": check_frame,
    "prediction_tensors_to_keypoint_candidates": check_candidates,
    "regressed_keypoints_at_object_centers": check_regressed,
    "refine_keypoints": check_snapping,
    "convert_strided_predictions_to_normalized_keypoints": check_keypoint_frame,
    "convert_strided_predictions_to_instance_masks": check_instance_masks,
    "get_valid_anchor_weights_in_flattened_image": check_valid_cells,
    "_compute_std_dev_from_box_size": check_deviations,
}
