"""Evaluating a model of any kind on an eval_input_reader; PyTorch is imported for networks only."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from boxwright.base.errors import ConfigError
from boxwright.data.dataset import Dataset
from boxwright.evaluation.data import EvaluationData, counted_categories, open_evaluation_data
from boxwright.evaluation.image_results import Keep, keep_nothing
from boxwright.evaluation.images import (
    EvaluatedImage,
    Progress,
    SampleDetector,
    Share,
    all_batches,
    evaluate_images,
    silent,
)
from boxwright.evaluation.results import Evaluation
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.evaluation.summary import summarize
from boxwright.pipeline import messages as m
from boxwright.runtime.exported import ExportedDetector
from boxwright.runtime.formats import EXPORTS
from boxwright.types import FoundObjects, Sample
from boxwright.weights.open_model import OpenModel, open_model

if TYPE_CHECKING:
    from boxwright.nn.detector import Detector


def export_on_samples(detector: ExportedDetector, settings: EvaluationSettings) -> SampleDetector:
    """Return a function that detects in samples, without losses; several scales are a ConfigError."""
    if settings.multi_scale:
        raise ConfigError("multi_scale: an exported detector has one scale; evaluate its checkpoint instead")

    def detect(samples: list[Sample], _: int) -> Iterator[tuple[FoundObjects, dict[str, float]]]:
        for found in detector.detect([sample.image for sample in samples]):
            yield found, {}

    return detect


def samples_by_threads(dataset: Dataset, indices: Sequence[int], workers: int) -> Generator[Sample]:
    """Yield samples in order, prefetched by `workers` threads, if any: decoding images releases Python's lock."""
    if not workers:
        yield from (dataset[index] for index in indices)
        return
    waiting: deque[Future[Sample]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for index in indices:
                waiting.append(pool.submit(dataset.__getitem__, index))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


_DEFAULTS = EvaluationSettings(workers=0)


def open_for_evaluation(path: Path, config: m.TrainEvalPipelineConfig, settings: EvaluationSettings) -> OpenModel:
    """Return a run, checkpoint or exported file, opened and optimized by the settings; exports ignore `config`."""
    opened = open_model(
        path,
        device=settings.device,
        config=None if path.suffix in EXPORTS else config,
        allow_edited=settings.allow_edited,
    )
    return opened.optimized(settings.precision, compile=settings.compile)


def evaluate_on_reader(
    config: m.TrainEvalPipelineConfig,
    detector: Detector | ExportedDetector,
    settings: EvaluationSettings = _DEFAULTS,
    progress: Progress = silent,
    keep: Keep = keep_nothing,
) -> Evaluation:
    """Return metrics and pictures of a detector on the data that the settings choose.

    A missing reader, other classes than the detector's, or several scales for an export are a ConfigError.

    Args:
        keep: Gets each evaluated image, such as `ImageResults.add`.
    """
    return evaluate_on_data(
        open_evaluation_data(config, settings, detector.categories, detector.num_classes),
        detector,
        settings,
        progress,
        keep,
    )


def evaluate_on_data(
    data: EvaluationData,
    detector: Detector | ExportedDetector,
    settings: EvaluationSettings = _DEFAULTS,
    progress: Progress = silent,
    keep: Keep = keep_nothing,
) -> Evaluation:
    """Return metrics and pictures of a detector on open data; several scales for an export are a ConfigError.

    Args:
        keep: Gets each evaluated image, such as `ImageResults.add`.
    """
    with closing(_evaluated_images(detector, data, settings, progress)) as images:
        return summarize(images, data.plan, counted_categories(data), keep)


def evaluate_share(
    config: m.TrainEvalPipelineConfig,
    detector: Detector | ExportedDetector,
    settings: EvaluationSettings,
    share: tuple[int, int],
) -> list[EvaluatedImage]:
    """Return the evaluated images of a share (number from 0, count) of the data that the settings choose."""
    data = open_evaluation_data(config, settings, detector.categories, detector.num_classes)
    number, count = share
    return list(_evaluated_images(detector, data, settings, share=lambda batches: batches[number::count]))


def _evaluated_images(
    detector: Detector | ExportedDetector,
    data: EvaluationData,
    settings: EvaluationSettings,
    progress: Progress = silent,
    share: Share = all_batches,
) -> Generator[EvaluatedImage]:
    if isinstance(detector, ExportedDetector):
        if data.plan.own_size:
            raise ConfigError(
                "eval_config.force_no_resize: an exported detector resizes images; evaluate its checkpoint"
            )
        read = partial(samples_by_threads, workers=settings.workers)
        yield from evaluate_images(export_on_samples(detector, settings), data, read, progress, share)
        return
    from boxwright.evaluation.network import evaluate_network
    from boxwright.nn.multi_scale import at_scales

    scaled = at_scales(detector, settings.multi_scale)
    yield from evaluate_network(scaled, data, progress, share, workers=settings.workers)
