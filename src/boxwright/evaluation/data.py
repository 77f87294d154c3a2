"""The data of an evaluation, and the classes that are counted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from boxwright.base.errors import ConfigError
from boxwright.data.dataset import Dataset
from boxwright.evaluation.build import EvaluationPlan, build_evaluation
from boxwright.evaluation.settings import EvaluationSettings
from boxwright.pipeline import messages as m
from boxwright.pipeline.input_reader import build_dataset
from boxwright.types import Categories, Category

# TF's default of sample_1_of_n_eval_on_train_examples.
_NTH_OF_TRAINING = 5
# The class of all objects in class-agnostic evaluations.
ONE_CLASS = Categories((Category(0, 1, "object"),))


@dataclass(frozen=True)
class EvaluationData:
    """Open data, and how to evaluate on them.

    Attributes:
        name: The name of the reader's event folder; empty for the first reader, if it has no name.
    """

    name: str
    dataset: Dataset
    plan: EvaluationPlan

    @property
    def counted_categories(self) -> Categories:
        """The classes that are counted: those of the data, or one of all objects."""
        return ONE_CLASS if self.plan.class_agnostic else self.dataset.categories


def open_evaluation_data(
    config: m.TrainEvalPipelineConfig, settings: EvaluationSettings, trained: Categories | None, num_classes: int = 0
) -> EvaluationData:
    """Return the data that the settings choose; a missing reader, or other classes than `trained`, is a ConfigError.

    Data whose only class is "object" are counted without classes.

    Args:
        trained: The detector's classes; None if they have no names: those of records are then numbers.
        num_classes: How many classes the detector has; 0 if unknown.
    """
    reader, where = _reader(config, settings)
    numbered = trained is None and num_classes and reader.tf_record_input_reader is not None
    dataset = build_dataset(reader, where, Categories.numbered(num_classes) if numbered else trained)
    if num_classes and dataset.categories.num_slots > num_classes:
        last = dataset.categories.items[-1]
        raise ConfigError(
            f"{where}: the data have class {last.name!r}, number {last.label + 1}; the detector has {num_classes}"
        )
    plan = build_evaluation(config, reader)
    if _without_classes(dataset.categories, trained):
        # Its labels are not the detector's: no loss can be computed from them.
        plan = replace(plan, class_agnostic=True, losses=False)
    else:
        check_same_classes(trained, dataset.categories)
        plan = replace(plan, class_agnostic=plan.class_agnostic or settings.class_agnostic)
    data = EvaluationData(reader_name(config, settings), dataset, plan)
    for make in plan.metrics:  # those that do not fit the classes raise before any image is evaluated
        make(data.counted_categories)
    return data


def _without_classes(given: Categories, trained: Categories | None) -> bool:
    """Return whether data have only the class "object", as TF names it, and the detector has others."""
    only_objects = [category.name for category in given] == [ONE_CLASS.items[0].name]
    return only_objects and trained is not None and trained.by_name(given.items[0].name) is None


def _reader(config: m.TrainEvalPipelineConfig, settings: EvaluationSettings) -> tuple[m.InputReader, str]:
    """Return the reader that the settings choose, and its path in the configuration."""
    every = settings.sample_1_of_n_eval_examples
    if settings.eval_on_train_data:
        if config.train_input_reader is None:
            raise ConfigError("train_input_reader is missing from the configuration")
        reader, where, every = config.train_input_reader, "train_input_reader", every or _NTH_OF_TRAINING
    else:
        number, count = settings.eval_index, len(config.eval_input_reader)
        if number >= count:
            raise ConfigError(f"eval_input_reader[{number}] is missing; the configuration has {count}")
        reader, where = config.eval_input_reader[number], f"eval_input_reader[{number}]"
    return reader if every is None else reader.replaced(sample_1_of_n_examples=every), where


def reader_name(config: m.TrainEvalPipelineConfig, settings: EvaluationSettings) -> str:
    """Return the chosen reader's `name`, or else its number, or nothing for the first; no reader is a ConfigError."""
    reader, _ = _reader(config, settings)
    if settings.eval_on_train_data:
        return "eval_on_train"
    return reader.name or (str(settings.eval_index) if settings.eval_index else "")


def check_same_classes(trained: Categories | None, given: Categories) -> None:
    """Raise a ConfigError if a label has different names in the detector and in the data."""
    for category in given if trained else ():
        other = next((item for item in trained or () if item.label == category.label), None)
        if other is None or other.name != category.name:
            name = other.name if other else "nothing"
            raise ConfigError(
                f"label {category.label} is {category.name!r} in the data, but {name!r} in the detector; "
                "is this the right label map?"
            )
