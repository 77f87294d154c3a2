"""All checks of a configuration and its data.

Two are here: what data hold and what of it is used, and which fields of a configuration have no effect or are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from boxwright.base.errors import BoxwrightError, first_line
from boxwright.base.read_settings import MOST_LOST
from boxwright.config.support import report
from boxwright.data.account import take_account
from boxwright.data.dataset import Dataset, with_white_level
from boxwright.data.pixel_scale import measure_white_level
from boxwright.evaluation.data import open_evaluation_data
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.nn.detector import Detector
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.input_reader import build_dataset, state_white_level
from boxwright.pipeline.message import white_level
from boxwright.pipeline.missing import require_for_training
from boxwright.pipeline.training import ENDLESS, TrainingPlan, build_training
from boxwright.training.preflight.anchors import InputFrame, check_anchors, find_anchor_generator
from boxwright.training.preflight.images import (
    Fingerprints,
    check_duplicates,
    check_leak,
    check_levels,
    check_readable,
    check_stored,
    read_fingerprints,
)
from boxwright.training.preflight.labels import (
    check_balance,
    check_boxes,
    check_counts,
    check_label_map,
    check_queries,
    check_record_texts,
    check_small_boxes,
)
from boxwright.training.preflight.plan import (
    check_average,
    check_checkpoint,
    check_frozen,
    check_never,
    check_schedule,
    check_statistics,
)
from boxwright.training.preflight.records import Finding, Progress, Record, Verdict, read_records, silent, some, spread


def check_account(dataset: Dataset, what: str, progress: Progress) -> Iterable[Finding]:
    """Yield the account of data."""
    account = take_account(dataset, lambda items: progress(f"{what} labels", items))
    lost = account.lost()
    verdict: Verdict = "fatal" if lost > MOST_LOST or not account.samples else "warning" if lost else "fine"
    remedy = "correct or remove them; boxwright doctor --fix writes what can be used" if lost else ""
    assumed = list(account.assumed.lines())
    counts = account.lines()[: -len(assumed) or None]
    yield Finding("account", verdict, f"{what}: " + "\n".join(counts), remedy)
    for line in assumed:
        yield Finding("assumed", "note", f"{what}: {line}", "boxwright inspect draws pictures with their boxes")


def check_fields(config: m.TrainEvalPipelineConfig) -> Iterable[Finding]:
    """Yield the fields of a configuration that are not honored."""
    # What a preset sets without effect is not the user's to remove.
    rows = [row for row in report(config) if not (row.in_preset and row.status.verdict == "without effect")]
    refused = [str(row) for row in rows if row.status.verdict == "refused"]
    idle = [row.path for row in rows if row.status.verdict == "without effect"]
    if refused:
        yield Finding(
            "fields", "fatal", f"{len(refused)} settings are refused: {some(refused)}", "boxwright config check"
        )
    if idle:
        yield Finding(
            "fields", "note", f"{len(idle)} settings have no effect: {some(idle)}", "boxwright config check says why"
        )
    if not refused and not idle:
        yield Finding("fields", "fine", f"all {len(rows)} settings are honored")


@dataclass(frozen=True)
class Depth:
    """How much of the data is examined; 0 for all.

    Attributes:
        hashed: Image files that are compared with each other.
        texts: Records of each TFRecord file whose class names are read.
    """

    decoded: int = 1000
    hashed: int = 10_000
    texts: int = 2000


# Samples before each run, and how long one may take to arrive: a slow disk must not delay the run for minutes.
_QUICK, _QUICK_SECONDS = 64, 10.0
_READERS = 2


def examine(
    config: m.TrainEvalPipelineConfig,
    checkpoint: str = "",
    depth: Depth | None = None,
    progress: Progress | None = None,
) -> Iterator[Finding]:
    """Check a configuration, its data and its checkpoint; yield each check's finding, even if all is well.

    If the configuration cannot be built, the checks end there.

    Args:
        checkpoint: The weights to start from; empty for the configuration's own.
    """
    depth, shown = depth or Depth(), progress or silent
    yield from check_fields(config)
    try:
        require_for_training(config)
        plan = build_training(config)
        dataset = build_dataset(config.train_input_reader, "train_input_reader")
        detector = build_detector(config, dataset.categories)
    except BoxwrightError as error:
        yield Finding("configuration", "fatal", str(error), "boxwright config check")
        return
    yield Finding("configuration", "fine", "model, training and data can be built")
    yield from _schedule(config, plan)
    yield from check_statistics(plan, detector)
    averaged = config.eval_config is not None and config.eval_config.use_moving_averages
    yield from check_average(plan, evaluated=averaged)
    yield from _checkpoint(plan, detector, checkpoint)
    yield from check_frozen(plan, detector, checkpoint)
    if not len(dataset):
        yield Finding("empty_images", "fatal", f"{dataset.name} has no samples", "check its path")
        return
    yield from check_account(dataset, "training", shown)
    if not white_level(config):
        level, line = measure_white_level(dataset)
        config, dataset = state_white_level(config, level), with_white_level(dataset, level)
        yield from _scale(level, line)
    records, unreadable = _read(dataset, depth.decoded, "training samples", shown)
    prints = read_fingerprints(dataset, shown("training images", spread(len(dataset), depth.hashed)))
    yield from _readable(records, unreadable, prints, "training")
    yield from _data(config, detector, dataset, records, depth)
    yield from check_stored(prints, dataset)
    yield from check_duplicates(prints, "the training data")
    yield from _evaluation(config, dataset, prints, depth, shown)


def examine_data(
    train: Dataset, held_out: Dataset | None, depth: Depth | None = None, progress: Progress | None = None
) -> Iterator[Finding]:
    """Check data alone: readability, boxes, classes, duplicates, leaks; yield each check's finding."""
    depth, shown = depth or Depth(), progress or silent
    yield from check_account(train, "training", shown)
    level, line = measure_white_level(train)
    yield from _scale(level, line)
    train = with_white_level(train, level)
    held_out = None if held_out is None else with_white_level(held_out, level)
    records, unreadable = _read(train, depth.decoded, "training samples", shown)
    prints = read_fingerprints(train, shown("training images", spread(len(train), depth.hashed)))
    yield from _readable(records, unreadable, prints, "training")
    yield from check_levels(records, "the training data")
    yield from check_balance(records, train.categories)
    yield from check_counts(records, None)
    yield from check_boxes(records)
    yield from check_stored(prints, train)
    yield from check_duplicates(prints, "the training data")
    if held_out is None:
        yield Finding(
            "split",
            "note",
            "the data have no split",
            "boxwright init creates one that keeps near-duplicates together",
        )
    else:
        yield from _evaluation_data(held_out, prints, depth, shown)


