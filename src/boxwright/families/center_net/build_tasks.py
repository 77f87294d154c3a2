"""The tasks of CenterNet: the heads, the losses and the decoding of each.

Keypoints of a class have names in the label map, and places among those of all classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from boxwright.base.errors import ConfigError
from boxwright.base.files import as_here, is_file
from boxwright.config import messages as m
from boxwright.config.build import require
from boxwright.config.load import load_message
from boxwright.config.preset import packaged
from boxwright.data.label_map import load_label_map
from boxwright.families.center_net.criteria.criterion import (
    BoxTask,
    CenterAssigner,
    CentersOfBoxes,
    CentersOfKeypoints,
    CenterTask,
    TemporalOffsetTask,
)
from boxwright.families.center_net.criteria.keypoints import KeypointTargets, KeypointTask, KeypointWeights
from boxwright.families.center_net.criteria.masks import MaskTask, SurfaceTask, at_cells, enlarged
from boxwright.families.center_net.criteria.task import IdentityTask
from boxwright.families.center_net.message import (
    CenterNet,
    CenterNetDensePoseEstimation,
    CenterNetKeypointEstimation,
    CenterNetMaskEstimation,
    CenterNetObjectCenterParams,
    CenterNetObjectDetection,
    CenterNetPredictionHeadParams,
    CenterNetTemporalOffsetEstimation,
    CenterNetTrackEstimation,
)
from boxwright.families.center_net.network import HeadLayers, IdentityClassifier, KeypointHeads, MapHead, SurfaceHeads
from boxwright.families.center_net.postprocessing.keypoints import (
    BrightestKeypoints,
    GaussianWeighted,
    KeypointDecoder,
    KeypointTaskDecoder,
    Nearest,
    Ranking,
    ScoreByDistance,
    ScoreByScaledDistance,
    SnappedKeypoints,
    Snapping,
)
from boxwright.families.center_net.postprocessing.masks import MaskDecoder, SurfaceDecoder
from boxwright.families.shared.criterion import build_classification_loss, build_localization_loss
from boxwright.types import Categories


@dataclass(frozen=True)
class ClassKeypoints:
    """The keypoints of a class.

    Attributes:
        label: Of the class, 0-based.
        indices: The place of each keypoint among those of all classes.
        deviations: Standard deviations, relative to that of an object's center.
    """

    label: int
    indices: tuple[int, ...]
    deviations: tuple[float, ...]


def build_class_keypoints(config: CenterNet, categories: Categories | None) -> list[ClassKeypoints]:
    """Return the keypoints of each keypoint task's class."""
    if not config.keypoint_estimation_task:
        return []
    try:
        label_map = load_message(packaged(as_here(config.keypoint_label_map_path)), m.StringIntLabelMap)
    except ConfigError as error:
        raise config.refusal("keypoint_label_map_path", str(error)) from None
    items = {item.name: item for item in label_map.item if item.keypoints}
    all_keypoints = [_keypoints(task, items, config) for task in config.keypoint_estimation_task]
    for task, class_keypoints in zip(config.keypoint_estimation_task, all_keypoints, strict=True):
        _check_class(task, class_keypoints.label, config, categories)
    indices = Counter(index for class_keypoints in all_keypoints for index in class_keypoints.indices)
    index, count = indices.most_common(1)[0]
    if count > 1:
        raise config.refusal("keypoint_label_map_path", f"keypoint id {index} occurs {count} times; give each its own")
    return all_keypoints


def check_keypoints_of_data(config: CenterNet, reader: m.InputReader) -> None:
    """Check keypoint tasks against the training data's label map, if its file is there, and the number that is read.

    Raises:
        ConfigError: If a task's class has another id in the data, or records have fewer keypoints than the tasks learn.
    """
    if not config.keypoint_estimation_task:
        return
    path = packaged(as_here(reader.label_map_path))
    tasks = build_class_keypoints(config, load_label_map(path) if reader.label_map_path and is_file(path) else None)
    last = max(index for task in tasks for index in task.indices)
    if reader.num_keypoints <= last:
        raise reader.refusal(
            "num_keypoints",
            f"{reader.num_keypoints}, but the keypoint label map's ids go up to {last}; set it to how many the records "
            f"have of each object, {last + 1} or more",
        )


