"""Evaluating an exported detector; without PyTorch where its runtime is."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from boxwright.base.errors import ConfigError
from boxwright.config import messages as m
from boxwright.data.dataset import Dataset
from boxwright.evaluation.parts import Look, Progress, categories_of, look_at, open_evaluation, silent, sum_up
from boxwright.evaluation.results import Evaluation
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.runtime.exported import ExportedDetector
from boxwright.types import FoundObjects, Sample


def evaluate_exported(
    config: m.TrainEvalPipelineConfig,
    detector: ExportedDetector,
    settings: EvaluationSettings,
    progress: Progress = silent,
) -> Evaluation:
    """Run an exported detector over the data that the settings choose.

    Args:
        progress: Wraps the indices and takes a title, to show how far it is.

    Returns:
        Metrics, detections and pictures; there are no losses.

    Raises:
        ConfigError: Where there is no such reader, its classes are others, or several scales are asked for.
    """
    data = open_evaluation(config, settings, detector.categories)
    read = partial(samples_by_threads, workers=settings.workers)
    parts = look_at(look_of_export(detector, settings), data, read, progress)
    return sum_up(parts, data.plan, categories_of(data))


def look_of_export(detector: ExportedDetector, settings: EvaluationSettings) -> Look:
    """Return what looks at samples.

    Returns:
        From samples to what is found in each, without losses.

    Raises:
        ConfigError: Where several scales are asked for.
    """
    if settings.multi_scale:
        raise ConfigError("multi_scale: an exported detector looks once; evaluate what it was exported from")

    def look(samples: list[Sample], _: int) -> Iterator[tuple[FoundObjects, dict[str, float]]]:
        for found in detector.detect([sample.image for sample in samples]):
            yield found, {}

    return look


def samples_by_threads(dataset: Dataset, indices: Sequence[int], workers: int) -> Generator[Sample]:
    """Yield samples in order, read and decoded a few ahead by threads: decoding images releases Python's lock.

    Args:
        workers: Threads; 0 to read here.
    """
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
