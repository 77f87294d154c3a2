"""The data of a new configuration: opened, accounted for, split if they have no split, with their label map."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from boxwright.base.errors import DataError
from boxwright.base.text import visible_line
from boxwright.data.account import DatasetUsage, take_account, without_pixels
from boxwright.data.dataset import Dataset, with_white_level
from boxwright.data.label_map import label_map_text
from boxwright.data.listed import ListedDataset, sample_list_text
from boxwright.data.open_dataset import open_recognized
from boxwright.data.pixel_scale import measure_white_level
from boxwright.data.recognized import RecognizedData
from boxwright.pipeline import messages as m
from boxwright.pipeline.input_reader import build_input_reader
from boxwright.training.autoconfig.choices import Choice, InitSettings
from boxwright.training.autoconfig.facts import DataStatistics, read_facts
from boxwright.training.autoconfig.write import describe_split, split_dataset
from boxwright.training.preflight.records import Progress, Record, silent


@dataclass(frozen=True, eq=False)
class OpenedData:
    """Recognized data, opened.

    Attributes:
        train: The reader of training, as the configuration will have it.
        held_out: The reader of evaluation.
        training: The samples to learn from.
        facts: What was counted in them.
        records: Sizes and boxes of each of them.
        files: What is to be written beside the configuration: path to content.
        choices: What was chosen for the data.
    """

    train: m.InputReader
    held_out: m.InputReader
    training: Dataset
    facts: DataStatistics
    records: list[Record]
    files: dict[Path, str]
    choices: list[Choice]


def open_data(recognized: RecognizedData, stem: Path, settings: InitSettings, progress: Progress | None) -> OpenedData:
    """Return data opened, and split if they have no split; no file is written yet.

    Args:
        stem: The configuration's path without its ending, with which the other files' names begin.

    Raises:
        DataError: If they cannot be read, or more is lost than the settings permit.
    """
    everything, evaluation = open_recognized(recognized)
    label_map = stem.with_name(f"{stem.name}.label_map.pbtxt")
    files = {label_map: label_map_text(everything.categories)}
    choices = [Choice("data", recognized.kind, "; ".join(recognized.notes))]
    account, unreadable = _account("account", everything, settings, choices, progress)
    train, held_out = build_input_reader(recognized.train), build_input_reader(recognized.held_out or recognized.train)
    level, line = measure_white_level(everything)
    if level:
        train.white_level = held_out.white_level = level
        everything = with_white_level(everything, level)
        choices.append(Choice("white level", f"{level:g}", line))
    rows: dict[str, Sequence[tuple[int, str]]] = {}
    if evaluation is None:
        split = split_dataset(everything, progress, unreadable)
        account.refuse_losses(settings.most_lost, everything.name, len(split.unreadable))
        rows = {"train": split.train, "val": split.held_out}
        choices.append(describe_split(split))
    else:
        _, held_out_unreadable = _account("held out", evaluation, settings, choices, progress)
        if unreadable or held_out_unreadable:
            rows = {"train": _readable(everything, unreadable), "val": _readable(evaluation, held_out_unreadable)}
        counts = f"{account.samples} to train, {len(evaluation) - len(held_out_unreadable)} to evaluate"
        choices.append(Choice("split", counts, "the data's own lists"))
    training: Dataset = everything
    if rows:
        title = "number and file name of each sample; written by boxwright init"
        for name, purpose, reader in (("train", "for training", train), ("val", "held out for evaluation", held_out)):
            path = stem.with_name(f"{stem.name}.{name}.txt")
            files[path] = sample_list_text(rows[name], f"{purpose}: {title}")
            reader.sample_list = str(path)
        training = ListedDataset(everything, rows["train"], train.sample_list)
    facts, records = read_facts(training, progress)
    classes = ", ".join(f"{visible_line(name)} {count}" for name, count in facts.counts.most_common(6))
    more = f" and {len(facts.counts) - 6} more" if len(facts.counts) > 6 else ""
    choices.append(Choice("classes", str(len(everything.categories)), f"objects: {classes}{more}"))
    for reader in (train, held_out):
        reader.label_map_path = str(label_map)
    held_out.shuffle = False
    if account.ignored:
        train.hide_ignored_regions = True
        choices.append(Choice("regions", f"{account.ignored} hidden", "to ignore: neither objects nor background"))
    return OpenedData(train, held_out, training, facts, records, files, choices)


def load_masks(*readers: m.InputReader) -> None:
    """Let readers load the masks that a detector learns; in TFRecords they are images, as most tools write them."""
    for reader in readers:
        reader.load_instance_masks = True
        if reader.tf_record_input_reader is not None:
            reader.mask_type = m.InstanceMaskType.PNG_MASKS


def _account(
    name: str, dataset: Dataset, settings: InitSettings, choices: list[Choice], progress: Progress | None
) -> tuple[DatasetUsage, Collection[int]]:
    """Return the account of data, which is added to the choices, and the indices of their unreadable samples.

    Raises:
        DataError: If more is lost than the settings permit.
    """
    shown = progress or silent
    account = take_account(dataset, lambda items: shown("look at pictures and labels", items))
    account.refuse_losses(settings.most_lost, dataset.name)
    if not account.samples:
        raise DataError(f"{dataset.name}: no sample can be read: " + "; ".join(account.left_out.lines()))
    first, *more = account.summary()
    choices += [Choice(name, "", first), *(Choice("", "", line) for line in more)]
    return account, set(account.unreadable)


def _readable(dataset: Dataset, unreadable: Collection[int]) -> list[tuple[int, str]]:
    numbers = [number for number in range(len(dataset)) if number not in unreadable]
    return [(number, without_pixels(dataset, number).filename) for number in numbers]
