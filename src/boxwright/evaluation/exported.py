"""Detection in samples by an exported detector, without PyTorch unless its runtime needs it."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from boxwright.base.errors import ConfigError
from boxwright.data.dataset import Dataset
from boxwright.evaluation.images import SampleDetector
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.runtime.exported import ExportedDetector
from boxwright.types import FoundObjects, Sample


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
