"""`TrainConfig` and the training reader: the plan of a run, and the sizes of its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from boxwright.config.build import require
from boxwright.config.preset import defining_folder
from boxwright.config.support import broken_rules, refuse_contradictions, refuse_unsupported
from boxwright.data.augmentation.mosaic import BatchMixUp
from boxwright.data.batch import DrawnSizes
from boxwright.data.order import Interleaving, StreamSettings
from boxwright.families.shared.image_resizer import build_image_resizer
from boxwright.families.table import find_family
from boxwright.nn.ops.resize import resize_half_pixel, resize_nearest
from boxwright.nn.optimization.optimizers import Clip, clip_by_global_norm, clip_each_by_norm
from boxwright.nn.optimization.trainable import FreezeStage, Freezing
from boxwright.nn.preprocessing import FixedShapeResizer, ImageResizer, ResizedAfterwards
from boxwright.pipeline import messages as m
from boxwright.pipeline.augmentation import build_augmentation
from boxwright.pipeline.missing import can_be_endless
from boxwright.pipeline.optimizer import OptimizerPlan, build_optimizer
from boxwright.pipeline.precision import Precision, precision_of
from boxwright.pipeline.tensorflow_version import tensorflow_version
from boxwright.types.scopes import ChannelOrder, Scope


def has_one_input_size(config: m.TrainEvalPipelineConfig) -> bool:
    """Return whether all inputs of a training have the same size."""
    model, train = require(config.model, config, "model"), require(config.train_config, config, "train_config")
    family = model.chosen("model")
    resizer = None if family is None else family.image_resizer
    return resizer is not None and train.multi_scale is None and build_image_resizer(resizer).output_size is not None


def build_input_sizes(config: m.TrainEvalPipelineConfig, resizer: ImageResizer, seed: int) -> DrawnSizes | None:
    """Return the sizes that batches have in turn; None where all have the resizer's."""
    scales = config.train_config.multi_scale if config.train_config is not None else None
    if scales is None or not isinstance(resizer, FixedShapeResizer):  # a rule of the table refuses other resizers
        return None
    own = (resizer.height, resizer.width)
    sizes = sorted([*(size for size in _sizes(scales, own) if size != own), *[own] * scales.own_size_weight] or [own])
    return DrawnSizes(
        resizer, _resizers(resizer, sizes, scales.resize_method), seed, scales.from_step, scales.until_step
    )


def _resizers(
    resizer: FixedShapeResizer, sizes: list[tuple[int, int]], method: m.MultiScaleMethod
) -> list[ImageResizer]:
    """Return the resizer of each size."""
    fixed = [replace(resizer, height=height, width=width) for height, width in sizes]
    if method is m.MultiScaleMethod.IMAGE_RESIZER:
        return [*fixed]
    nearest = method is m.MultiScaleMethod.NEAREST_AFTERWARDS
    first, resize = (resizer, resize_nearest) if nearest else (fixed[-1], resize_half_pixel)
    return [first if size == first.output_size else ResizedAfterwards(first, *size, resize) for size in sizes]


def build_batch_mixup(config: m.TrainEvalPipelineConfig, seed: int) -> BatchMixUp | None:
    """Return how batches are blended; None where they are not."""
    mixup = config.train_config.batch_mixup if config.train_config is not None else None
    if mixup is None:
        return None
    shares = (mixup.min_share, mixup.max_share)
    return BatchMixUp(seed, mixup.probability, shares, mixup.from_step, mixup.until_step)


def _sizes(config: m.MultiScale, own: tuple[int, int]) -> list[tuple[int, int]]:
    """Return every (height, width) whose longer side is a multiple within the range; the other side follows it."""
    multiple, longer = config.multiple_of, max(own)
    low, high = math.ceil(config.min_scale * longer / multiple), math.floor(config.max_scale * longer / multiple)
    sides = [number * multiple for number in range(max(low, 1), high + 1)]
    return [(_nearest(own[0] * side / longer, multiple), _nearest(own[1] * side / longer, multiple)) for side in sides]


def _nearest(side: float, multiple: int) -> int:
    return max(round(side / multiple), 1) * multiple


def wants_pretrained(model: m.DetectionModel) -> bool:
    """Return whether the backbone's weights are fetched for a run without a checkpoint."""
    extractor: Any = getattr(model.chosen("model"), "feature_extractor", None)
    if not getattr(extractor, "pretrained", False):
        return False
    refuse_contradictions(extractor)
    return True


ENDLESS = 10**9


@dataclass(frozen=True)
class FineTune:
    """The initial weights of a run.

    Attributes:
        source: A checkpoint; empty for fresh weights.
        scope: The part of it to restore: "full", "detection" or "classification".
        channels: The order of colors in its first convolution's inputs.
        folder: The folder of the file that names it; empty if none does.
        min_share: The minimum fraction of the scope to restore: TF1 warns of missing weights and continues.
    """

    source: str
    scope: Scope
    channels: ChannelOrder
    folder: str = ""
    min_share: float = 1.0


