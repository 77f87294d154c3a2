"""`TrainConfig` and the training reader: all that a run needs to know."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from boxwright.base.files import is_file
from boxwright.builders.augmentation.steps import build_augmentation
from boxwright.builders.choice import require
from boxwright.builders.faster_rcnn.detector import check_sampling
from boxwright.builders.optimizer import OptimizerPlan, build_optimizer
from boxwright.builders.pretrained import wants_pretrained
from boxwright.builders.tensorflow_version import tensorflow_version
from boxwright.config import messages as m
from boxwright.config.preset import from_preset
from boxwright.config.support import refuse_unsupported
from boxwright.data.order import StreamSettings
from boxwright.optimization.trainable import FreezeStage, Freezing
from boxwright.types.scopes import ChannelOrder, Scope

Precision = Literal["float32", "bfloat16", "float16"]


ENDLESS = 10**9


@dataclass(frozen=True)
class FineTune:
    """Which weights a run starts from.

    Attributes:
        source: A checkpoint; empty for fresh weights.
        scope: What of it is restored: "full", "detection" or "classification".
        channels: Which colour its first convolution takes first.
        folder: Where the file lies that names it; empty where none does.
        min_share: The share of what the scope wants that must be restored: TF1 warns of what is missing, and goes on.
    """

    source: str
    scope: Scope
    channels: ChannelOrder
    folder: str = ""
    min_share: float = 1.0


@dataclass(frozen=True)
class TrainingPlan:
    """A run, described.

    Attributes:
        num_steps: Steps in all; `ENDLESS` where TF1 goes on until it is stopped.
        stream: How samples become batches.
        optimizer: How weights are trained.
        clip_norm: The largest norm of all gradients together; 0 for no limit.
        regularize: Whether penalties on kernels are part of the loss.
        precision: In which the network computes; weights and losses are float32 always.
        accumulation: In how many parts a batch is learnt from.
        freezing: Which weights learn.
        bias_multiplier: What gradients of biases are multiplied with.
        fine_tune: Which weights it starts from.
        pretrained: Whether a run without such a source starts from weights that its backbone's library fetches.
        summarize_gradients: Whether the log has the gradient norm of each variable.
        keep_every_n_hours: How often a checkpoint stays for good.
    """

    num_steps: int
    stream: StreamSettings
    optimizer: OptimizerPlan
    clip_norm: float
    regularize: bool
    precision: Precision
    accumulation: int
    freezing: Freezing
    bias_multiplier: float
    fine_tune: FineTune
    pretrained: bool
    summarize_gradients: bool
    keep_every_n_hours: float

    def with_seed(self, seed: int) -> TrainingPlan:
        """Return the same plan with it."""
        return replace(self, stream=replace(self.stream, seed=seed))


def build_training(
    config: m.TrainEvalPipelineConfig, *, workers: int = 1, seed: int = 0, skip_bad: bool = False
) -> TrainingPlan:
    """Build a run's plan.

    Args:
        seed: Decides order and augmentation.
        skip_bad: Whether records that cannot be read are left out.

    Raises:
        ConfigError: Where something is missing, contradictory or not supported.
    """
    train = require(config.train_config, config, "train_config")
    refuse_unsupported(train, "train_config")
    reader = require(config.train_input_reader, config, "train_input_reader")
    _check_keypoints(config.model, reader)
    _check_two_stage(config.model, reader)
    build_augmentation(config)  # what is wrong with it is said before data are read
    version = tensorflow_version(config.model)
    return TrainingPlan(
        num_steps=train.num_steps or (ENDLESS if version == 1 else 0),
        stream=StreamSettings(
            batch_size=train.batch_size,
            seed=seed,
            shuffle=reader.shuffle,
            every_nth=max(reader.sample_1_of_n_examples, 1),
            num_epochs=reader.num_epochs,
            workers=workers,
            source_weights=_source_weights(reader),
            group=reader.group_by_aspect_ratio,
            skip_bad=skip_bad,
        ),
        optimizer=build_optimizer(require(train.optimizer, train, "optimizer"), version),
        clip_norm=_finite(train, "gradient_clipping_by_norm"),
        regularize=train.add_regularization_loss,
        precision=_precision(train),
        accumulation=_accumulation(train),
        freezing=_freezing(train),
        bias_multiplier=_finite(train, "bias_grad_multiplier") or 1.0,
        fine_tune=_fine_tune(train, version),
        pretrained=wants_pretrained(require(config.model, config, "model")),
        summarize_gradients=train.summarize_gradients,
        keep_every_n_hours=train.keep_checkpoint_every_n_hours,
    )


def _finite(train: m.TrainConfig, name: str) -> float:
    value = float(getattr(train, name))
    if not math.isfinite(value):
        raise train.refusal(name, f"expected a finite number, found {value}")
    return value


def _check_two_stage(model: m.DetectionModel | None, reader: m.InputReader) -> None:
    """Refuse to learn from more proposals than there are, and masks that are not read."""
    two_stage = model.faster_rcnn if model is not None else None
    if two_stage is None:
        return
    check_sampling(two_stage)
    coco = reader.coco_input_reader
    reads = reader.load_instance_masks or (coco is not None and coco.load_masks)
    if two_stage.number_of_stages == 3 and not reads:
        raise reader.refusal(
            "load_instance_masks",
            "the detector learns masks (number_of_stages: 3); set it to true, and mask_type to what the records have",
        )


def _check_keypoints(model: m.DetectionModel | None, reader: m.InputReader) -> None:
    """Insist that the reader gives as many keypoints as the box coder writes."""
    coder = model.ssd.box_coder if model and model.ssd else None
    wanted = coder.keypoint_box_coder.num_keypoints if coder and coder.keypoint_box_coder else 0
    if wanted and reader.num_keypoints != wanted:
        raise reader.refusal(
            "num_keypoints", f"{reader.num_keypoints}, but keypoint_box_coder has {wanted}; set it to the same"
        )


def _source_weights(reader: m.InputReader) -> tuple[float, ...]:
    weights = tuple(reader.sample_from_datasets_weights)
    if weights and (min(weights) < 0 or sum(weights) <= 0):
        raise reader.refusal("sample_from_datasets_weights", f"expected weights of 0 or more, found {list(weights)}")
    if weights and reader.group_by_aspect_ratio:
        raise reader.refusal("group_by_aspect_ratio", "goes with one source; remove the weights")
    return weights


def _precision(config: m.TrainConfig) -> Precision:
    if config.use_bfloat16 and config.use_float16:
        raise config.refusal("use_float16", "use_bfloat16 and use_float16 are both set; choose one")
    return "bfloat16" if config.use_bfloat16 else "float16" if config.use_float16 else "float32"


def _accumulation(config: m.TrainConfig) -> int:
    if config.gradient_accumulation_steps > config.batch_size:
        raise config.refusal(
            "gradient_accumulation_steps",
            f"{config.gradient_accumulation_steps} parts of a batch of {config.batch_size}; each needs an image",
        )
    return config.gradient_accumulation_steps


def _freezing(config: m.TrainConfig) -> Freezing:
    return Freezing(
        update=tuple(config.update_trainable_variables),
        freeze=tuple(config.freeze_variables),
        stages=tuple(FreezeStage(stage.until_step, tuple(stage.variables)) for stage in config.freeze_stage),
    )


def _channels(config: m.TrainConfig) -> ChannelOrder:
    return "BGR" if config.fine_tune_checkpoint_channels is m.ChannelOrder.BGR else "RGB"


def _fine_tune(config: m.TrainConfig, version: int) -> FineTune:
    scope = _scope(config)
    if config.load_all_detection_checkpoint_vars and version == 1 and scope == "detection":
        scope = "transfer"
    location = config.location("fine_tune_checkpoint")
    beside = location is not None and is_file(location.file) and not from_preset(location)
    folder = str(Path(location.file).parent) if location is not None and beside else ""
    share = 0.0 if version == 1 else 1.0
    return FineTune(config.fine_tune_checkpoint, scope, _channels(config), folder, share)


def _scope(config: m.TrainConfig) -> Scope:
    """Read the checkpoint's type; the deprecated switch decides where it is not set, as in TF."""
    kind = config.fine_tune_checkpoint_type
    if not kind:
        return "detection" if config.from_detection_checkpoint else "classification"
    return _SCOPES[kind]


_SCOPES: dict[str, Scope] = {
    "classification": "classification",
    "detection": "detection",
    "fine_tune": "detection",
    "full": "full",
    "transfer": "transfer",
}
