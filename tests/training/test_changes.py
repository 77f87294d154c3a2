"""A run's second day: what its configuration changes is listed or refused, and a command that fails leaves it as it was."""

from __future__ import annotations

import io
import logging
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import boxwright as bw
from boxwright.cli import train
from boxwright.data.coco import CocoDataset
from boxwright.data.convert import write_coco
from boxwright.data.shapes import ShapesDataset
from boxwright.training import train as train_module
from boxwright.training.changes import describe_changes, find_changes
from boxwright.training.step import Learner
from tests.conftest import Silent, small_config_text

RATE = "train_config.optimizer.momentum_optimizer.learning_rate.constant_learning_rate.learning_rate"
SIZE = "model.ssd.image_resizer.fixed_shape_resizer.height"
NO_EVALUATION = bw.RunSettings(workers=0, evaluate=False, preflight=False)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(Silent, "message", lambda self, text: lines.append(text))
    return lines


@pytest.fixture(scope="module")
def begun(shapes_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration beside the folder of its run of one step."""
    path = tmp_path_factory.mktemp("begun") / "pipeline.config"
    path.write_text(small_config_text(shapes_data))
    bw.train(path, path.parent / "model", NO_EVALUATION, overrides=["train_config.num_steps=1"])
    return path


def lines(before: Path, *overrides: str, accepted: bool = False) -> list[str]:
    configs = bw.load_config(before), bw.load_config(before, overrides)
    return describe_changes(*configs, Path("model/ckpt-7.pt"), accepted=accepted)


def test_nothing_is_said_where_nothing_changed(begun: Path) -> None:
    assert lines(begun) == []


def test_what_training_alone_reads_is_listed(begun: Path) -> None:
    step = "train_config { data_augmentation_options { random_vertical_flip { } } }"
    (line,) = lines(begun, "train_config.num_steps=9", f"{RATE}=0.001", "train_config.batch_size=2", step)
    assert line.startswith("changed since ckpt-7.pt: train_config.batch_size 4 → 2, ")
    assert f"{RATE} 0.01 → 0.001" in line
    assert "train_config.num_steps 6 → 9" in line
    assert "train_config.data_augmentation_options 1 entry → 2 entries" in line


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        (f"{SIZE}=128", f"{SIZE} 64 → 128"),
        ("model.ssd.anchor_generator.multiscale_anchor_generator.anchor_scale=4", r"anchor_scale 2 → 4"),
        ("model.ssd.feature_extractor.type=ssd_resnet18", "feature_extractor.type .* → ssd_resnet18"),
    ],
)
def test_what_predictions_mean_is_refused_unless_it_is_accepted(begun: Path, override: str, wanted: str) -> None:
    with pytest.raises(
        bw.CheckpointError, match=rf"another network: .*{wanted}; use another model_dir.*accept_changes"
    ):
        lines(begun, override)
    (line,) = lines(begun, override, accepted=True)
    assert line.startswith("changed since ckpt-7.pt: model.ssd.")


@pytest.mark.parametrize(
    "override",
    [
        "model.ssd.freeze_batchnorm=true",
        "model.ssd.loss.localization_weight=2",
        "model.ssd.post_processing.batch_non_max_suppression.iou_threshold=0.4",
        "model.ssd.feature_extractor.conv_hyperparams.regularizer.l2_regularizer.weight=0.1",
        "eval_config.num_visualizations=1",
    ],
)
def test_what_the_weights_do_not_depend_on_is_never_refused(begun: Path, override: str) -> None:
    name, _, value = override.partition("=")
    (line,) = lines(begun, override)
    assert f"{name} " in line
    assert line.endswith(f" → {value}")


def test_a_oneof_of_another_member_is_two_changes(begun: Path) -> None:
    adam = "train_config.optimizer={ adam_optimizer { learning_rate { constant_learning_rate { } } } }"
    found = find_changes(bw.load_config(begun), bw.load_config(begun, [adam]))
    assert [str(change) for change in found if "optimizer." in change.path and "average" not in change.path] == [
        "train_config.optimizer.momentum_optimizer set → not set",
        "train_config.optimizer.adam_optimizer not set → set",
    ]


def test_a_resumed_run_says_what_changed(begun: Path, heard: list[str]) -> None:
    model_dir = begun.parent / "model"
    changes = ["train_config.num_steps=2", f"{RATE}=0.001"]
    bw.train(begun, model_dir, NO_EVALUATION, {"heard": Silent()}, overrides=changes)
    (line,) = [text for text in heard if text.startswith("changed since ckpt-1.pt: ")]
    assert "train_config.num_steps 1 → 2" in line
    assert f"{RATE} 0.01 → 0.001" in line
    assert bw.load_config(model_dir / "pipeline.config", []) == bw.load_config(begun, changes)


def test_a_command_that_fails_leaves_the_configuration_of_the_run(
    begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One before any step, and one in its first."""
    model_dir = begun.parent / "model"
    before = (model_dir / "pipeline.config").read_bytes()
    with pytest.raises(bw.CheckpointError, match="another network"):
        bw.train(begun, model_dir, NO_EVALUATION, overrides=[f"{SIZE}=128", "train_config.num_steps=9"])
    assert (model_dir / "pipeline.config").read_bytes() == before

    def fail(self: Learner, *arguments: Any, **options: Any) -> Any:
        raise bw.TrainingError("not enough memory")

    monkeypatch.setattr(Learner, "step", fail)
    with pytest.raises(bw.TrainingError, match="not enough memory"):
        bw.train(begun, model_dir, NO_EVALUATION, overrides=["train_config.batch_size=2", "train_config.num_steps=9"])
    assert (model_dir / "pipeline.config").read_bytes() == before
    with pytest.raises(bw.TrainingError, match="not enough memory"):
        bw.train(begun, tmp_path / "new", NO_EVALUATION)
    assert not (tmp_path / "new" / "pipeline.config").exists()


@pytest.mark.parametrize(
    ("at_terminal", "answer", "accepted"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_only_a_terminal_is_asked(
    at_terminal: bool, answer: bool, accepted: bool, begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def confirm(question: str) -> bool:
        asked.append(question)
        return answer

    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: at_terminal))
    monkeypatch.setattr(train, "console", Console(force_terminal=True, file=io.StringIO()))
    monkeypatch.setattr("typer.confirm", confirm)
    other, same = bw.load_config(begun, [f"{SIZE}=128"]), bw.load_config(begun)
    model_dir = begun.parent / "model"
    assert train._ask_about_changes(other, model_dir, NO_EVALUATION).accept_changes is accepted
    assert len(asked) == at_terminal
    assert train._ask_about_changes(same, model_dir, NO_EVALUATION) is NO_EVALUATION
    assert len(asked) == at_terminal, "a change of the length alone is no question"


def test_objects_of_a_class_that_was_added_to_the_data_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The label map of a run that is resumed, and so its network, has no place for them."""
    shapes = ShapesDataset(4, seed=3, size=(96, 120))
    write_coco(shapes, tmp_path / "a.json")
    one, *others = shapes.categories
    counts = Counter(int(label) for index in range(len(shapes)) for label in shapes[index].labels)
    added = sum(counts[item.label] for item in others)
    processes = SimpleNamespace(log=logging.getLogger("boxwright"))
    for categories in (shapes.categories, bw.Categories((one,))):
        data = CocoDataset(tmp_path / "a.json", categories=categories)
        train_module._log_reading(bw.Pipeline(), data, None, processes)
    (record,) = caplog.records
    assert f"left out: {added} boxes of classes that are not in the label map (" in record.getMessage()
