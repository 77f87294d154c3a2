"""Small CenterNets, as text; together they ask for every option."""

from __future__ import annotations

from pathlib import Path

from boxwright.pipeline.message import TrainEvalPipelineConfig as Pipeline

KEYPOINT_LABEL_MAP = """
item { id: 1 name: "circle" keypoints { id: 0 label: "top" } keypoints { id: 1 label: "bottom" } }
item { id: 2 name: "square" keypoints { id: 2 label: "corner" } }
"""
FOCAL = "classification_loss { penalty_reduced_logistic_focal_loss { alpha: 2 beta: 4 } }"
L1 = "localization_loss { l1_localization_loss { } }"
BOXES = f"object_detection_task {{ task_loss_weight: 1 offset_loss_weight: 1 scale_loss_weight: 0.1 {L1} }}"
CENTERS = f"object_center_params {{ {FOCAL} max_box_predictions: 20 }}"
# Hidden layers of 16 channels, for speed.
THIN = "{ num_filters: 16 kernel_sizes: 3 }"
SIZE = "image_resizer { fixed_shape_resizer { height: 64 width: 96 } }"
CENTER_NET = f"""center_net {{
  num_classes: 4 {SIZE}
  feature_extractor {{ type: "mobilenet_v2_fpn" depth_multiplier: 0.1 }}
  object_detection_task {{ {L1} scale_head_params {THIN} offset_head_params {THIN} }}
  object_center_params {{ {FOCAL} max_box_predictions: 20 center_head_params {THIN} }}
}}"""


MASKS = f"""mask_estimation_task {{ classification_loss {{ weighted_sigmoid {{ }} }} mask_height: 8 mask_width: 6
  mask_head_params {THIN} }}"""


def keypoint_task(name: str, of: str, more: str = "") -> str:
    return f"""keypoint_estimation_task {{ task_name: "{name}" keypoint_class_name: "{of}" loss {{ {FOCAL} {L1} }}
      heatmap_head_params {THIN} regress_head_params {THIN} offset_head_params {THIN} {more} }}"""


def with_every_task(label_map: Path) -> str:
    """Two keypoint tasks, masks and temporal offsets beside boxes."""
    stds = 'keypoint_label_to_std { key: "top" value: 0.3 } keypoint_label_to_std { key: "bottom" value: 0.5 }'
    tasks = f"""keypoint_label_map_path: "{label_map}"
      {keypoint_task("rounds", "circle", stds + " offset_peak_radius: 1 per_keypoint_offset: true")}
      {keypoint_task("corners", "square", 'candidate_ranking_mode: "score_distance_ratio" rescore_instances: true')}
      {MASKS}"""
    return CENTER_NET.rstrip()[:-1] + tasks + "}"


def with_surface(more: str = "") -> str:
    """Masks and DensePose beside boxes."""
    loss = f"loss {{ classification_loss {{ weighted_softmax {{ }} }} {L1} }}"
    return CENTER_NET.rstrip()[:-1] + f"{MASKS} densepose_estimation_task {{ {loss} class_id: 2 {more} }} }}"


def with_masks() -> str:
    """Masks beside boxes."""
    return CENTER_NET.rstrip()[:-1] + MASKS + "}"


def with_temporal_offsets(model: str) -> str:
    """A model that learns temporal offsets too."""
    return model.rstrip()[:-1] + f"temporal_offset_task {{ {L1} }} }}"


def with_identities(more: str = "") -> str:
    """Embeddings of individuals beside boxes."""
    loss = "classification_loss { weighted_softmax { } }"
    task = f"track_estimation_task {{ {loss} num_track_ids: 7 reid_embed_size: 6 num_fc_layers: 2 {more} }}"
    return CENTER_NET.rstrip()[:-1] + task + "}"


def of_one_class(label_map: Path, more: str) -> str:
    """One class with its keypoints."""
    task = f'keypoint_label_map_path: "{label_map}" {keypoint_task("rounds", "circle", more)}'
    return CENTER_NET.replace("num_classes: 4", "num_classes: 1").rstrip()[:-1] + task + "}"


