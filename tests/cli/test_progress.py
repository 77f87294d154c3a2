"""The bar of a run in terminals of several widths, and its lines where there is none."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from boxwright.cli import console as console_module
from boxwright.cli import train as train_module
from boxwright.cli.progress import progress_bar
from boxwright.cli.train import ProgressListener
from boxwright.pipeline.load import load_config
from boxwright.report.metric_words import evaluation_line
from boxwright.training.log import Evaluated, Scalars

VALUES = {
    "Loss/classification_loss": 0.512,
    "Loss/localization_loss": 0.25,
    "Loss/total_loss": 12.345,
    "learning_rate": 0.01,
    "steps_per_sec": 2.5,
}


def narrated(
    monkeypatch: pytest.MonkeyPatch, config: Any, on: Console, steps: list[tuple[int, float]], *, close: bool = False
) -> None:
    """Let a run of some steps be told, each at a second."""
    monkeypatch.setattr(train_module, "console", on)
    now = iter([second for _, second in steps])
    with progress_bar(on) as bar:
        listener = ProgressListener(bar, config, clock=lambda: next(now))
        for step, _ in steps:
            listener.on_event(step, Scalars(VALUES))
        bar.refresh()
        if close:
            listener.close()


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_what_matters_most_is_seen_at_every_width(
    small_config: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Four images a step, 2.5 steps a second; the last 19,400 steps take 7760 seconds."""
    config = load_config(small_config, ["train_config.num_steps=40000"])
    text = io.StringIO()
    on = Console(file=text, width=width, force_terminal=True, color_system=None, soft_wrap=True)
    narrated(monkeypatch, config, on, [(600, 0.0), (20600, 60.0)])
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue())
    plain = next(line.rstrip() for line in re.split(r"[\r\n]", drawn) if "20600/40000" in line)
    assert len(plain) <= width
    told = ("10.0 images/s", "2:09:20 left") if width > 60 else ("10.0 img/s", "<2:09:20")
    for wanted in ("━", "20600/40000", *told, "0:00:0", "loss 12.345"):
        assert wanted in plain, (width, plain)
    assert ("classification 0.512" in plain) == (width >= 100), plain
    assert ("rate 1.00e-02" in plain) == (width >= 140), plain


def test_without_a_terminal_there_is_a_line_every_half_a_minute(
    small_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step, those 30 seconds after the line before, and the last."""
    config = load_config(small_config, ["train_config.num_steps=100"])
    text = io.StringIO()
    steps = [(20, 0.0), (40, 12.0), (60, 31.0), (80, 60.0), (100, 60.5)]
    narrated(monkeypatch, config, Console(file=text, width=80, force_terminal=False), steps)
    lines = [line.split("  ")[0] for line in text.getvalue().splitlines() if line.startswith("step")]
    assert lines == ["step 20/100", "step 60/100", "step 100/100"]
    assert "step 60/100  10.0 images/s  loss 12.345  classification 0.512" in text.getvalue()


def test_a_run_that_is_stopped_tells_its_last_step(small_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(small_config, ["train_config.num_steps=100"])
    text = io.StringIO()
    on = Console(file=text, width=80, force_terminal=False)
    narrated(monkeypatch, config, on, [(20, 0.0), (40, 2.0), (60, 4.0)], close=True)
    lines = [line.split("  ")[0] for line in text.getvalue().splitlines() if line.startswith("step")]
    assert lines == ["step 20/100", "step 60/100"]


AP, AP50 = "DetectionBoxes_Precision/mAP", "DetectionBoxes_Precision/mAP@.50IOU"


@pytest.mark.parametrize(
    ("metrics", "best_metric", "name", "line"),
    [
        ({AP: 0.1754, AP50: 0.3449, "Loss/total_loss": 1.5}, AP, "", "step 300  AP 0.175 (best)  AP50 0.345"),
        ({AP: 0.1754, AP50: 0.3449}, "", "night", "step 300  night  AP 0.175  AP50 0.345"),
        ({AP: 0.1, AP50: 0.2, "Loss/a": 1.5}, "Loss/a", "", "step 300  AP 0.100  AP50 0.200  a loss 1.500 (best)"),
        ({AP: -1.0, AP50: -1.0}, "", "", "step 300  AP no objects  AP50 no objects"),
        ({"PascalBoxes/mAP": 0.5, "Loss/a": 1.5}, "PascalBoxes/mAP", "", "step 300  PascalBoxes/mAP 0.500 (best)"),
        ({}, "", "", "step 300"),
    ],
)
def test_an_evaluation_is_one_line(metrics: dict[str, float], best_metric: str, name: str, line: str) -> None:
    assert evaluation_line(300, Evaluated(metrics, {}, name, best_metric=best_metric)) == line


def test_all_metrics_are_printed_once_at_the_end(small_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    on = Console(file=text, width=80, force_terminal=False)
    for module in (train_module, console_module):
        monkeypatch.setattr(module, "console", on)
    with progress_bar(on) as bar:
        listener = ProgressListener(bar, load_config(small_config))
        for step in (2, 4):
            listener.on_event(step, Evaluated({AP: step / 10, "Loss/total_loss": 2.0}, {}, notes=(f"noted at {step}",)))
        assert text.getvalue().splitlines() == ["step 2  AP 0.200", "step 4  AP 0.400"]
        listener.close()
    lines = [line.rstrip() for line in text.getvalue().splitlines()[2:]]
    assert lines == [
        "evaluation at step 4",
        "AP          0.4000",
        "total loss  2.0000",
        "noted at 4",
    ]


def test_a_file_gets_no_frames_of_a_spinner_whatever_asks_for_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of a notebook sets FORCE_COLOR, which its programs inherit."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = io.StringIO()
    on = console_module.TextConsole(file=text)
    with on.status("exporting …"):
        on.print("compared")
    assert text.getvalue() == "compared\n"
