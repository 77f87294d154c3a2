"""`boxwright.evaluate`: evaluate what a run has trained."""

from __future__ import annotations

from pathlib import Path

from boxwright.builders.detector import build_detector
from boxwright.builders.evaluation import build_evaluation
from boxwright.builders.input_reader import build_dataset
from boxwright.checkpoints.store import CheckpointStore, read_checkpoint
from boxwright.config import messages as m
from boxwright.config.load import parse_message
from boxwright.errors import CheckpointError, ConfigError
from boxwright.evaluation.evaluator import Evaluation, Progress, _silent, evaluate_detector
from boxwright.models.detector import Detector
from boxwright.types import Categories

__all__ = ["evaluate", "restore_detector", "run_evaluation"]


def restore_detector(
    checkpoint: str | Path, *, config: m.TrainEvalPipelineConfig | None = None, use_average: bool | None = None
) -> tuple[Detector, m.TrainEvalPipelineConfig, int]:
    """Rebuild a detector from a checkpoint alone: it holds configuration, classes and weights.

    Args:
        checkpoint: A checkpoint, or a model folder, whose newest is taken.
        config: A configuration whose model is taken instead of the checkpoint's own, to change
            post-processing, say; its network must be the same.
        use_average: Whether to take the moving average of the weights; None leaves that to the
            configuration's `eval_config.use_moving_averages`.

    Returns:
        The detector in evaluation mode, its configuration, and the steps it was trained.

    Raises:
        CheckpointError: Where there is no checkpoint, or no average in it.
    """
    path = Path(checkpoint)
    if not path.exists():
        raise CheckpointError(f"{path}: no such folder or checkpoint")
    if path.is_dir():
        found = CheckpointStore(path).latest()
        if found is None:
            raise CheckpointError(f"{path}: no checkpoint (ckpt-*.pt) in this folder")
        path, content = found
    else:
        content = read_checkpoint(path)
    own = parse_message(content["config"], m.TrainEvalPipelineConfig, file=str(path))
    config = own if config is None or config.model is None else config
    categories = Categories.from_list(content["categories"]) if content["categories"] else None
    detector = build_detector(config, categories)
    try:
        detector.network.load_state_dict(content["network"])
    except RuntimeError:
        raise CheckpointError(f"{path}: its network is not the one that the configuration describes") from None
    if use_average is None:
        use_average = bool(config.eval_config and config.eval_config.use_moving_averages)
    if use_average:
        if not content["average"]:
            raise CheckpointError(f"{path}: eval_config.use_moving_averages is set, but the run kept no average")
        detector.network.load_state_dict(content["average"], strict=False)
    return detector.eval(), config, int(content["step"])


def run_evaluation(
    config: m.TrainEvalPipelineConfig, detector: Detector, number: int = 0, progress: Progress = _silent
) -> Evaluation:
    """Evaluate a detector on one of the configuration's evaluation readers.

    Args:
        config: The configuration.
        detector: The detector.
        number: Which of `eval_input_reader`.
        progress: Shows how far it is.

    Returns:
        What was found.

    Raises:
        ConfigError: Where there is no such reader, or its classes are not those of the detector.
    """
    if number >= len(config.eval_input_reader):
        raise ConfigError(
            f"eval_input_reader[{number}] is missing; the configuration has {len(config.eval_input_reader)}"
        )
    reader = config.eval_input_reader[number]
    dataset = build_dataset(reader, f"eval_input_reader[{number}]", detector.categories)
    check_same_classes(detector.categories, dataset.categories)
    return evaluate_detector(detector, dataset, build_evaluation(config, reader), progress)


def check_same_classes(trained: Categories | None, given: Categories) -> None:
    """Insist that labels mean the same in the detector and in the data.

    Args:
        trained: The detector's classes, if known.
        given: The data's.

    Raises:
        ConfigError: Where a label has two names.
    """
    for category in given if trained else ():
        other = next((item for item in trained or () if item.label == category.label), None)
        if other is None or other.name != category.name:
            name = other.name if other else "nothing"
            raise ConfigError(
                f"label {category.label} is {category.name!r} in the data, but {name!r} in the detector; "
                "is this the right label map?"
            )


def evaluate(config: m.TrainEvalPipelineConfig, model_dir: str | Path) -> dict[str, float]:
    """Evaluate the newest checkpoint of a run on the first evaluation reader.

    Args:
        config: The configuration; its network must be the checkpoint's.
        model_dir: The run's folder.

    Returns:
        TF's metric names to values.
    """
    detector, _, _ = restore_detector(model_dir, config=config)
    return run_evaluation(config, detector).metrics