def variants(label_map: Path) -> list[str]:
    """Models that together ask for everything that is honored."""
    brightest = (
        'argmax_postprocessing: true per_keypoint_offset: true candidate_ranking_mode: "gaussian_weighted_const"'
    )
    from_keypoints = of_one_class(label_map, "").replace(
        "max_box_predictions: 20", "max_box_predictions: 20 keypoint_weights_for_center: [1, 2]"
    )
    start = from_keypoints.index("object_detection_task")
    from_keypoints = from_keypoints[:start] + from_keypoints[from_keypoints.index("object_center_params") :]
    return [
        CENTER_NET.replace("mobilenet_v2_fpn", "mobilenet_v2").replace(
            "object_center_params",
            """post_processing { batch_non_max_suppression { score_threshold: 0.01 iou_threshold: 0.5
            change_coordinate_frame: false } } use_depthwise: true object_center_params""",
        ),
        CENTER_NET.replace("depth_multiplier: 0.1", "use_separable_conv: true bgr_ordering: true"),
        CENTER_NET.replace('"mobilenet_v2_fpn" depth_multiplier: 0.1', '"hourglass_10" channel_means: [1, 2, 3]'),
        CENTER_NET.replace('"mobilenet_v2_fpn" depth_multiplier: 0.1', '"timm/test_resnet.r160_in1k"'),
        with_temporal_offsets(with_every_task(label_map)),
        of_one_class(
            label_map, 'candidate_ranking_mode: "gaussian_weighted" predict_depth: true per_keypoint_depth: true'
        ),
        of_one_class(label_map, 'candidate_ranking_mode: "score_scaled_distance_ratio" predict_depth: true'),
        of_one_class(label_map, brightest),
        from_keypoints,
        with_surface(),
        with_identities(),
    ]


def deep_masks(more: str) -> str:
    """Boxes with DeepMAC's masks."""
    loss = "classification_loss { weighted_sigmoid { } }"
    return CENTER_NET.rstrip()[:-1] + f"deepmac_mask_estimation {{ {loss} num_init_channels: 4 {more} }} }}"


WEAK = """predict_full_resolution_masks: true postprocess_crop_size: 12 use_only_last_stage: true
  box_consistency_loss_weight: 0.5 box_consistency_tightness: true feature_consistency_loss_weight: 0.5
  feature_consistency_warmup_start: 1 feature_consistency_warmup_steps: 10 feature_consistency_dilation: 1
  feature_consistency_threshold: 0.1 augmented_self_supervision_loss_weight: 1
  augmented_self_supervision_warmup_start: 1 augmented_self_supervision_warmup_steps: 5
  augmented_self_supervision_max_translation: 0.1 augmented_self_supervision_flip_probability: 0.5
  augmented_self_supervision_scale_min: 0.9 augmented_self_supervision_scale_max: 1.1
  pointly_supervised_keypoint_loss_weight: 0.3 """


def deep_mask_variants() -> list[str]:
    """DeepMAC of every kind; together they ask for everything that is honored."""
    small = "dim: 8 pixel_embedding_dim: 6 mask_size: 16"
    of_embedding = "use_instance_embedding: false"
    return [
        deep_masks(
            f'{small} network_type: "hourglass10" allowed_masked_classes_ids: [1, 3] max_roi_jitter_ratio: 0.2 '
            "jitter_mode: EXPAND_SYMMETRIC ignore_per_class_box_overlap: true"
        ),
        deep_masks(f'{small} network_type: "hourglass20_uniform_size" task_loss_weight: 5 {WEAK}'),
        deep_masks(
            f'{small} network_type: "hourglass20_no_shortcut" box_consistency_loss_weight: 1 '
            "box_consistency_loss_normalize: NORMALIZE_BALANCED"
        ),
        deep_masks(f'{small} network_type: "resnet20" use_instance_embedding: false'),
        deep_masks(
            f'{small} network_type: "resnet4" task_loss_weight: 0 {WEAK} '
            "feature_consistency_type: CONSISTENCY_FEATURE_MAP augmented_self_supervision_loss: LOSS_KL_DIV "
            "feature_consistency_comparison: COMPARISON_NORMALIZED_DOTPROD"
        ),
        deep_masks(f'{small} network_type: "fully_connected"'),
        deep_masks(
            f'dim: 6 pixel_embedding_dim: 6 mask_size: 10 network_type: "embedding_projection" use_xy: false '
            f"{of_embedding}"
        ),
        deep_masks(f'dim: 5 pixel_embedding_dim: 2 mask_size: 10 network_type: "cond_inst1" {of_embedding}'),
        deep_masks(
            f'dim: 45 pixel_embedding_dim: 2 network_type: "cond_inst3" {of_embedding} {WEAK} '
            "augmented_self_supervision_loss: LOSS_MSE"
        ),
    ]


def give_keypoint_label_map(config: Pipeline, folder: Path) -> None:
    """Write the label map that the keypoint tasks of a configuration need, of the keypoints that they name."""
    model = config.model.center_net if config.model is not None else None
    if model is None or not model.keypoint_estimation_task:
        return
    items, count = [], 0
    for number, task in enumerate(model.keypoint_estimation_task, start=1):
        labels = list(task.mapping("keypoint_label_to_std"))
        points = [f'keypoints {{ id: {count + place} label: "{label}" }}' for place, label in enumerate(labels)]
        items.append(f'item {{ id: {number} name: "{task.keypoint_class_name}" {" ".join(points)} }}')
        count += len(labels)
    path = folder / "keypoints.pbtxt"
    path.write_text("\n".join(items))
    model.keypoint_label_map_path = str(path)
