"""The bar of training from Python."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from boxwright.api.train import ProgressBar, is_watched
from boxwright.training.log import Evaluated, Scalars


def test_it_shows_steps_loss_and_evaluations() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    bar = ProgressBar(10, console)
    bar.on_event(5, Scalars({"Loss/total_loss": 1.25, "steps_per_sec": 2.0}))
    bar.on_event(6, Scalars({"Loss/total_loss": 9.0}, progress=False))  # details for curves alone
    bar.on_event(5, Evaluated({"DetectionBoxes_Precision/mAP": 0.5}, {}))
    bar._progress.refresh()
    bar.close()
    text = console.file.getvalue()  # type: ignore[attr-defined]  # StringIO
    assert "5/10" in text
    assert "loss 1.250" in text
    assert "9.000" not in text
    assert "step 5: DetectionBoxes_Precision/mAP 0.5000" in text


def test_a_notebook_without_widgets_has_lines_and_no_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boxwright.api.train.find_spec", lambda _: None)
    console = Console(file=io.StringIO(), force_jupyter=True, width=80)
    shown: list[str] = []
    monkeypatch.setattr(console, "print", lambda text, **_: shown.append(text))
    bar = ProgressBar(10, console)
    for step in range(1, 4):
        bar.on_event(step, Scalars({"Loss/total_loss": 1.25, "steps_per_sec": 2.0}))
    bar.on_event(3, Evaluated({"DetectionBoxes_Precision/mAP": 0.5}, {}))
    bar.close()
    assert shown == ["step 3: DetectionBoxes_Precision/mAP 0.5000"]


def test_nobody_watches_a_file() -> None:
    assert not is_watched(Console(file=io.StringIO()))
    assert is_watched(Console(file=io.StringIO(), force_terminal=True))
