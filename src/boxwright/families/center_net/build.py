"""`CenterNet`: the whole detector."""

from __future__ import annotations

from torch import nn

from boxwright.config import messages as m
from boxwright.config.build import require
from boxwright.config.support import refuse_contradictions
from boxwright.families.center_net.build_deep_masks import build_deep_mask_task, build_deep_masks, build_embedding_heads
from boxwright.families.center_net.build_feature_extractor import FeatureExtractor, build_feature_extractor
from boxwright.families.center_net.build_tasks import (
    ClassKeypoints,
    HeadBuilder,
    build_box_task,
    build_center_task,
    build_class_keypoints,
    build_identity_classifier,
    build_identity_task,
    build_keypoint_decoder,
    build_keypoint_heads,
    build_keypoint_task,
    build_mask_decoder,
    build_mask_task,
    build_surface_decoder,
    build_surface_heads,
    build_surface_task,
    build_temporal_offset_task,
    check_keypoints_of_data,
)
from boxwright.families.center_net.criteria.criterion import CenterNetCriterion
from boxwright.families.center_net.criteria.task import Task
from boxwright.families.center_net.deep_mac_message import mask_multiple
from boxwright.families.center_net.message import CenterNet as CenterNetMessage
from boxwright.families.center_net.message import CenterNetObjectCenterParams
from boxwright.families.center_net.network import CenterNet, StageHeads
from boxwright.families.center_net.postprocessing.postprocessor import CenterNetPostprocessor
from boxwright.families.center_net.predictions import STRIDE
from boxwright.families.center_net.tensorflow_names import CENTER_NET_PARTS
from boxwright.families.shared.family import Family, check_classes
from boxwright.families.shared.image_resizer import build_image_resizer
from boxwright.families.shared.post_processing import build_nms
from boxwright.nn.criteria.target_assigner import ClassColumns
from boxwright.nn.detector import Detector
from boxwright.nn.postprocessing.nms import Nms
from boxwright.nn.preprocessing import Preprocessor
from boxwright.types import Categories


def build_center_net(config: CenterNetMessage, categories: Categories | None) -> Detector:
    """Build a CenterNet, with fresh weights."""
    refuse_contradictions(config)
    check_classes(config, config.num_classes, ClassColumns(config.num_classes, 0), categories)
    resizer = build_image_resizer(require(config.image_resizer, config, "image_resizer"))
    extractor_config = require(config.feature_extractor, config, "feature_extractor")
    extractor = build_feature_extractor(extractor_config)
    keypoints = build_class_keypoints(config, categories)
    postprocessor = _postprocessor(config, keypoints)
    return Detector(
        # TF scales the padding too.
        Preprocessor(resizer, extractor.scaling, scale_padding=True),
        _network(config, extractor, keypoints, postprocessor),
        _criterion(config, keypoints),
        postprocessor,
        num_classes=config.num_classes,
        categories=categories,
    )


def _centers(config: CenterNetMessage) -> CenterNetObjectCenterParams:
    return require(config.object_center_params, config, "object_center_params")


def _network(
    config: CenterNetMessage,
    extractor: FeatureExtractor,
    keypoints: list[ClassKeypoints],
    postprocessor: CenterNetPostprocessor,
) -> CenterNet:
    head, deep = HeadBuilder(extractor.channels, config.use_depthwise), config.deepmac_mask_estimation
    multiple, track = extractor.pad_to_multiple, config.track_estimation_task
    if deep is not None and deep.predict_full_resolution_masks:
        # Both are powers of 2.
        multiple = max(multiple, STRIDE * mask_multiple(deep.network_type))
    return CenterNet(
        extractor.backbone,
        extractor.neck,
        [_stage(config, head, keypoints) for _ in range(extractor.stages)],
        channel_order=extractor.channel_order,
        pad_to_multiple=multiple,
        deep_masks=None if deep is None else build_deep_masks(deep, extractor, postprocessor.detect),
        identity_classifier=None if track is None else build_identity_classifier(track),
    )


