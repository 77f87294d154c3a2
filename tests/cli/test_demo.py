"""`boxwright demo`, on few of its pictures."""

from __future__ import annotations

import json
import re
import shutil
import webbrowser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from boxwright.base.errors import ConfigError
from boxwright.cli.main import app
from boxwright.data import sample_data
from boxwright.data.image_io import read_image
from tests.cli.test_commands import run

_TEST, _TRAINING = 4, 8


def _copy_part(split: str, count: int, target: Path) -> None:
    """Copy the first pictures of a list, and their labels."""
    content = json.loads((sample_data.BLOOD_CELLS / f"{split}.json").read_text())
    content["images"] = content["images"][:count]
    kept = {image["id"] for image in content["images"]}
    content["annotations"] = [row for row in content["annotations"] if row["image_id"] in kept]
    (target / split).mkdir(parents=True)
    for image in content["images"]:
        shutil.copy(sample_data.BLOOD_CELLS / split / image["file_name"], target / split)
    (target / f"{split}.json").write_text(json.dumps(content))


@pytest.fixture
def few_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory; the package has four test pictures and eight training pictures."""
    few = tmp_path / "few"
    _copy_part("test", _TEST, few)
    _copy_part("train", _TRAINING, few)
    shutil.copy(sample_data.BLOOD_CELLS / "LICENSE", few)
    monkeypatch.setattr(sample_data, "BLOOD_CELLS", few)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_it_detects_draws_and_reports(few_pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_page(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", open_page)
    lines = run("demo").strip().splitlines()
    assert lines[-1] == "next: open demo/report/index.html"
    assert lines[-2] == "to train such a detector: boxwright demo --train"
    assert any(re.match(r"AP 0\.\d+ AP50 0\.\d+ on 4 pictures that training did not use", line) for line in lines)
    assert not opened
    sheet = read_image(few_pictures / "demo" / "detections.jpg")
    # Two rows of three cells of 560 pixels.
    assert sheet.shape[1] > 3 * 560
    assert 2 * 420 < sheet.shape[0] < 2 * 560
    # Boxes and captions make the first cell, 560×420 below its title, differ from the picture in a small part.
    picture = Image.open(few_pictures / "demo" / "blood_cells" / "test" / "BloodImage_00007.jpg").resize((560, 420))
    cell = sheet[28 : 28 + 420, 6 : 6 + 560].astype(int)
    assert 0.02 < (np.abs(cell - np.asarray(picture)).max(-1) > 60).mean() < 0.2
    rows = json.loads((few_pictures / "demo" / "eval" / "detections.json").read_text())
    assert len({row["image_id"] for row in rows}) == _TEST
    assert json.loads((few_pictures / "demo" / "eval" / "evaluation.json").read_text())["model"] == "demo"
    assert "<title>demo – Boxwright</title>" in (few_pictures / "demo" / "report" / "index.html").read_text()
    assert (few_pictures / "demo" / "blood_cells" / "LICENSE").is_file()

    # Again over what is there, elsewhere told, and with a browser.
    lines = run("demo", "--out", "demo", "--open").strip().splitlines()
    assert lines[-1] == "next: open demo/report/index.html"
    assert opened == [(few_pictures / "demo" / "report" / "index.html").as_uri()]


def test_white_cells_are_where_the_annotations_have_them(few_pictures: Path) -> None:
    """One WBC in each of the first four pictures, as BCCD's annotations have it."""
    run("demo", "--out", "d")
    rows = json.loads((few_pictures / "d" / "eval" / "detections.json").read_text())
    white = [row for row in rows if row["category_id"] == 3 and row["score"] > 0.5]
    truth = json.loads((sample_data.BLOOD_CELLS / "test.json").read_text())
    for image in truth["images"]:
        wanted = [r["bbox"] for r in truth["annotations"] if r["image_id"] == image["id"] and r["category_id"] == 3]
        detected = [row["bbox"] for row in white if row["image_id"] == image["id"]]
        assert len(detected) == len(wanted)
        np.testing.assert_allclose(sorted(detected), sorted(wanted), atol=25)


@pytest.mark.slow
def test_a_training_from_scratch_goes_all_the_way(few_pictures: Path) -> None:
    # Without a capture around it, which would forget what was printed before --quiet.
    result = CliRunner().invoke(app, ["demo", "--train", "--minutes", "0.01"])
    assert result.exit_code == 0, result.output
    output = result.output
    lines = output.strip().splitlines()
    commands = [line.split()[2] for line in lines if line.startswith("$ boxwright ")]
    assert commands == ["train", "evaluate", "export", "compare"]
    # Behind it PyTorch may log the export to standard error, which the output has, too.
    pages = [line for line in lines if line.startswith("next: open ")]
    assert pages[-1] == "next: open demo/report-0.01-minutes/index.html"
    assert output.count("\nAP of small objects ") == 1  # the table of metrics
    assert any(line.startswith("after 0.01 minutes of training from scratch: AP 0.") for line in lines)
    model = few_pictures / "demo" / "model-0.01-minutes"
    assert (model / "ckpt-50.pt").is_file()  # the fewest steps that are trained in any time
    assert (model / "export" / "detector.onnx").is_file()
    assert (few_pictures / "demo" / "comparison-0.01-minutes" / "index.html").is_file()
    # Once more: the run is complete, and is evaluated again.
    again = CliRunner().invoke(app, ["demo", "--train", "--minutes", "0.01"])
    assert again.exit_code == 0, again.output
    assert "already trained for 50 of 50 steps" in again.output
    assert "next: open demo/report-0.01-minutes/index.html" in again.output


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--minutes", 3], "--minutes is the length of a training on blood cells: add --train"),
        (["--train", "--minutes", 0], "--minutes 0: expected a finite number above 0"),
        (["--train", "--minutes", "inf"], "--minutes inf: expected a finite number above 0"),
        (["--train", "--shapes"], "--train and --shapes: each is a demo of its own; choose one"),
        (["--shapes", "--keypoints"], "--shapes and --keypoints: each is a demo of its own"),
        (["--masks", "--shapes"], "--shapes and --masks: each is a demo of its own"),
        (["--data_only"], "are for generated images: add --shapes, --masks or --keypoints"),
        (["--train", "--num_train_steps", 3], "are for generated images: add --shapes, --masks or --keypoints"),
        (["--shapes", "--open"], "--open: the demo of generated images writes no report"),
    ],
)
def test_options_that_do_not_go_together(words: list[object], wanted: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=wanted):
        refused("demo", "--out", tmp_path / "d", *words)
    assert not (tmp_path / "d").exists()


def refused(*words: object) -> None:
    error = CliRunner().invoke(app, [str(word) for word in words]).exception
    if error is not None:
        raise error


def test_a_browser_that_does_not_start_is_said(few_pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    lines = run("demo", "--out", "d", "--open").strip().splitlines()
    assert lines[-3:] == [
        "to train such a detector: boxwright demo --train --out d",
        "no browser could be started here",
        "next: open d/report/index.html",
    ]
