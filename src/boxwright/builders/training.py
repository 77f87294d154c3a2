"""`TrainConfig` and the training reader: all that a run needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from boxwright.builders.augmentation import build_augmentation
from boxwright.builders.choice import require
from boxwright.builders.optimizer import OptimizerPlan, build_optimizer
from boxwright.config import messages as m
from boxwright.config.support import refuse_unsupported
from boxwright.data.augmentation.transform import Transform
from boxwright.data.loader import StreamSettings
from boxwright.errors import ConfigError

Scope = Literal["full", "detection", "classification"]

__all__ = ["FineTune", "TrainingPlan", "build_training"]


@dataclass(frozen=True)
class FineTune:
    """Which weights a run starts from.

    Attributes:
        source: A checkpoint; empty for fresh weights.
        scope: What of it is restored: "full", "detection" or "classification".
    """

    source: str
    scope: Scope


@dataclass(frozen=True)
class TrainingPlan:
    """A run, described.

    Attributes:
        num_steps: Steps in all.
        stream: How samples become batches.
        augmentation: What happens to samples.
        optimizer: How weights are trained.
        clip_norm: The largest norm of all gradients together; 0 for no limit.
        regularize: Whether penalties on kernels are part of the loss.
        bfloat16: Whether the network computes in bfloat16.
        fine_tune: Which weights it starts from.
    """

    num_steps: int
    stream: StreamSettings
    augmentation: Transform
    optimizer: OptimizerPlan
    clip_norm: float
    regularize: bool
    bfloat16: bool
    fine_tune: FineTune


def build_training(config: m.TrainEvalPipelineConfig, *, workers: int = 1, seed: int = 0) -> TrainingPlan:
    """Build a run's plan.

    Args:
        config: The whole configuration.
        workers: Processes that prepare samples.
        seed: Decides order and augmentation.

    Returns:
        The plan.

    Raises:
        ConfigError: Where something is missing, contradictory or not supported.
    """
    train = require(config.train_config, "train_config")
    refuse_unsupported(train, "train_config")
    reader = require(config.train_input_reader, "train_input_reader")
    if train.batch_size < 1:
        raise ConfigError("train_config.batch_size: expected at least 1, found 0")
    if train.num_steps < 1:
        raise ConfigError("train_config.num_steps is not set; say how long to train, as by --num_train_steps 10000")
    _check_keypoints(config.model, reader)
    return TrainingPlan(
        num_steps=train.num_steps,
        stream=StreamSettings(
            batch_size=train.batch_size,
            seed=seed,
            shuffle=reader.shuffle,
            every_nth=max(reader.sample_1_of_n_examples, 1),
            num_epochs=reader.num_epochs,
            workers=workers,
        ),
        augmentation=build_augmentation(train.data_augmentation_options),
        optimizer=build_optimizer(require(train.optimizer, "train_config.optimizer")),
        clip_norm=train.gradient_clipping_by_norm,
        regularize=train.add_regularization_loss,
        bfloat16=train.use_bfloat16,
        fine_tune=FineTune(train.fine_tune_checkpoint, _scope(train)),
    )


def _check_keypoints(model: m.DetectionModel | None, reader: m.InputReader) -> None:
    """Insist that the reader gives as many keypoints as the box coder writes."""
    coder = model.ssd.box_coder if model and model.ssd else None
    wanted = coder.keypoint_box_coder.num_keypoints if coder and coder.keypoint_box_coder else 0
    if wanted and reader.num_keypoints != wanted:
        raise ConfigError(
            f"keypoint_box_coder has {wanted} keypoints, train_input_reader.num_keypoints is {reader.num_keypoints}; "
            "set it to the same"
        )


def _scope(config: m.TrainConfig) -> Scope:
    """Read the checkpoint's type; the deprecated switch decides where it is not set, as in TF."""
    kind = config.fine_tune_checkpoint_type
    if not kind:
        return "detection" if config.from_detection_checkpoint else "classification"
    known: dict[str, Scope] = {
        "classification": "classification",
        "detection": "detection",
        "full": "full",
        "fine_tune": "detection",
    }
    if kind not in known:
        raise ConfigError(f"train_config.fine_tune_checkpoint_type: expected one of {', '.join(known)}, found {kind!r}")
    return known[kind]