def examine_quickly(
    config: m.TrainEvalPipelineConfig, plan: TrainingPlan, dataset: Dataset, detector: Detector
) -> list[Finding]:
    """Return warnings and fatal findings of the checks that take only seconds, on few samples."""
    findings = [*_schedule(config, plan), *check_statistics(plan, detector), *check_frozen(plan, detector)]
    indices = spread(len(dataset), _QUICK)
    records, unreadable = read_records(dataset, indices, workers=min(plan.stream.workers, 1), patience=_QUICK_SECONDS)
    findings += check_readable(unreadable, len(records) + len(unreadable), "training") if unreadable else []
    findings += _data(config, detector, dataset, records, Depth(texts=_QUICK))
    return [finding for finding in findings if finding.verdict in ("warning", "fatal")]


def _scale(level: float, line: str) -> Iterable[Finding]:
    """Yield what is white in images that are not of 8 bits, if there are any."""
    if line:
        yield Finding("pixels", "note" if level else "warning", line, "" if level else "set it in the configuration")


def _schedule(config: m.TrainEvalPipelineConfig, plan: TrainingPlan) -> Iterable[Finding]:
    if plan.num_steps == ENDLESS:
        yield Finding(
            "learning_rate",
            "note",
            "train_config.num_steps is not set: training continues until it is stopped",
            "set it, so that the learning rate can be checked",
        )
        return
    yield from check_schedule(plan.optimizer.schedule, plan.num_steps)
    if config.train_config is not None:
        yield from check_never(config.train_config, plan.num_steps)


