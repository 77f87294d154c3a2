"""Evaluating a model of any kind on an eval_input_reader; PyTorch is imported for networks only.

Exported detectors do without it unless their runtime needs it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from boxwright.base.errors import ConfigError
from boxwright.base.threads import map_in_order
from boxwright.base.worker_pools import parse_engine
from boxwright.config.load import dump_message, parse_message
from boxwright.data.dataset import Dataset
from boxwright.evaluation.build import EvaluationPlan
from boxwright.evaluation.data import EvaluationData, open_evaluation_data
from boxwright.evaluation.images import (
    EvaluatedImage,
    Keep,
    Progress,
    Read,
    SampleDetector,
    Share,
    all_batches,
    evaluate_images,
    keep_nothing,
    silent,
)
from boxwright.evaluation.results import Evaluation
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.evaluation.summary import in_order, summarize
from boxwright.pipeline.input_reader import state_white_level
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.runtime.allocator import keep_freed_memory
from boxwright.runtime.devices import require_runtime
from boxwright.runtime.exported import ExportedDetector
from boxwright.runtime.formats import RUNTIMES, TORCH, is_export
from boxwright.types import Array, Detections, Sample
from boxwright.weights.open_model import OpenModel, open_model


@dataclass(frozen=True, eq=False)
class OpenEvaluation:
    """A model, and the data that it is evaluated on.

    Attributes:
        model: The detector, optimized by the settings if they opened it, or an export.
        data: As the settings choose them.
    """

    model: OpenModel
    data: EvaluationData
    settings: EvaluationSettings

    @property
    def runtime(self) -> str:
        """What detects, such as "torch" or "onnxruntime"."""
        return RUNTIMES.get(self.model.path.suffix.lower(), TORCH) if self.model.is_exported else TORCH


def open_evaluation(
    model: Path | OpenModel,
    config: TrainEvalPipelineConfig,
    settings: EvaluationSettings,
    data: EvaluationData | None = None,
) -> OpenEvaluation:
    """Return a model, opened and optimized by the settings, and the data that they choose.

    Args:
        model: A run's folder, a checkpoint or an exported file; or an open model, which is left as it is.
        config: The configuration of the model, unless it is an exported file, and of the data.
        data: Those of an earlier evaluation, which are not opened again.

    Raises:
        BoxwrightError: If there is no detector, it does not fit the data, or runs in another runtime than is named.
    """
    if isinstance(model, Path):
        require_runtime(model, settings.runtime, settings.device)
        own = None if is_export(model) else config
        opened = open_model(model, device=settings.device, config=own, allow_edited=settings.allow_edited)
        model = opened.optimized(settings.precision, compile=settings.compile)
        if settings.cuda_graphs:
            model.use_cuda_graphs(settings.multi_scale, compile=settings.compile)
    # Its pictures are read by the scale of those that the model was trained with.
    config = state_white_level(config, model.white_level)
    data = data or open_evaluation_data(config, settings, model.categories, model.opened.num_classes)
    if settings.cuda_graphs:
        data = replace(data, plan=_without_losses(data.plan))
    return OpenEvaluation(model, data, settings)


def _without_losses(plan: EvaluationPlan) -> EvaluationPlan:
    """Return the plan of an evaluation by CUDA graphs, which hold no groundtruth; a ConfigError where it has none."""
    if plan.own_size:
        raise ConfigError("--cuda_graphs: eval_config.force_no_resize gives inputs of several sizes")
    return replace(plan, losses=False)


def evaluate(evaluation: OpenEvaluation, progress: Progress = silent, keep: Keep = keep_nothing) -> Evaluation:
    """Return metrics and pictures of a model on its data; several scales for an export are a ConfigError.

    Args:
        keep: Gets each evaluated image, such as `ImageResults.add`.
    """
    data = evaluation.data
    with closing(_images(evaluation, progress)) as images:
        return summarize(images, data.plan, data.counted_categories, keep)


def evaluate_by_workers(
    model: Path, config: TrainEvalPipelineConfig, evaluation: OpenEvaluation, keep: Keep = keep_nothing
) -> Evaluation:
    """Return what `evaluate` does, computed by as many workers as there are shares, each of which opens the model.

    All detections are in memory at once, as arrays: workers answer in any order.

    Args:
        evaluation: Opened here too, for the plan and the classes; no image is read.
        keep: Gets each evaluated image, in the data's order.

    Raises:
        BoxwrightError: As for `evaluate`, and for an unknown engine.
    """
    data, settings = evaluation.data, evaluation.settings
    make = partial(_worker, model, dump_message(config), settings)
    shares = [(number, settings.shares) for number in range(settings.shares)]
    done = parse_engine(settings.engine, settings.device)(make, shares, settings.shares)
    images = in_order(image for share in done for image in share)
    return summarize(images, data.plan, data.counted_categories, keep)


def _worker(model: Path, text: str, settings: EvaluationSettings) -> partial[list[EvaluatedImage]]:
    """Open the model in a worker's process, and return what evaluates a share there."""
    evaluation = open_evaluation(model, parse_message(text, TrainEvalPipelineConfig), settings)
    if not evaluation.model.is_exported:
        from boxwright.base.device import set_tf32

        set_tf32(products=settings.tf32)
        keep_freed_memory()
    return partial(_share, evaluation)


def _share(evaluation: OpenEvaluation, share: tuple[int, int]) -> list[EvaluatedImage]:
    """Return the evaluated images of a share: its number from 0, and the count of shares."""
    number, count = share
    return list(_images(evaluation, share=lambda batches: batches[number::count]))


def _images(
    evaluation: OpenEvaluation, progress: Progress = silent, share: Share = all_batches
) -> Generator[EvaluatedImage]:
    detector, data, settings = evaluation.model.opened, evaluation.data, evaluation.settings
    detecting: AbstractContextManager[SampleDetector]
    ahead = 0
    if isinstance(detector, ExportedDetector):
        detecting = nullcontext(export_on_samples(detector, data.plan, settings))
        read: Read = partial(samples_by_threads, workers=settings.workers)
    else:
        from boxwright.data.loader import samples_in_order
        from boxwright.evaluation.network import batches_ahead, network_on_samples
        from boxwright.nn.multi_scale import at_scales

        detecting = network_on_samples(at_scales(detector, settings.multi_scale), data.plan)
        ahead = batches_ahead(detector)
        read = partial(samples_in_order, workers=settings.workers)
    with detecting as detect:
        yield from evaluate_images(detect, data, read, progress, share, ahead)


def export_on_samples(detector: ExportedDetector, plan: EvaluationPlan, settings: EvaluationSettings) -> SampleDetector:
    """Return a function that detects in samples, without losses; what needs other sizes is a ConfigError."""
    if plan.own_size:
        raise ConfigError("eval_config.force_no_resize: an exported detector resizes images; evaluate its checkpoint")
    if settings.multi_scale:
        raise ConfigError("multi_scale: an exported detector has one scale; evaluate its checkpoint instead")

    def detect(samples: list[Sample], _: int) -> Iterator[tuple[Detections[Array], dict[str, float]]]:
        for detections in detector.detect([sample.image for sample in samples]):
            yield detections, {}

    return detect


def samples_by_threads(dataset: Dataset, indices: Sequence[int], workers: int) -> Generator[Sample]:
    """Yield samples in order, prefetched by `workers` threads, if any: decoding images releases Python's lock."""
    if not workers:
        yield from (dataset[index] for index in indices)
        return
    yield from map_in_order(dataset.__getitem__, indices, workers, ahead=workers)