def _keypoints(
    task: CenterNetKeypointEstimation, items: dict[str, m.StringIntLabelMapItem], config: CenterNet
) -> ClassKeypoints:
    item, path = items.get(task.keypoint_class_name), config.keypoint_label_map_path
    if item is None:
        known = ", ".join(items) or "none"
        raise task.refusal(
            "keypoint_class_name",
            f"{task.keypoint_class_name!r} is no class with keypoints in {path}; those are: {known}",
        )
    labels = [point.label for point in item.keypoints]
    given = task.mapping("keypoint_label_to_std")
    missing = [label for label in labels if label not in given]
    problem = f"none for {', '.join(missing[:5])}; give each one, or none" if given and missing else ""
    if unknown := [label for label in given if label not in labels]:
        problem = f"{unknown[0]!r} is no keypoint of {item.name!r} in {path}"
    if problem:
        raise task.refusal("keypoint_label_to_std", problem)
    indices = tuple(point.id for point in item.keypoints)
    return ClassKeypoints(item.id - 1, indices, tuple(given.get(label, 1.0) for label in labels))


def _check_class(
    task: CenterNetKeypointEstimation, label: int, config: CenterNet, categories: Categories | None
) -> None:
    if not 0 <= label < config.num_classes:
        raise task.refusal(
            "keypoint_class_name", f"id {label + 1} in the keypoint label map, of {config.num_classes} classes"
        )
    if categories is None:
        return
    of_data = categories.by_any_name(task.keypoint_class_name)
    if of_data is None or of_data.label != label:
        actual = "no such class" if of_data is None else f"id {of_data.label + 1}"
        raise task.refusal(
            "keypoint_class_name",
            f"{task.keypoint_class_name!r} has id {label + 1} in the keypoint label map, but {actual} in the data's",
        )


@dataclass(frozen=True)
class HeadBuilder:
    """Builds heads on a feature map.

    Attributes:
        channels: Of the feature map.
        separable: Whether hidden convolutions are depthwise separable.
    """

    channels: int
    separable: bool

    def __call__(self, out: int, params: CenterNetPredictionHeadParams | None = None, bias: float = 0.0) -> MapHead:
        """Return a head of `out` channels; without `params` it has one hidden convolution of 256 channels."""
        if params is None:
            layers = HeadLayers(separable=self.separable)
        else:
            layers = HeadLayers(tuple(params.num_filters), tuple(params.kernel_sizes), self.separable)
        return MapHead(self.channels, out, layers, bias=bias)


def build_center_task(config: CenterNetObjectCenterParams, keypoints: list[ClassKeypoints]) -> CenterTask:
    """Build the task of centers."""
    loss = require(config.classification_loss, config, "classification_loss")
    assigner: CenterAssigner = CentersOfBoxes(config.min_box_overlap_iou)
    if config.keypoint_weights_for_center:
        (class_keypoints,) = keypoints
        weights = tuple(config.keypoint_weights_for_center)
        if len(weights) != len(class_keypoints.indices):
            count = len(class_keypoints.indices)
            raise config.refusal("keypoint_weights_for_center", f"expected {count}, found {len(weights)}")
        targets = KeypointTargets(class_keypoints.label, class_keypoints.indices)
        assigner = CentersOfKeypoints(targets, weights, config.min_box_overlap_iou)
    weight, labeled_only = config.object_center_loss_weight, config.use_labeled_classes
    return CenterTask(assigner, build_classification_loss(loss), weight, labeled_only=labeled_only)


def build_box_task(config: CenterNetObjectDetection) -> BoxTask:
    """Build the task of boxes."""
    loss = require(config.localization_loss, config, "localization_loss")
    return BoxTask(
        build_localization_loss(loss),
        config.task_loss_weight * config.scale_loss_weight,
        config.task_loss_weight * config.offset_loss_weight,
    )


def build_mask_task(config: CenterNetMaskEstimation) -> MaskTask:
    """Build the task of masks."""
    loss = require(config.classification_loss, config, "classification_loss")
    return MaskTask(build_classification_loss(loss), config.task_loss_weight)


def build_mask_decoder(config: CenterNetMaskEstimation) -> MaskDecoder:
    """Build the decoding of masks."""
    return MaskDecoder((config.mask_height, config.mask_width), config.score_threshold)


def build_temporal_offset_task(config: CenterNetTemporalOffsetEstimation) -> TemporalOffsetTask:
    """Build the task of temporal offsets."""
    loss = require(config.localization_loss, config, "localization_loss")
    return TemporalOffsetTask(build_localization_loss(loss), config.task_loss_weight)


def build_identity_task(config: CenterNetTrackEstimation) -> IdentityTask:
    """Build the task of identities."""
    loss = require(config.classification_loss, config, "classification_loss")
    return IdentityTask(build_classification_loss(loss), config.task_loss_weight)


