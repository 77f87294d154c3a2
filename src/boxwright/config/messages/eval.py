"""Evaluation.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from boxwright.config.field import AllowedValues, UInt32, field, number
from boxwright.config.message import Message
from boxwright.config.rules import TF1_EVALUATOR, ordered

METRIC_SETS = (
    "coco_detection_metrics",
    "coco_mask_metrics",
    "pascal_voc_detection_metrics",
    "pascal_voc_2007_detection_metrics",
    "weighted_pascal_voc_detection_metrics",
    "precision_at_recall_detection_metrics",
    "lvis_mask_metrics",
    "lvis_box_metrics",
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

_OTHER_METRIC_SETS = {
    "coco_panoptic_metrics": "is for panoptic networks, of which TensorFlow's model builder has none; use "
    "coco_mask_metrics",
}

class CocoKeypointMetricsKeypointLabelToSigmasEntry(Message,
    name="CocoKeypointMetrics.KeypointLabelToSigmasEntry"):
    """One entry of keypoint_label_to_sigmas."""

    key: str = field("", "Keypoint name, as in the label map.")
    value: float = number(0.0, "(0, inf)", "OKS sigma of this keypoint; larger tolerates larger errors.")

class CocoKeypointMetrics(Message):
    """COCO keypoint metrics of one class."""

    class_label: str = field("", "Class name, as in the label map, whose keypoints are evaluated.")
    keypoint_label_to_sigmas: list[CocoKeypointMetricsKeypointLabelToSigmasEntry] = field([],
        "Keypoint name to its OKS sigma (position tolerance); unlisted names get 0.05.")

class ParameterizedMetric(Message, oneof="parameterized_metric"):
    """One metric with its own settings."""

    coco_keypoint_metrics: CocoKeypointMetrics | None = field(None, "COCO keypoint metrics for one class.")

class EvalConfigSuperCategoriesEntry(Message, name="EvalConfig.SuperCategoriesEntry"):
    """One entry of super_categories."""

    key: str = field("", "Name of the group.")
    value: str = field("", "Comma-separated class names in the group.")

class KeypointEdge(Message):
    """One line between two keypoints in a visualization."""

    start: int = number(0, "[0, inf)", "Index of the first keypoint, from 0.")
    end: int = number(0, "[0, inf)", "Index of the second keypoint, from 0.")

class EvalConfig(Message, path="eval_config"):
    """How the model is evaluated and which results are shown."""

    batch_size: UInt32 = number(1, "[1, 65536]", "Number of images per evaluation batch.")
    num_visualizations: UInt32 = number(10, "[0, inf)",
        "Number of example images (or batches) to show with their detections.")
    num_examples: UInt32 = field(5000,
        "Deprecated: number of images to evaluate.",
        no_effect="TF2 does not read it: all examples are evaluated (see sample_1_of_n_examples)")
    eval_interval_secs: UInt32 = field(300,
        "Seconds between two looks for a new checkpoint in the TF1 evaluator.", no_effect=TF1_EVALUATOR)
    max_evals: UInt32 = field(0, "Deprecated: number of evaluation rounds; 0 = without end.", no_effect=TF1_EVALUATOR)
    save_graph: bool = field(False, "Write the TF1 evaluation graph to disk.", no_effect=TF1_EVALUATOR)
    visualization_export_dir: str = field("",
        "Folder to save the visualized images to; empty = do not save.",
        no_effect="boxwright evaluate --out says where pictures go")
    eval_master: str = field("", "Address of the TF1 session master; empty = local.", no_effect=TF1_EVALUATOR)
    metrics_set: list[str] = field([],
        "Names of the metric sets to compute, e.g. coco_detection_metrics; empty = COCO boxes.",
        values=AllowedValues(METRIC_SETS, refused=_OTHER_METRIC_SETS))
    parameterized_metric: list[ParameterizedMetric] = field([],
        "Metrics that need their own settings, e.g. COCO keypoint metrics.")
    export_path: str = field("",
        "File to export detections to; empty = no export.",
        no_effect="boxwright evaluate --out says where detections go")
    ignore_groundtruth: bool = field(False,
        "Run and show detections without ground truth, so no metrics and no losses.")
    use_moving_averages: bool = field(False, "Evaluate with the moving-average weights instead of the trained ones.")
    eval_instance_masks: bool = field(False,
        "Also evaluate instance masks.",
        no_effect="a detector with number_of_stages: 3 predicts masks, and coco_mask_metrics in metrics_set measures "
                  "them")
    min_score_threshold: float = number(0.5, "(-inf, inf)",
        "Only detections with at least this score are drawn; 0..1; metrics do not use it.")
    max_num_boxes_to_visualize: int = number(20, "[0, inf)", "Most boxes drawn per image.")
    skip_scores: bool = field(False, "Draw boxes without their scores.")
    skip_labels: bool = field(False, "Draw boxes without their class names.")
    visualize_groundtruth_boxes: bool = field(False,
        "Draw the ground-truth boxes as well.", no_effect="truth is drawn beside the detections always")
    groundtruth_box_visualization_color: str = field("black",
        "Color name for drawn ground-truth boxes.", no_effect="each class has its own color")
    keep_image_id_for_visualization_export: bool = field(False, "Name exported images by their image id instead of a "
        "running number.", no_effect="pictures are named by image id always")
    retain_original_images: bool = field(True,
        "Keep the unresized input images, needed to draw detections on them.",
        no_effect="pictures are of the original images always")
    include_metrics_per_category: bool = field(False, "Also report metrics for each class.")
    all_metrics_per_category: bool = field(False,
        "Report all COCO metrics per class, not only mAP; needs include_metrics_per_category.")
    super_categories: list[EvalConfigSuperCategoriesEntry] = field([],
        "Groups of classes to report metrics for: group name to comma-separated class names; needs "
        "include_metrics_per_category.")
    recall_lower_bound: float = number(0.0, "[0, 1]", "Lower end of the recall range for precision-at-recall metrics.")
    recall_upper_bound: float = number(1.0, "[0, 1]", "Upper end of the recall range for precision-at-recall metrics.")
    retain_original_image_additional_channels: bool = field(False,
        "Keep the unresized extra image channels as well.",
        no_effect="the images that are drawn have red, green and blue alone")
    force_no_resize: bool = field(False,
        "Evaluate images at their own size: the model's image resizer is replaced by identity.")
    use_dummy_loss_in_eval: bool = field(False,
        "Report a constant loss of 1 in evaluation instead of computing it.",
        no_effect="TF2 does not read it; the losses are computed")
    keypoint_edge: list[KeypointEdge] = field([], "Keypoint pairs to join by lines in visualizations.")
    skip_predictions_for_unlabeled_class: bool = field(False,
        "In COCO's box metrics, skip detections of classes not annotated for the image.")
    image_classes_field_map_empty_to_ones: bool = field(True, "Treat an empty image-level class list as all classes "
        "annotated, for skip_predictions_for_unlabeled_class.")

    rules = (
        ordered("recall_lower_bound", "recall_upper_bound"),
    )
