"""How many objects of each class the training data have.

Dimensions: K classes of the report.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from boxwright.base.errors import BoxwrightError
from boxwright.data.coco import CocoDataset
from boxwright.data.dataset import Dataset
from boxwright.pipeline.input_reader import build_dataset
from boxwright.pipeline.messages import TrainEvalPipelineConfig
from boxwright.report.tables import Indices
from boxwright.training.preflight.records import spread
from boxwright.types import Categories, Sample

# Samples that are read where labels cannot be had without pixels: shares of classes need no more.
MOST_READ = 2000


def training_objects(config: TrainEvalPipelineConfig, categories: Categories, threads: int) -> Indices | None:
    """Return the objects of each class in the training data, or in a sample of them, int64 [K].

    None if the data cannot be read, or have none of the classes, as where all count as one.

    Args:
        categories: The report's, matched by name.
    """
    if config.train_input_reader is None:
        return None
    try:
        dataset = build_dataset(config.train_input_reader, "train_input_reader", categories)
        counts = np.zeros(dataset.categories.num_slots, np.int64)
        for sample in _samples(dataset, threads):
            counts += np.bincount(sample.labels[~sample.is_crowd], minlength=len(counts))[: len(counts)]
    except BoxwrightError:
        return None
    of_name = {category.name: int(counts[category.label]) for category in dataset.categories}
    found = np.array([of_name.get(category.name, 0) for category in categories], np.int64)
    return found if found.any() else None


def _samples(dataset: Dataset, threads: int) -> Iterator[Sample]:
    if isinstance(dataset, CocoDataset):
        yield from (dataset.truth(index) for index in range(len(dataset)))
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(dataset.__getitem__, spread(len(dataset), MOST_READ))
