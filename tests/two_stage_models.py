"""Small two-stage detectors, as text; together they ask for every option."""

from __future__ import annotations

HYPERPARAMS = (
    "regularizer { l2_regularizer { weight: 0.0001 } } initializer { truncated_normal_initializer { stddev: 0.03 } }"
)

POST = """second_stage_post_processing {
  batch_non_max_suppression { iou_threshold: 0.5 max_detections_per_class: 20 max_total_detections: 20 SCORE }
  score_converter: SOFTMAX }"""

# A pyramid over a small network of timm's, with masks.
MASK_RCNN = f"""faster_rcnn {{
  number_of_stages: 3
  num_classes: 4
  image_resizer {{ fixed_shape_resizer {{ height: 64 width: 96 }} }}
  feature_extractor {{ type: "timm/mobilenetv3_small_050" conv_hyperparams {{ {HYPERPARAMS} activation: RELU }}
    fpn {{ min_level: 2 max_level: 5 additional_layer_depth: 32 }} }}
  first_stage_anchor_generator {{ multiscale_anchor_generator {{
    min_level: 2 max_level: 5 anchor_scale: 4 aspect_ratios: [0.5, 1, 2] scales_per_octave: 1 normalize_coordinates: false }} }}
  first_stage_box_predictor_conv_hyperparams {{ {HYPERPARAMS} }}
  first_stage_box_predictor_depth: 32
  first_stage_minibatch_size: 64
  first_stage_max_proposals: 32
  second_stage_batch_size: 16
  initial_crop_size: 14 maxpool_kernel_size: 2 maxpool_stride: 2
  second_stage_box_predictor {{ mask_rcnn_box_predictor {{ predict_instance_masks: true mask_prediction_conv_depth: 16
    conv_hyperparams {{ {HYPERPARAMS} activation: RELU }} }} }}
  {POST.replace("SCORE", "score_threshold: 0.01")}
}}"""
FASTER_RCNN = MASK_RCNN.replace("number_of_stages: 3", "number_of_stages: 2").replace(
    "predict_instance_masks: true", ""
)
PROPOSALS_ONLY = MASK_RCNN.replace("number_of_stages: 3", "number_of_stages: 1")
# The paper's choices, which TF lacks.
PAPER_RCNN = (
    MASK_RCNN.replace("activation: RELU }", "activation: RELU } pyramid: SUBSAMPLED", 1)
    .replace("maxpool_kernel_size: 2 maxpool_stride: 2", "roi_align { samples: 2 aligned: false num_levels: 4 }")
    .replace("initial_crop_size: 14", "initial_crop_size: 7")
    .replace(
        "mask_prediction_conv_depth: 16",
        "mask_prediction_conv_depth: 16 mask_crop_size: 14 deconvolve_masks: true mask_height: 28 mask_width: 28",
    )
    .replace(
        "second_stage_batch_size: 16",
        """second_stage_batch_size: 16 add_groundtruth_boxes: true first_stage_share_predictor: true
        first_stage_low_quality_matches: OWN first_stage_keep_crossing_anchors: true first_stage_activation: RELU
        level_proposals { per_level: 50 per_level_in_training: 60 max_proposals_in_training: 40 }
        first_stage_box_coder { faster_rcnn_box_coder { y_scale: 1 x_scale: 1 height_scale: 1 width_scale: 1 } }
        first_stage_localization_loss { weighted_smooth_l1 { } } second_stage_localization_loss { l1_localization_loss { } }""",
    )
)

# One map, of TF2's ResNet, TF1's ResNet and Inceptions; and of R-FCN.
ONE_MAP = f"""faster_rcnn {{
  num_classes: 4
  image_resizer {{ fixed_shape_resizer {{ height: 64 width: 96 }} }}
  feature_extractor {{ type: "faster_rcnn_resnet50_keras" }}
  first_stage_anchor_generator {{ grid_anchor_generator {{ scales: [0.125, 0.25] aspect_ratios: [0.5, 1, 2] }} }}
  first_stage_box_predictor_conv_hyperparams {{ {HYPERPARAMS} }}
  first_stage_box_predictor_depth: 32
  first_stage_max_proposals: 16
  second_stage_batch_size: 8
  initial_crop_size: 14 maxpool_kernel_size: 2 maxpool_stride: 2
  second_stage_box_predictor {{ mask_rcnn_box_predictor {{ use_dropout: true fc_hyperparams {{ op: FC }} }} }}
  {POST.replace("SCORE", "")}
}}"""
RFCN = ONE_MAP.replace("resnet50_keras", "resnet50").replace(
    "mask_rcnn_box_predictor { use_dropout: true fc_hyperparams { op: FC } }",
    f"rfcn_box_predictor {{ conv_hyperparams {{ {HYPERPARAMS} }} depth: 32 }}",
)
OPTIONS = ONE_MAP.replace(
    "second_stage_batch_size: 8",
    """second_stage_batch_size: 8 first_stage_atrous_rate: 2 use_matmul_crop_and_resize: true clip_anchors_to_image: true
    use_static_shapes: true use_combined_nms_in_first_stage: true output_final_box_features: true
    output_final_box_rpn_features: true hard_example_miner { num_hard_examples: 4 iou_threshold: 0.9 }
    second_stage_classification_loss { weighted_sigmoid { } }""",
)
PYRAMID = (
    MASK_RCNN.replace(
        '"timm/mobilenetv3_small_050"',
        '"faster_rcnn_resnet50_fpn_keras" override_base_feature_extractor_hyperparams: true',
    )
    .replace("activation: RELU }", "activation: RELU batch_norm { } }", 1)
    .replace("mask_prediction_conv_depth: 16", "mask_prediction_conv_depth: 0 masks_are_class_agnostic: true")
)
EVERY = {
    "mask_rcnn": MASK_RCNN,
    "faster_rcnn": FASTER_RCNN,
    "proposals": PROPOSALS_ONLY,
    "paper": PAPER_RCNN,
    "one_map": ONE_MAP,
    "rfcn": RFCN,
    "options": OPTIONS,
    "pyramid": PYRAMID,
}