def _stage(config: CenterNetMessage, head: HeadBuilder, keypoints: list[ClassKeypoints]) -> StageHeads:
    centers, boxes, masks = _centers(config), config.object_detection_task, config.mask_estimation_task
    deep, surface = config.deepmac_mask_estimation, config.densepose_estimation_task
    track = config.track_estimation_task
    further: dict[str, nn.Module] = {}
    if deep is not None:
        further["embeddings"] = build_embedding_heads(deep, head)
    if surface is not None:
        further["surface"] = build_surface_heads(surface, head)
    if track is not None:
        further["identities"] = head(track.reid_embed_size)
    tasks = zip(config.keypoint_estimation_task, keypoints, strict=True)
    return StageHeads(
        head(config.num_classes, centers.center_head_params, centers.heatmap_bias_init),
        None if boxes is None else head(2, boxes.scale_head_params),
        None if boxes is None else head(2, boxes.offset_head_params),
        [build_keypoint_heads(task, len(class_keypoints.indices), head) for task, class_keypoints in tasks],
        None if masks is None else head(config.num_classes, masks.mask_head_params, masks.heatmap_bias_init),
        None if config.temporal_offset_task is None else head(2),
        further,
    )


def _criterion(config: CenterNetMessage, keypoints: list[ClassKeypoints]) -> CenterNetCriterion:
    tasks: list[Task] = [build_center_task(_centers(config), keypoints)]
    if config.object_detection_task is not None:
        tasks.append(build_box_task(config.object_detection_task))
    for number, (task, class_keypoints) in enumerate(zip(config.keypoint_estimation_task, keypoints, strict=True)):
        tasks.append(build_keypoint_task(task, number, class_keypoints))
    if config.mask_estimation_task is not None:
        tasks.append(build_mask_task(config.mask_estimation_task))
    if config.temporal_offset_task is not None:
        tasks.append(build_temporal_offset_task(config.temporal_offset_task))
    if config.densepose_estimation_task is not None:
        tasks.append(build_surface_task(config.densepose_estimation_task))
    if config.track_estimation_task is not None:
        tasks.append(build_identity_task(config.track_estimation_task))
    deep = config.deepmac_mask_estimation
    return CenterNetCriterion(tuple(tasks), None if deep is None else build_deep_mask_task(deep))


def _postprocessor(config: CenterNetMessage, keypoints: list[ClassKeypoints]) -> CenterNetPostprocessor:
    centers, masks, tasks = _centers(config), config.mask_estimation_task, config.keypoint_estimation_task
    surface = config.densepose_estimation_task
    # With one class and one task TF returns the task's keypoints alone, else those of the whole label map.
    alone = config.num_classes == 1 and len(keypoints) == 1
    all_indices = [class_keypoints.indices for class_keypoints in keypoints]
    places = [tuple(range(len(indices))) if alone else indices for indices in all_indices]
    return CenterNetPostprocessor(
        centers.max_box_predictions,
        centers.peak_max_pool_kernel_size,
        tuple(build_keypoint_decoder(*arguments) for arguments in zip(tasks, keypoints, places, strict=True)),
        bool(tasks) and all(task.clip_out_of_frame_keypoints for task in tasks),
        None if masks is None else build_mask_decoder(masks),
        None if masks is None or surface is None else build_surface_decoder(surface, masks),
        None if config.post_processing is None else _suppression(config.post_processing),
    )


def _suppression(config: m.PostProcessing) -> Nms:
    return build_nms(require(config.batch_non_max_suppression, config, "batch_non_max_suppression"))


FAMILY = Family(
    CenterNet,
    build_center_net,
    tf2=CENTER_NET_PARTS,
    check_training=check_keypoints_of_data,
    learns_in_bfloat16=True,
)
