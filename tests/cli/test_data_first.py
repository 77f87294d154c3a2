"""The commands that begin with a folder of pictures: init, doctor, train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from boxwright.base.errors import BoxwrightError, ConfigError, OutputError
from boxwright.cli.main import app
from tests.cli.test_commands import run_json
from tests.training.autoconfig.datasets import coco, roboflow_coco, roboflow_yolo, tfrecords, voc

RUNNER = CliRunner()


def run(*words: object, code: int = 0) -> str:
    result = RUNNER.invoke(app, list(map(str, words)), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_init_says_what_it_chose_and_what_is_next(tmp_path: Path) -> None:
    data, out = roboflow_yolo(tmp_path / "export"), tmp_path / "pipeline.config"
    output = run("init", data, "--out", out, "--no_steps")
    first = [line.split()[0] for line in output.splitlines() if line.strip() and not line.startswith(" ")]
    assert first == [
        "data", "account", "held", "split", "classes", "model", "input", "augmentation", "anchors", "batch", "length", "written:", "next:",
    ]  # fmt: skip
    assert output.splitlines()[-1] == f"next: boxwright train --config {out} --model_dir model"
    assert run("config", "check", out)
    with pytest.raises(OutputError, match="--force replaces it"):
        run("init", data, "--out", out, "--no_steps", "--imgsz", "64")
    run("init", data, "--out", out, "--no_steps", "--imgsz", "64", "--force")


@pytest.mark.slow
def test_train_takes_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = roboflow_yolo(tmp_path / "export")
    monkeypatch.chdir(tmp_path)
    words = ["train", data, "--epochs", "0.4", "--batch", "4", "--workers", "0", "--device", "cpu", "--imgsz", "64"]
    output = run(*words)
    assert "step 2/2" in output
    assert (tmp_path / "model" / "ckpt-2.pt").is_file()
    again = run(*words[:3], "0.6", *words[4:])
    assert "resuming from model/ckpt-2.pt" in again
    assert (tmp_path / "model" / "ckpt-3.pt").is_file()


def test_train_says_what_is_missing(tmp_path: Path, small_config: Path) -> None:
    for words, message in (
        ((), "expected a configuration, --pipeline_config_path, or a folder"),
        ((tmp_path, "--config", small_config), "not both"),
        (("--config", small_config), "name the run's folder with --model_dir"),
        (("--config", small_config, "--model", "m"), "names a preset for a folder of images"),
        (("--config", small_config, "--model_dir", "m", "--batch", "x"), "expected a number of images, or auto"),
    ):
        with pytest.raises(ConfigError, match=message):
            run("train", *words)
    with pytest.raises(BoxwrightError, match="no file matches"):
        run("train", tmp_path / "nowhere")


def test_doctor_takes_data(tmp_path: Path) -> None:
    data = roboflow_yolo(tmp_path / "export")
    output = run("doctor", data)
    assert "YOLO, 20 images to train and 6 to evaluate" in output
    assert output.splitlines()[-1] == f"next: boxwright train {data}"
    rows = json.loads(run_json("doctor", data / "data.yaml", "--json"))
    assert {row["check"] for row in rows} >= {"data", "readable", "boxes", "duplicates", "leak", "class_balance"}
    unsplit = json.loads(run_json("doctor", voc(tmp_path / "voc"), "--json"))
    assert "split" in {row["check"] for row in unsplit}


def test_doctor_fixes_data_of_a_folder_and_of_a_configuration(tmp_path: Path, small_config: Path) -> None:
    data = voc(tmp_path / "voc")
    output = run("doctor", data, "--fix", tmp_path / "mended")
    assert output.splitlines()[-1] == f"next: boxwright train {tmp_path / 'mended'}"
    assert (tmp_path / "mended" / "train" / "_annotations.coco.json").is_file()
    run("doctor", small_config, "--no_steps", "--fix", tmp_path / "of-config")
    assert (tmp_path / "of-config" / "valid" / "_annotations.coco.json").is_file()


@pytest.mark.slow
def test_a_batch_that_fits_is_tried(tmp_path: Path, small_config: Path) -> None:
    output = run(
        "train", "--config", small_config, "--model_dir", tmp_path / "m", "--batch", "auto", "--num_train_steps", 1,
        "--workers", 0, "--device", "cpu", "--no_evaluate",
    )  # fmt: skip
    assert "a batch of 64 fits in the CPU's memory" in output


@pytest.mark.slow
def test_inspect_takes_what_init_takes(tmp_path: Path) -> None:
    for make, images in ((roboflow_coco, 20), (coco, 20), (tfrecords, 20), (roboflow_yolo, 20), (voc, 20)):
        data = make(tmp_path / make.__name__)
        output = run("inspect", data, "--sheet", tmp_path / "sheet.png")
        assert f"{images} images" in output, make.__name__


def test_doctor_and_json(tmp_path: Path) -> None:
    """What `--fix` says goes to standard error, beside which the JSON stays whole."""
    data = voc(tmp_path / "voc")
    result = RUNNER.invoke(app, ["doctor", str(data), "--json", "--fix", str(tmp_path / "fixed")])
    assert json.loads(result.stdout)
    assert "fixed data" in result.stderr
    with pytest.raises(OutputError, match="written to a new folder"):
        run("doctor", data, "--fix", tmp_path / "fixed")
    with pytest.raises(ConfigError, match="need a configuration, not data"):
        run("doctor", data, "--set", "train_config.batch_size=2")