def build_identity_classifier(config: CenterNetTrackEstimation) -> IdentityClassifier:
    """Build the classifier that embeddings are learned with."""
    return IdentityClassifier(config.reid_embed_size, config.num_track_ids, config.num_fc_layers)


def build_keypoint_heads(config: CenterNetKeypointEstimation, count: int, head: HeadBuilder) -> KeypointHeads:
    """Build the heads of a task of `count` keypoints."""
    depths = count if config.per_keypoint_depth else 1
    return KeypointHeads(
        config.task_name,
        head(count, config.heatmap_head_params, config.heatmap_bias_init),
        head(2 * count, config.regress_head_params),
        head(2 * count if config.per_keypoint_offset else 2, config.offset_head_params),
        head(depths) if config.predict_depth else None,
    )


def build_keypoint_task(config: CenterNetKeypointEstimation, number: int, keypoints: ClassKeypoints) -> KeypointTask:
    """Build a keypoint task; `number` is its place among them."""
    loss = require(config.loss, config, "loss")
    weight = config.task_loss_weight
    return KeypointTask(
        config.task_name,
        number,
        KeypointTargets(keypoints.label, keypoints.indices),
        keypoints.deviations,
        build_classification_loss(require(loss.classification_loss, loss, "classification_loss")),
        build_localization_loss(require(loss.localization_loss, loss, "localization_loss")),
        KeypointWeights(
            weight * config.keypoint_heatmap_loss_weight,
            weight * config.keypoint_offset_loss_weight,
            weight * config.keypoint_regression_loss_weight,
            weight * config.keypoint_depth_loss_weight,
        ),
        config.offset_peak_radius,
    )


def build_keypoint_decoder(
    config: CenterNetKeypointEstimation, keypoints: ClassKeypoints, places: tuple[int, ...]
) -> KeypointTaskDecoder:
    """Build the decoding of a keypoint task.

    Args:
        places: Of its keypoints among those of a detection.
    """
    decode: KeypointDecoder
    if config.argmax_postprocessing:
        decode = BrightestKeypoints(config.gaussian_denom_ratio)
    else:
        snapping = Snapping(
            _RANKINGS[config.candidate_ranking_mode](config, keypoints.deviations),
            config.keypoint_candidate_score_threshold,
            config.unmatched_keypoint_score,
            config.box_scale,
            config.candidate_search_scale,
        )
        decode = SnappedKeypoints(snapping, config.num_candidates_per_keypoint, config.peak_max_pool_kernel_size)
    rescores_above = config.rescoring_threshold if config.rescore_instances else None
    return KeypointTaskDecoder(keypoints.label, places, decode, rescores_above)


def _gaussian_weighted(config: CenterNetKeypointEstimation, deviations: tuple[float, ...]) -> Ranking:
    return GaussianWeighted(tuple(deviation * config.std_dev_multiplier for deviation in deviations))


_RANKINGS: dict[str, Callable[[CenterNetKeypointEstimation, tuple[float, ...]], Ranking]] = {
    "min_distance": lambda _config, _deviations: Nearest(),
    "score_distance_ratio": lambda config, _deviations: ScoreByDistance(config.score_distance_offset),
    "score_scaled_distance_ratio": lambda config, _: ScoreByScaledDistance(config.score_distance_multiplier),
    "gaussian_weighted": _gaussian_weighted,
}


def build_surface_heads(config: CenterNetDensePoseEstimation, head: HeadBuilder) -> SurfaceHeads:
    """Build the heads of parts and coordinates."""
    return SurfaceHeads(head(config.num_parts, bias=config.heatmap_bias_init), head(2 * config.num_parts))


def build_surface_task(config: CenterNetDensePoseEstimation) -> SurfaceTask:
    """Build the task of parts and coordinates."""
    loss = require(config.loss, config, "loss")
    return SurfaceTask(
        build_classification_loss(require(loss.classification_loss, loss, "classification_loss")),
        build_localization_loss(require(loss.localization_loss, loss, "localization_loss")),
        config.task_loss_weight * config.part_loss_weight,
        config.task_loss_weight * config.coordinate_loss_weight,
        enlarged if config.upsample_to_input_res else at_cells,
    )


def build_surface_decoder(config: CenterNetDensePoseEstimation, masks: CenterNetMaskEstimation) -> SurfaceDecoder:
    """Build the decoding, for masks of the same size."""
    return SurfaceDecoder(config.class_id, (masks.mask_height, masks.mask_width))
