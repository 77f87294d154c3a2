"""What `scaling.py` measures: rows of an axis, each a function that prepares and returns what is timed.

records: images in TFRecord files (ten shards of one small picture again and again). index: finding the records; start:
opening them again and the first batch; shuffle: the order of an epoch; resume: the first batch in the middle of an
epoch; resume, mixed: the same of two sources with weights.
objects: in an image. decode, examples (random crop, flip, batch of eight), loss (3,234 anchors, one image), metrics.
classes: head (one image, 3,234 anchors, forward and backward), loss, detect (suppression of each class), metrics
(500 images × 100 detections, all classes reported).
side: pixels of a square image (size = its side squared) in tiles of 320 by an SSDLite.
evaluation: images × 100 detections of 80 classes, added one by one; computing the metrics is a row of its own.
processes: bytes that one process sends in a step, all its collectives through a ring, of a simulated network.
predictions: images, ten detections each, into Parquet files of 1,024 rows; resume: finding what is missing; many units:
units of one image.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
# Prepares for a size, with a folder for data, and returns what is timed; a number that this returns is taken instead.
Part = Callable[[int, Path], Callable[[], float | None]]
_SHARDS = 10
_BATCH = 8
_TILE = 320
_TOGETHER = 100


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        unit: What the size counts.
        limit: The largest exponent that is as it should be.
        of: What is measured.
    """

    unit: str
    sizes: Sequence[int]
    parts: dict[str, Part]
    limit: float = 1.1
    of: str = "seconds"

    @property
    def quick(self) -> Sequence[int]:
        """The small sizes."""
        return self.sizes[:2]


def _categories(count: int) -> Any:
    from boxwright.types import Categories, Category

    return Categories(tuple(Category(n, n + 1, f"class {n}") for n in range(count)))


def _objects(count: int, side: int, seed: int = 0) -> NDArray[np.float32]:
    """Return boxes [count, 4] in a square."""
    random = np.random.default_rng(seed)
    sides = np.exp(random.uniform(np.log(4), np.log(side / 2), (count, 2)))
    corners = random.uniform(0, 1, (count, 2)) * (side - sides)
    return np.concatenate([corners, corners + sides], 1).astype(np.float32)


def _example(objects: int, side: int, classes: int = 1) -> bytes:
    from boxwright.data.image_io import encode_png
    from boxwright.data.tf_example_writer import encode_example
    from boxwright.types import Sample

    labels = np.arange(objects) % classes
    sample = Sample(np.full((side, side, 3), 100, np.uint8), _objects(objects, side), labels, id="x", filename="x.png")
    return encode_example(sample, encode_png(sample.image), _categories(classes))


def _records(size: int, work: Path) -> Path:
    """Return the folder of a data set, which is made if it is not there."""
    from boxwright.data.tfrecord import write_records

    folder = work / f"records-{size}"
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        one = _example(3, 24)
        for shard in range(_SHARDS):
            count = len(range(shard, size, _SHARDS))
            write_records(folder / f"a.record-{shard:05d}-of-{_SHARDS:05d}", (one for _ in range(count)))
        (folder / "complete").touch()
    return folder


def _dataset(*folders: Path) -> Any:
    from boxwright.data.tfrecord_dataset import TFRecordDataset

    return TFRecordDataset([folder / f"a.record@{_SHARDS}" for folder in folders], _categories(1))


def _first_batch(dataset: Any, start: int, weights: tuple[float, ...] = ()) -> None:
    from boxwright.data.augmentation.transform import Chain
    from boxwright.data.loader import TrainingExamples, training_batches
    from boxwright.data.order import StreamSettings

    settings = StreamSettings(_BATCH, workers=0, source_weights=weights)
    examples = TrainingExamples(dataset, Chain(), _resizer(64), 0)
    next(iter(training_batches(examples, settings, start)))


@cache
def _resizer(side: int) -> Any:
    return _detector(1, side).preprocessor.resizer


def records_index(size: int, work: Path) -> Callable[[], None]:
    """Find the records of files that were never opened."""
    folder = _records(size, work)

    def run() -> None:
        for index in folder.glob(".*.index"):
            index.unlink()
        _dataset(folder)

    return run


def records_start(size: int, work: Path) -> Callable[[], None]:
    """Open the records again, and make the first batch."""
    folder = _records(size, work)
    _first_batch(_dataset(_records(_SHARDS, work)), 0)  # imports
    return lambda: _first_batch(_dataset(folder), 0)


