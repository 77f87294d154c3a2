"""`EvalConfig`: how a detector is evaluated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from boxwright.base.drawing import NAME_AND_SCORE, Captions
from boxwright.config.build import build_chosen
from boxwright.config.support import refuse_unsupported
from boxwright.evaluation.metrics.coco import CocoMetrics, Labeled, PerCategoryMetrics, verified_or_all
from boxwright.evaluation.metrics.keypoints import CocoKeypointMetrics
from boxwright.evaluation.metrics.lvis import LvisMetrics
from boxwright.evaluation.metrics.metric import Metrics, verified_or_present
from boxwright.evaluation.metrics.pascal import (
    OPEN_IMAGES_CHALLENGE,
    OPEN_IMAGES_CHALLENGE_MASKS,
    OPEN_IMAGES_V2,
    PASCAL_VOC,
    PASCAL_VOC_2007,
    PASCAL_VOC_MASKS,
    WEIGHTED_PASCAL_VOC,
    WEIGHTED_PASCAL_VOC_MASKS,
    PascalMetrics,
    precision_at_recall,
)
from boxwright.evaluation.metrics.regions import MASKS
from boxwright.evaluation.metrics.wider_face import WiderFaceMetrics
from boxwright.pipeline import messages as m
from boxwright.types import Categories

MetricsFactory = Callable[[Categories], Metrics]
_METRICS: dict[str, Callable[[m.EvalConfig], MetricsFactory]] = {
    "coco_detection_metrics": lambda config: partial(
        CocoMetrics, by_category=_by_category(config), labeled=_labeled(config)
    ),
    "coco_mask_metrics": lambda config: partial(CocoMetrics, by_category=_by_category(config), kind=MASKS),
    "lvis_mask_metrics": lambda config: partial(
        LvisMetrics, by_category=config.include_metrics_per_category, kind=MASKS
    ),
    "lvis_box_metrics": lambda config: partial(LvisMetrics, by_category=config.include_metrics_per_category),
    "pascal_voc_detection_metrics": lambda _: partial(PascalMetrics, rules=PASCAL_VOC),
    "pascal_voc_2007_detection_metrics": lambda _: partial(PascalMetrics, rules=PASCAL_VOC_2007),
    "weighted_pascal_voc_detection_metrics": lambda _: partial(PascalMetrics, rules=WEIGHTED_PASCAL_VOC),
    "precision_at_recall_detection_metrics": lambda config: partial(
        PascalMetrics, rules=precision_at_recall(config.recall_lower_bound, config.recall_upper_bound)
    ),
    "oid_V2_detection_metrics": lambda _: partial(PascalMetrics, rules=OPEN_IMAGES_V2),
    "oid_challenge_detection_metrics": lambda _: partial(PascalMetrics, rules=OPEN_IMAGES_CHALLENGE),
    "oid_challenge_segmentation_metrics": lambda _: partial(PascalMetrics, rules=OPEN_IMAGES_CHALLENGE_MASKS),
    "pascal_voc_instance_segmentation_metrics": lambda _: partial(PascalMetrics, rules=PASCAL_VOC_MASKS),
    "wider_face_metrics": lambda _: WiderFaceMetrics,
    "weighted_pascal_voc_instance_segmentation_metrics": lambda _: partial(
        PascalMetrics, rules=WEIGHTED_PASCAL_VOC_MASKS
    ),
}


def _by_category(config: m.EvalConfig) -> PerCategoryMetrics | None:
    if not config.include_metrics_per_category:
        return None
    groups = {group.key: [name.strip() for name in group.value.split(",")] for group in config.super_categories}
    return PerCategoryMetrics(config.all_metrics_per_category, groups)


def _labeled(config: m.EvalConfig) -> Labeled | None:
    if not config.skip_predictions_for_unlabeled_class:
        return None
    return verified_or_all if config.image_classes_field_map_empty_to_ones else verified_or_present


_FORMER_NAMES = ("open_images_metrics", "open_images_V2_detection_metrics")
_METRICS |= dict.fromkeys(_FORMER_NAMES, _METRICS["oid_V2_detection_metrics"])


@dataclass(frozen=True)
class EvaluationPlan:
    """The parameters of an evaluation.

    Attributes:
        max_boxes: The maximum of boxes per picture.
        keypoint_edges: Pairs of keypoints to connect with a line.
        class_agnostic: Whether all classes count as one, as for a detector that only proposes.
        own_size: Whether images keep their size instead of being resized as in training.
        regularize: Whether the losses include the penalty on weights.
    """

    batch_size: int = 1
    every_nth: int = 1
    num_pictures: int = 10
    min_score: float = 0.5
    max_boxes: int = 20
    captions: Captions = NAME_AND_SCORE
    keypoint_edges: tuple[tuple[int, int], ...] = ()
    metrics: tuple[MetricsFactory, ...] = (CocoMetrics,)
    use_average: bool = False
    losses: bool = True
    own_size: bool = False
    regularize: bool = True
    class_agnostic: bool = False


def _metrics(config: m.EvalConfig) -> tuple[MetricsFactory, ...]:
    names = config.metrics_set or ["coco_detection_metrics"]
    own = [build_chosen(metric, "parameterized_metric", _PARAMETERIZED) for metric in config.parameterized_metric]
    return (*(_METRICS[name](config) for name in names), *own)


def _keypoint_metrics(config: m.CocoKeypointMetrics) -> MetricsFactory:
    sigmas = {entry.key: entry.value for entry in config.keypoint_label_to_sigmas}
    return partial(CocoKeypointMetrics, class_name=config.class_label, sigmas=sigmas)


_PARAMETERIZED: dict[str, Callable[..., MetricsFactory]] = {"coco_keypoint_metrics": _keypoint_metrics}


def build_evaluation(config: m.TrainEvalPipelineConfig, reader: m.InputReader | None = None) -> EvaluationPlan:
    """Build an evaluation's plan.

    Args:
        reader: The reader of the data to evaluate on.
    """
    evaluation = config.eval_config or m.EvalConfig()
    refuse_unsupported(evaluation, "eval_config")
    two_stage = config.model.faster_rcnn if config.model is not None else None
    return EvaluationPlan(
        batch_size=max(evaluation.batch_size, 1),
        every_nth=max(reader.sample_1_of_n_examples, 1) if reader else 1,
        num_pictures=evaluation.num_visualizations,
        min_score=evaluation.min_score_threshold,
        max_boxes=evaluation.max_num_boxes_to_visualize,
        keypoint_edges=tuple((edge.start, edge.end) for edge in evaluation.keypoint_edge),
        captions=Captions(names=not evaluation.skip_labels, scores=not evaluation.skip_scores),
        metrics=() if evaluation.ignore_groundtruth else _metrics(evaluation),
        losses=not evaluation.ignore_groundtruth,
        own_size=evaluation.force_no_resize,
        use_average=evaluation.use_moving_averages,
        # A detector of one stage finds objects without their classes.
        class_agnostic=two_stage is not None and two_stage.number_of_stages == 1,
        regularize=config.train_config is None or config.train_config.add_regularization_loss,
    )
