"""`EvalConfig`: how a detector is evaluated."""

from __future__ import annotations

from dataclasses import dataclass

from boxwright.config import messages as m
from boxwright.config.support import refuse_unsupported
from boxwright.errors import ConfigError

__all__ = ["EvaluationPlan", "build_evaluation"]

_METRICS = ("coco_detection_metrics",)


@dataclass(frozen=True)
class EvaluationPlan:
    """An evaluation, described.

    Attributes:
        batch_size: Images a batch.
        every_nth: Only every nth image is used.
        num_pictures: How many pictures are drawn.
        min_score: The least score that is drawn.
        max_boxes: The most boxes that are drawn in a picture.
        per_category: Whether metrics of each class are among the results.
        use_average: Whether the moving average of the weights is evaluated.
    """

    batch_size: int = 1
    every_nth: int = 1
    num_pictures: int = 10
    min_score: float = 0.5
    max_boxes: int = 20
    per_category: bool = False
    use_average: bool = False


def build_evaluation(config: m.TrainEvalPipelineConfig, reader: m.InputReader | None = None) -> EvaluationPlan:
    """Build an evaluation's plan.

    Args:
        config: The whole configuration.
        reader: The reader of the data to evaluate on.

    Returns:
        The plan.

    Raises:
        ConfigError: For metrics that are not supported.
    """
    evaluation = config.eval_config or m.EvalConfig()
    refuse_unsupported(evaluation, "eval_config")
    unknown = [name for name in evaluation.metrics_set if name not in _METRICS]
    if unknown:
        raise ConfigError(f"eval_config.metrics_set: {unknown[0]!r} is not supported; supported: {', '.join(_METRICS)}")
    return EvaluationPlan(
        batch_size=max(evaluation.batch_size, 1),
        every_nth=max(reader.sample_1_of_n_examples, 1) if reader else 1,
        num_pictures=evaluation.num_visualizations,
        min_score=evaluation.min_score_threshold,
        max_boxes=evaluation.max_num_boxes_to_visualize,
        per_category=evaluation.include_metrics_per_category,
        use_average=evaluation.use_moving_averages,
    )
