"""`boxwright history`."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from typer.main import get_command

from boxwright.base.errors import BoxwrightError
from boxwright.cli.main import app
from tests.cli.test_commands import run

LOG = '{"step": 20, "Loss/total_loss": 3.5}\n{"step": 40, "Loss/total_loss": 2.25}\n'


def test_a_run_without_a_checkpoint_has_curves(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(LOG)
    said = run("history", tmp_path)
    assert said.splitlines() == [f"history: {tmp_path / 'history.png'}", f"next: boxwright monitor {tmp_path}"]
    with Image.open(tmp_path / "history.png") as picture:
        assert picture.size == (990, 396)  # 9 × 3.6 inches at 110 dots
    run("history", tmp_path, "--out", tmp_path / "curves.jpg")
    with Image.open(tmp_path / "curves.jpg") as picture:
        assert picture.format == "JPEG"


@pytest.mark.parametrize(
    ("log", "out", "message"),
    [
        (None, "a.png", "metrics.jsonl is missing or empty"),
        ("", "a.png", "metrics.jsonl is missing or empty"),
        (LOG, "a.gif", "expected a name that ends in .png or .jpg"),
    ],
)
def test_what_cannot_be_drawn(log: str | None, out: str, message: str, tmp_path: Path) -> None:
    if log is not None:
        (tmp_path / "metrics.jsonl").write_text(log)
    with pytest.raises(BoxwrightError, match=message):
        get_command(app)(["history", str(tmp_path), "--out", str(tmp_path / out)], standalone_mode=False)
    assert not (tmp_path / out).exists()