@dataclass(frozen=True)
class TrainingPlan:
    """The parameters of a run.

    Attributes:
        num_steps: Total steps; `ENDLESS` if it trains until it is stopped.
        clip: Clips the gradients.
        regularize: Whether the loss includes penalties on kernels.
        precision: The network's precision; weights and losses are always float32.
        accumulation: The number of parts of a batch whose gradients are accumulated.
        pretrained: Whether a run without a checkpoint starts from weights fetched by its backbone's library.
        summarize_gradients: Whether to log the gradient norm of each variable.
        keep_every_n_hours: The interval of checkpoints that are kept permanently.
        several_sizes: Whether the size of inputs changes from batch to batch.
        restart_step: From which step on training restarts from the best state; 0 for never.
        debias: Whether statistics of batch normalization are used without their initial values' share.
    """

    num_steps: int
    stream: StreamSettings
    optimizer: OptimizerPlan
    clip: Clip
    regularize: bool
    precision: Precision
    accumulation: int
    freezing: Freezing
    bias_multiplier: float
    fine_tune: FineTune
    pretrained: bool
    summarize_gradients: bool
    keep_every_n_hours: float
    several_sizes: bool = False
    debias: bool = True
    restart_step: int = 0

    def with_seed(self, seed: int) -> TrainingPlan:
        """Return the same plan with another seed."""
        return replace(self, stream=replace(self.stream, seed=seed))


_CLIPPING: dict[m.GradientClipping, Callable[..., None]] = {
    m.GradientClipping.GLOBAL: clip_by_global_norm,
    m.GradientClipping.EACH: clip_each_by_norm,
}


def build_training(
    config: m.TrainEvalPipelineConfig, *, workers: int = 1, seed: int = 0, skip_bad: bool = False
) -> TrainingPlan:
    """Build a run's plan.

    Args:
        seed: Determines order and augmentation.
    """
    train = require(config.train_config, config, "train_config")
    refuse_unsupported(train, "train_config")
    reader = require(config.train_input_reader, config, "train_input_reader")
    refuse_unsupported(reader, "train_input_reader")
    for problem in broken_rules(config):
        raise problem
    model = require(config.model, config, "model")
    if model.experimental_model is None:
        find_family(model).check_training(model.chosen("model"), reader)
    build_augmentation(config)  # reports its errors before data are read
    version = tensorflow_version(config.model)
    return TrainingPlan(
        num_steps=train.num_steps or (ENDLESS if can_be_endless(config) else 0),
        stream=StreamSettings(
            batch_size=train.batch_size,
            seed=seed,
            shuffle=reader.shuffle,
            every_nth=max(reader.sample_1_of_n_examples, 1),
            num_epochs=reader.num_epochs,
            workers=workers,
            source_weights=tuple(reader.sample_from_datasets_weights),
            group=reader.group_by_aspect_ratio,
            skip_bad=skip_bad,
            interleaving=Interleaving(max(reader.shuffle_buffer_size, 1), reader.num_readers, reader.read_block_length),
        ),
        optimizer=build_optimizer(require(train.optimizer, train, "optimizer"), version),
        clip=partial(_CLIPPING[train.gradient_clipping], limit=train.gradient_clipping_by_norm),
        regularize=train.add_regularization_loss,
        precision=precision_of(train),
        accumulation=train.gradient_accumulation_steps,
        freezing=_freezing(train),
        bias_multiplier=train.bias_grad_multiplier or 1.0,
        fine_tune=read_fine_tune(train, version),
        pretrained=wants_pretrained(model),
        summarize_gradients=train.summarize_gradients,
        keep_every_n_hours=train.keep_checkpoint_every_n_hours,
        several_sizes=train.multi_scale is not None,
        debias=train.debias_batch_norm,
        restart_step=train.restart_from_best_step,
    )


def _freezing(config: m.TrainConfig) -> Freezing:
    return Freezing(
        update=tuple(config.update_trainable_variables),
        freeze=tuple(config.freeze_variables),
        stages=tuple(FreezeStage(stage.until_step, tuple(stage.variables)) for stage in config.freeze_stage),
    )


def read_fine_tune(config: m.TrainConfig, version: int) -> FineTune:
    """Return what a run starts from, with the semantics of TensorFlow `version` 1 or 2."""
    scope = _scope(config)
    if config.load_all_detection_checkpoint_vars and scope == "detection":
        scope = "transfer"
    folder = defining_folder(config.location("fine_tune_checkpoint"))
    share = 0.0 if version == 1 else 1.0
    channels: ChannelOrder = "BGR" if config.fine_tune_checkpoint_channels is m.ChannelOrder.BGR else "RGB"
    return FineTune(config.fine_tune_checkpoint, scope, channels, str(folder or ""), share)


def _scope(config: m.TrainConfig) -> Scope:
    """Return the checkpoint's scope from its type, or if that is not set from the deprecated switch, as in TF."""
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