def _read(dataset: Dataset, most: int, what: str, progress: Progress) -> tuple[list[Record], list[str]]:
    indices = spread(len(dataset), most)
    return read_records(dataset, indices, workers=_READERS, progress=lambda items: progress(what, items))


def _readable(
    records: Sequence[Record], unreadable: Sequence[str], prints: Fingerprints, what: str
) -> Iterable[Finding]:
    """Return the finding on unreadable samples, decoded or only compared."""
    # Decoding and comparing refuse the same file; it is one problem.
    others = [line for line in prints.unreadable if not any(line.split(": ")[0] in known for known in unreadable)]
    total = max(len(records) + len(unreadable), len(prints.names) + len(prints.unreadable))
    return check_readable([*unreadable, *others], total, what)


def _checkpoint(plan: TrainingPlan, detector: Detector, checkpoint: str) -> Iterable[Finding]:
    start = plan.fine_tune
    source = checkpoint or start.source
    if source:
        yield from check_checkpoint(detector, source, start.scope, channels=start.channels, folder=start.folder)
    elif plan.pretrained:
        yield Finding(
            "checkpoint", "fine", "the backbone starts from weights that timm downloads, the rest from random ones"
        )
    else:
        yield Finding(
            "checkpoint",
            "note",
            "the run starts from random weights",
            "few images suffice only with pretrained ones: set fine_tune_checkpoint, or timm/NAME with pretrained",
        )


def _data(
    config: m.TrainEvalPipelineConfig, detector: Detector, dataset: Dataset, records: Sequence[Record], depth: Depth
) -> Iterable[Finding]:
    """Check training samples that were read."""
    reader = config.train_input_reader
    yield from check_levels(records, "the training data")
    yield from check_label_map(records, dataset.categories, detector.num_classes)
    if reader is not None and reader.tf_record_input_reader is not None:
        paths = list(reader.tf_record_input_reader.input_path)
        try:
            yield from check_record_texts(paths, dataset.categories, depth.texts)
        except BoxwrightError as error:
            yield Finding("label_map_texts", "warning", first_line(error), "replace the file")
    yield from check_balance(records, dataset.categories)
    most = reader.max_number_of_boxes if reader is not None and "max_number_of_boxes" in reader.present() else None
    yield from check_counts(records, most)
    yield from check_queries(records, detector.network.most_objects)
    yield from check_boxes(records)
    frame = InputFrame(detector)
    yield from check_small_boxes(records, frame)
    anchors = find_anchor_generator(config.model)
    if anchors is not None:
        yield from check_anchors(detector, anchors[0], records, frame, anchors[1])


def _evaluation(
    config: m.TrainEvalPipelineConfig,
    dataset: Dataset,
    prints: Fingerprints,
    depth: Depth,
    progress: Progress,
) -> Iterable[Finding]:
    """Check the evaluation data, alone and against the training data."""
    for number in range(len(config.eval_input_reader)):
        try:
            other = open_evaluation_data(config, EvaluationSettings(eval_index=number), dataset.categories).dataset
        except BoxwrightError as error:
            yield Finding("evaluation", "fatal", first_line(error), "correct eval_input_reader")
            continue
        yield from _evaluation_data(other, prints, depth, progress)


def _evaluation_data(other: Dataset, prints: Fingerprints, depth: Depth, progress: Progress) -> Iterable[Finding]:
    yield from check_account(other, "evaluation", progress)
    records, unreadable = _read(other, depth.decoded, "evaluation samples", progress)
    yield from check_levels(records, "the evaluation data")
    others = read_fingerprints(other, progress("evaluation images", spread(len(other), depth.hashed)))
    yield from _readable(records, unreadable, others, "evaluation")
    seen = {label for record in records for label in record.labels.tolist()}
    if records and not seen:
        yield Finding("evaluation", "warning", "no evaluation image has an object", "check its annotations")
    yield from check_leak(prints, others)
