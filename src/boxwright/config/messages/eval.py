"""Evaluation.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field, Values
from boxwright.config.message import Bool, Float, Int32, Message, String, UInt32
from boxwright.config.reasons import LATER, TF1_EVALUATOR

METRIC_SETS = (
    "coco_detection_metrics",
    "coco_mask_metrics",
    "pascal_voc_detection_metrics",
    "pascal_voc_2007_detection_metrics",
    "weighted_pascal_voc_detection_metrics",
    "precision_at_recall_detection_metrics",
    "oid_V2_detection_metrics",
    "oid_challenge_detection_metrics",
    "oid_challenge_segmentation_metrics",
    "wider_face_metrics",
    "pascal_voc_instance_segmentation_metrics",
    "weighted_pascal_voc_instance_segmentation_metrics",
    # TF's former names of oid_V2_detection_metrics, which its own sample configurations have.
    "open_images_metrics",
    "open_images_V2_detection_metrics",
)
# TF's others.
LATER_METRIC_SETS = ("coco_panoptic_metrics", "lvis_mask_metrics")


class CocoKeypointMetricsKeypointLabelToSigmasEntry(Message):
    """One entry of keypoint_label_to_sigmas."""

    proto_name: ClassVar[str] = "CocoKeypointMetrics.KeypointLabelToSigmasEntry"
    refused: ClassVar[str] = "use metrics_set"

    key: String = Field("", description="Keypoint name, as in the label map.")
    value: Float = Field(0.0, description="OKS sigma of this keypoint; larger tolerates larger errors.")


class CocoKeypointMetrics(Message):
    """COCO keypoint metrics of one class."""

    proto_name: ClassVar[str] = "CocoKeypointMetrics"
    refused: ClassVar[str] = "use metrics_set"

    class_label: String = Field("", description="Class name, as in the label map, whose keypoints are evaluated.")
    keypoint_label_to_sigmas: list[CocoKeypointMetricsKeypointLabelToSigmasEntry] = Field(
        default_factory=list,
        description="Keypoint name to its OKS sigma (position tolerance); unlisted names get a default.",
    )


class ParameterizedMetric(Message):
    """One metric with its own settings."""

    proto_name: ClassVar[str] = "ParameterizedMetric"
    refused: ClassVar[str] = "use metrics_set"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {"parameterized_metric": ("coco_keypoint_metrics",)}

    coco_keypoint_metrics: CocoKeypointMetrics | None = Field(None, description="COCO keypoint metrics for one class.")


class EvalConfigSuperCategoriesEntry(Message):
    """One entry of super_categories."""

    proto_name: ClassVar[str] = "EvalConfig.SuperCategoriesEntry"
    refused: ClassVar[str] = LATER

    key: String = Field("", description="Name of the group.")
    value: String = Field("", description="Comma-separated class names in the group.")


class KeypointEdge(Message):
    """One line between two keypoints in a visualization."""

    proto_name: ClassVar[str] = "KeypointEdge"

    start: Int32 = Field(0, ge=0, description="Index of the first keypoint, from 0.")
    end: Int32 = Field(0, ge=0, description="Index of the second keypoint, from 0.")


class EvalConfig(Message):
    """How the model is evaluated and which results are shown."""

    proto_name: ClassVar[str] = "EvalConfig"

    batch_size: UInt32 = Field(1, ge=1, le=65536, description="Number of images per evaluation batch.")
    num_visualizations: UInt32 = Field(
        10, ge=0, description="Number of example images (or batches) to show with their detections."
    )
    num_examples: UInt32 = Field(
        5000,
        no_effect="TF2 does not read it: all examples are evaluated (see sample_1_of_n_examples)",
        description="Deprecated: number of images to evaluate.",
    )
    eval_interval_secs: UInt32 = Field(
        300, no_effect=TF1_EVALUATOR, description="Seconds between two looks for a new checkpoint in the TF1 evaluator."
    )
    max_evals: UInt32 = Field(
        0, no_effect=TF1_EVALUATOR, description="Deprecated: number of evaluation rounds; 0 = without end."
    )
    save_graph: Bool = Field(False, no_effect=TF1_EVALUATOR, description="Write the TF1 evaluation graph to disk.")
    visualization_export_dir: String = Field(
        "",
        no_effect="boxwright evaluate --out says where pictures go",
        description="Folder to save the visualized images to; empty = do not save.",
    )
    eval_master: String = Field(
        "", no_effect=TF1_EVALUATOR, description="Address of the TF1 session master; empty = local."
    )
    metrics_set: list[String] = Field(
        default_factory=list,
        values=Values(METRIC_SETS, refused=dict.fromkeys(LATER_METRIC_SETS, "is TensorFlow's, and not there yet")),
        description="Names of the metric sets to compute, e.g. coco_detection_metrics; empty = COCO boxes.",
    )
    parameterized_metric: list[ParameterizedMetric] = Field(
        default_factory=list,
        refused=LATER,
        description="Metrics that need their own settings, e.g. COCO keypoint metrics.",
    )
    export_path: String = Field(
        "",
        no_effect="boxwright evaluate --out says where detections go",
        description="File to export detections to; empty = no export.",
    )
    ignore_groundtruth: Bool = Field(
        False, refused=LATER, description="Run and show detections without ground truth, so no metrics."
    )
    use_moving_averages: Bool = Field(
        False, description="Evaluate with the moving-average weights instead of the trained ones."
    )
    eval_instance_masks: Bool = Field(
        False,
        no_effect="a detector with number_of_stages: 3 predicts masks, and coco_mask_metrics in metrics_set measures them",
        description="Also evaluate instance masks.",
    )
    min_score_threshold: Float = Field(
        0.5,
        allow_inf_nan=False,
        description="Only detections with at least this score are drawn; 0..1; metrics do not use it.",
    )
    max_num_boxes_to_visualize: Int32 = Field(20, ge=0, description="Most boxes drawn per image.")
    skip_scores: Bool = Field(False, description="Draw boxes without their scores.")
    skip_labels: Bool = Field(False, description="Draw boxes without their class names.")
    visualize_groundtruth_boxes: Bool = Field(
        False,
        no_effect="truth is drawn beside the detections always",
        description="Draw the ground-truth boxes as well.",
    )
    groundtruth_box_visualization_color: String = Field(
        "black", no_effect="each class has a colour of its own", description="Color name for drawn ground-truth boxes."
    )
    keep_image_id_for_visualization_export: Bool = Field(
        False,
        no_effect="pictures are named by image id always",
        description="Name exported images by their image id instead of a running number.",
    )
    retain_original_images: Bool = Field(
        True,
        no_effect="pictures are of the original images always",
        description="Keep the unresized input images, needed to draw detections on them.",
    )
    include_metrics_per_category: Bool = Field(False, description="Also report metrics for each class.")
    all_metrics_per_category: Bool = Field(
        False,
        refused=LATER,
        description="Report all COCO metrics per class, not only mAP; needs include_metrics_per_category.",
    )
    super_categories: list[EvalConfigSuperCategoriesEntry] = Field(
        default_factory=list,
        refused=LATER,
        description="Groups of classes to report metrics for: group name to comma-separated class names.",
    )
    recall_lower_bound: Float = Field(
        0.0, allow_inf_nan=False, description="Lower end of the recall range for precision-at-recall metrics; 0..1."
    )
    recall_upper_bound: Float = Field(
        1.0, allow_inf_nan=False, description="Upper end of the recall range for precision-at-recall metrics; 0..1."
    )
    retain_original_image_additional_channels: Bool = Field(
        False, no_effect="only three channels are read", description="Keep the unresized extra image channels as well."
    )
    force_no_resize: Bool = Field(
        False,
        refused=LATER,
        description="Evaluate images at their own size: the model's image resizer is replaced by identity.",
    )
    use_dummy_loss_in_eval: Bool = Field(
        False,
        no_effect="TF2 does not read it; the losses are computed",
        description="Report a constant loss of 1 in evaluation instead of computing it.",
    )
    keypoint_edge: list[KeypointEdge] = Field(
        default_factory=list, description="Keypoint pairs to join by lines in visualizations."
    )
    skip_predictions_for_unlabeled_class: Bool = Field(
        False, refused=LATER, description="In COCO metrics, skip detections of classes not annotated for the image."
    )
    image_classes_field_map_empty_to_ones: Bool = Field(
        True,
        no_effect="classes that were verified are read as they are",
        description="Treat an empty image-level class list as all classes annotated.",
    )