def records_shuffle(size: int, work: Path) -> Callable[[], None]:
    """Go through the order of an epoch."""
    from boxwright.data.order import StreamSettings, sample_keys

    del work

    def run() -> None:
        for _ in islice(sample_keys([size], StreamSettings(_BATCH)), size):
            pass

    return run


def records_resume(size: int, work: Path) -> Callable[[], None]:
    """Make the first batch in the middle of the third epoch."""
    folder = _records(size, work)
    _first_batch(_dataset(_records(_SHARDS, work)), 0)
    return lambda: _first_batch(_dataset(folder), 2 * size + size // 2)


def records_resume_mixed(size: int, work: Path) -> Callable[[], None]:
    """As `records_resume`, of two sources that take turns by weights."""
    folders = (_records(size, work), _records(_SHARDS, work))
    _first_batch(_dataset(*folders), 0, (0.9, 0.1))
    return lambda: _first_batch(_dataset(*folders), 2 * size + size // 2, (0.9, 0.1))


def objects_decode(size: int, work: Path) -> Callable[[], None]:
    """Read an image and its objects from a record."""
    from boxwright.data.tf_example import BOXES_ONLY, decode_example, read_features

    del work
    data, categories = _example(size, 640, 80), _categories(80)

    def run() -> None:
        for _ in range(20):
            decode_example(read_features(data, "x"), categories, "x", BOXES_ONLY, {})

    return run


def objects_examples(size: int, work: Path) -> Callable[[], None]:
    """Augment eight images as SSDs do, and make a batch of them."""
    from boxwright.config.load import parse_message
    from boxwright.data.batch import collate, to_input
    from boxwright.pipeline.augmentation.steps import build_augmentation
    from boxwright.pipeline.messages import TrainEvalPipelineConfig
    from boxwright.types import Sample

    del work
    steps = "random_horizontal_flip { } } data_augmentation_options { random_crop_image { min_area: 0.75 }"
    text = f"train_config {{ data_augmentation_options {{ {steps} }} }}"
    sample = Sample(np.full((640, 640, 3), 100, np.uint8), _objects(size, 640), np.arange(size) % 80, id="x")
    augment = build_augmentation(parse_message(text, TrainEvalPipelineConfig), _Listed([sample], _categories(80))).at(0)
    random = np.random.default_rng(0)

    def run() -> None:
        collate([to_input(augment(sample, random), _resizer(64)) for _ in range(_BATCH)])

    return run


class _Listed:
    """A data set of samples in memory."""

    name = "made up"

    def __init__(self, samples: Sequence[Any], categories: Any) -> None:
        self.samples, self.categories = samples, categories

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]

    def encoded(self, index: int) -> tuple[bytes, str]:
        raise NotImplementedError


@cache
def _detector(classes: int, side: int) -> Any:
    import torch

    sys.path[:0] = [str(HERE)]
    from boxwright.config.load import parse_message
    from boxwright.pipeline.detector import build_detector
    from boxwright.pipeline.messages import DetectionModel
    from step import ANCHORS, COMMON  # beside this script

    text = COMMON.replace("SIZE", str(side)).replace("TYPE", "ssd_mobilenet_v2_keras").replace("EXTRA", "")
    text = text.replace("num_classes: 90", f"num_classes: {classes}").replace("HEAD", ANCHORS)
    torch.manual_seed(0)
    return build_detector(
        parse_message(text.replace("USE", "use_depthwise: true"), DetectionModel), _categories(classes)
    )


def _loss(classes: int, objects: int) -> Callable[[], None]:
    import torch

    from boxwright.nn.criteria.terms import LossTerm
    from boxwright.types import Targets

    detector = _detector(classes, _TILE).train()
    inputs, sizes = detector.preprocess(torch.zeros(1, _TILE, _TILE, 3, dtype=torch.uint8))
    with torch.no_grad():
        said = detector.predict(inputs, sizes)
    boxes = torch.from_numpy(_objects(objects, _TILE))[None]
    ones = torch.ones(1, objects)
    targets = Targets(boxes, (torch.arange(objects) % classes)[None], ones, ones > 0)

    def run() -> None:
        from dataclasses import replace

        codes, logits = (one.detach().requires_grad_() for one in (said.box_codes, said.class_logits))
        torch.autograd.backward(
            LossTerm.sum(detector.criterion(replace(said, box_codes=codes, class_logits=logits), targets))
        )

    return run


def _metrics(images: int, objects: int, classes: int, *, each: bool = False) -> Callable[[], None]:
    from boxwright.evaluation.metrics.coco import CocoMetrics, PerCategoryMetrics
    from boxwright.types import FoundObjects, Sample

    random, categories = np.random.default_rng(0), _categories(classes)
    given = []
    for number in range(images):
        boxes, found = _objects(objects, 640, number), _objects(100, 640, number)
        sample = Sample(np.zeros((640, 640, 0), np.uint8), boxes, random.integers(0, classes, objects))
        scores = np.sort(random.random(100).astype(np.float32))[::-1]
        given.append((sample, FoundObjects(found, scores, random.integers(0, classes, 100), (640, 640))))

    def run() -> None:
        metrics = CocoMetrics(categories, by_category=PerCategoryMetrics() if each else None)
        for sample, found in given:
            metrics.add(sample, found)
        metrics.compute()

    return run


def classes_head(size: int, work: Path) -> Callable[[], None]:
    """Predict in an image, forward and backward."""
    import torch

    del work
    detector = _detector(size, _TILE).train()
    inputs, sizes = detector.preprocess(torch.zeros(1, _TILE, _TILE, 3, dtype=torch.uint8))

    def run() -> None:
        detector.zero_grad(set_to_none=True)
        detector.predict(inputs, sizes).class_logits.square().mean().backward()

    return run


def classes_detect(size: int, work: Path) -> Callable[[], None]:
    """Detect in an image; weights are fresh, and scores pass the threshold as 0.01 does not stop them."""
    del work
    detector = _detector(size, _TILE).eval()
    image = np.random.default_rng(0).integers(0, 255, (_TILE, _TILE, 3), np.uint8)
    return lambda: void(detector.detect([image]))


def void(_: Any) -> None:
    """Drop a value."""


def side_tiles(size: int, work: Path) -> Callable[[], None]:
    """Detect in the tiles of an image of so many pixels."""
    from boxwright.inference.merging import MERGES
    from boxwright.inference.tiles import in_tiles

    del work
    side = round(size**0.5)
    detector = _detector(4, _TILE).eval().optimize()
    detect = in_tiles(
        lambda images: [one.arrays().above(0.3) for one in detector.detect(list(images))], _TILE, 0.2, MERGES["nms"]
    )
    image = np.random.default_rng(0).integers(0, 255, (side, side, 3), np.uint8)
    detector.detect([image[:_TILE, :_TILE]])
    return lambda: void(detect([image]))


def _evaluated(size: int) -> Iterator[tuple[Any, Any]]:
    from boxwright.types import FoundObjects, Sample
    from evaluation_metrics import SIDE, made_up  # beside this script

    pixels = np.zeros((SIDE, SIDE, 0), np.uint8)
    for one in made_up(size):
        sample = Sample(pixels, one["objects"], one["labels"], is_crowd=one["crowd"])
        yield sample, FoundObjects(one["boxes"], one["scores"], one["found"], (SIDE, SIDE))


def evaluation(size: int, work: Path, *, computing: bool) -> Callable[[], float]:
    """Add images, which are made up between the times that are taken; compute the metrics."""
    from boxwright.evaluation.metrics.coco import CocoMetrics

    del work
    sys.path[:0] = [str(HERE)]

    def run() -> float:
        metrics, seconds, images = CocoMetrics(_categories(80)), 0.0, _evaluated(size)
        # Some at a time: reading the clock takes time, too.
        for some in iter(lambda: list(islice(images, _TOGETHER)), []):
            began = time.process_time()
            for sample, found in some:
                metrics.add(sample, found)
            seconds += time.process_time() - began
        began = time.process_time()
        metrics.compute()
        return time.process_time() - began if computing else seconds

    return run


def bytes_sent(size: int, work: Path, *, sharded: bool) -> Callable[[], float]:
    """Return the MiB that one of so many processes sends in a step of FPNLite-320."""
    sys.path[:0] = [str(HERE)]
    from scaling_network import sent_in_a_step  # beside this script

    del work
    return lambda: sent_in_a_step(size, sharded=sharded) / 2**20


def _fake_model() -> Any:
    from boxwright.inference.finders import ImageDetector
    from boxwright.types import FoundObjects

    boxes, scores = _objects(10, 24), np.linspace(0.9, 0.6, 10, dtype=np.float32)

    def detect(images: Sequence[Any]) -> list[Any]:
        return [
            FoundObjects(boxes, scores, np.zeros(10, np.int64), image.shape[:2], _categories(1)) for image in images
        ]

    return ImageDetector(detect, _categories(1), "made up")


def _job(out: Path) -> Any:
    from boxwright.inference.finders import ModelSource
    from boxwright.inference.settings import PredictionSettings
    from boxwright.inference.shards import Job

    return Job(ModelSource(Path("run"), PredictionSettings()), str(out))


def predictions_written(size: int, work: Path) -> Callable[[], None]:
    """Detect in the images of records, and write the rows."""
    from boxwright.inference.collections import units_of
    from boxwright.inference.shards import begin, run_unit

    folder, out = _records(size, work), work / f"predictions-{size}"

    def run() -> None:
        shutil.rmtree(out, ignore_errors=True)
        job, units = _job(out), units_of([f"{folder}/a.record-*"], 1024)
        begin(job, units, "made up")
        for unit in units:
            for _ in run_unit(unit, job, _fake_model()):
                pass

    return run


def predictions_resumed(size: int, work: Path) -> Callable[[], None]:
    """Find that nothing is missing, and count the rows."""
    from boxwright.inference.collections import units_of
    from boxwright.inference.shards import begin, finished, unfinished_units

    folder, out = _records(size, work), work / f"predictions-{size}"
    if not (out / f"_done-{_SHARDS - 1:06d}").exists():
        predictions_written(size, work)()

    def run() -> None:
        job, units = _job(out), units_of([f"{folder}/a.record-*"], 1024)
        begin(job, units, "made up")
        if unfinished_units(job, units) or sum(part.rows for part in finished(job)) != size:
            raise SystemExit(f"{out}: not all rows are there")

    return run


def predictions_units(size: int, work: Path) -> Callable[[], None]:
    """Detect in units of one image."""
    from boxwright.data.image_io import encode_png
    from boxwright.inference.collections import Unit
    from boxwright.inference.shards import begin, run_unit

    image, out = work / "image.png", work / f"units-{size}"
    image.write_bytes(encode_png(np.full((24, 24, 3), 100, np.uint8)))
    units = [Unit(number, "images", (str(image),)) for number in range(size)]

    def run() -> None:
        shutil.rmtree(out, ignore_errors=True)
        begin(_job(out), units, "made up")
        for unit in units:
            for _ in run_unit(unit, _job(out), _fake_model()):
                pass

    return run


_DECADES = (1_000, 10_000, 100_000, 1_000_000)
AXES: dict[str, Axis] = {
    "records": Axis(
        "images",
        _DECADES,
        {
            "index": records_index,
            "start": records_start,
            "shuffle": records_shuffle,
            "resume": records_resume,
            "resume, mixed": records_resume_mixed,
        },
    ),
    "objects": Axis(
        "objects an image",
        (1, 10, 100, 300, 1_000),
        {
            "decode": objects_decode,
            "examples": objects_examples,
            "loss": lambda size, _: _loss(80, size),
            "metrics": lambda size, _: _metrics(50, size, 80),
        },
    ),
    "classes": Axis(
        "classes",
        (1, 10, 100, 1_000, 10_000),
        {
            "head": classes_head,
            "loss": lambda size, _: _loss(size, 8),
            "detect": classes_detect,
            "metrics": lambda size, _: _metrics(500, 8, size, each=True),
        },
    ),
    "side": Axis("pixels", (320**2, 640**2, 1024**2, 2048**2, 4096**2), {"tiles": side_tiles}),
    "evaluation": Axis(
        "images",
        _DECADES[:3],
        {"add": partial(evaluation, computing=False), "compute": partial(evaluation, computing=True)},
    ),
    "processes": Axis(
        "processes",
        (1, 2, 4, 8),
        {"step": partial(bytes_sent, sharded=False), "step, --shard": partial(bytes_sent, sharded=True)},
        of="MiB",
    ),
    "predictions": Axis(
        "images",
        _DECADES,
        {"write": predictions_written, "resume": predictions_resumed},
    ),
    "units": Axis("units of one image", (100, 1_000, 3_000, 10_000), {"write": predictions_units}),
}
