"""The commands as a user runs them: results, and errors of one line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from boxwright.base.errors import BoxwrightError
from boxwright.cli.commands import COMMANDS, load_command
from boxwright.cli.console import console, errors
from boxwright.cli.main import app, main
from tests.conftest import SMALL_MODEL

RUNNER = CliRunner()


def run(*arguments: object, status: int = 0) -> str:
    with console.capture() as captured:
        result = RUNNER.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == status, (result.output, result.exception)
    return captured.get() + result.output


def run_json(*arguments: object) -> str:
    """Return what a command prints to standard output alone."""
    with console.capture():
        result = RUNNER.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def train(config: Path, model_dir: str | Path, steps: int, *more: object) -> str:
    words = ("--config", config, "--model_dir", model_dir, "--num_train_steps", steps, "--workers", 0)
    return run("train", *words, *more)


@pytest.mark.parametrize("format", ["text", "yaml", "json"])
def test_config_show(small_config: Path, tmp_path: Path, format: str) -> None:
    first = run("config", "show", small_config, "--format", format, "--set", "train_config.batch_size=9")
    assert "9" in first
    suffix = {"text": "config"}.get(format, format)
    (tmp_path / f"again.{suffix}").write_text(first)
    assert run("config", "show", tmp_path / f"again.{suffix}", "--format", format) == first


def test_config_check(small_config: Path, tmp_path: Path) -> None:
    assert "0 without effect, 0 refused" in run("config", "check", small_config)
    (tmp_path / "b.config").write_text(
        "train_config {\n sync_replicas: true freeze_variables: 'x' } eval_config { metrics_set: 'coco_panoptic_metrics' }"
    )
    output = run("config", "check", tmp_path / "b.config", status=1)
    assert "b.config:2:2: train_config.sync_replicas: without effect: of TF1's training" in output
    assert "eval_config.metrics_set: refused: 'coco_panoptic_metrics' is for panoptic networks" in output
    assert "5 fields set: 3 honored, 1 without effect, 1 refused" in output


def test_config_fields() -> None:
    output = run("config", "fields", "train_config.batch_size")
    assert "32" in output
    assert "honored" in output
    assert "num_classes" in run("config", "fields", "Ssd")
    assert "train_input_reader" in run("config", "fields")
    with pytest.raises(BoxwrightError, match="did you mean batch_size"):
        RUNNER.invoke(app, ["config", "fields", "train_config.batchsize"], catch_exceptions=False)


def test_config_fields_shows_what_stands_for_an_absent_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "width", 500)
    focal = "classification_loss { weighted_sigmoid_focal { gamma: 2.0 alpha: 0.25 } }"
    assert f"{{ delta: 0.11 }} }} {focal} localization_weight: 9.090909" in run("config", "fields", "AlignDet")
    assert run("config", "fields", "Srn").count(f"{{ weighted_smooth_l1 {{ delta: 1.0 }} }} {focal}") == 2
    assert "max_negatives_per_positive: 3 }" in run("config", "fields", "AnchorRefinement")


def test_train_evaluate_predict(
    small_config: Path, shapes_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir, kept = tmp_path / "model", list[str]()
    for command in ("evaluate", "predict"):
        monkeypatch.setattr(f"boxwright.cli.{command}.prepare_inference", lambda name=command, **_: kept.append(name))
    words = ("--pipeline_config_path", small_config, "--model_dir", model_dir, "--num_train_steps", 2, "--workers", 0)
    output = run("train", *words)
    assert "saved" in output
    assert output.count("evaluation at step 2") == 1
    assert re.search(r"^step 2  AP 0\.\d{3} \(best\)  AP50 0\.\d{3}$", output, re.MULTILINE)
    assert "" not in output.splitlines(), "a bar leaves nothing in a file"
    again = train(small_config, model_dir, 2)
    assert "already trained for 2 of 2 steps" in again
    more = train(small_config, model_dir, 3, "--no-evaluate")
    assert "resuming from" in more
    output = run(
        "evaluate", "--model_dir", model_dir, "--out", tmp_path / "eval", "--set", "eval_config.num_visualizations=3"
    )
    words = output.strip().splitlines()[-2].split()
    assert (words[0], words[2]) == ("AP", "AP50")
    assert output.strip().splitlines()[-1] == f"next: boxwright predict IMAGES --model_dir {model_dir}"
    metrics = json.loads((tmp_path / "eval" / "metrics.json").read_text())
    assert "DetectionBoxes_PerformanceByCategory/mAP/circle" in metrics
    assert len(list((tmp_path / "eval" / "pictures").glob("*.png"))) == 3
    for row in json.loads((tmp_path / "eval" / "detections.json").read_text()):
        assert set(row) == {"image_id", "category_id", "bbox", "score"}
    images = sorted((shapes_data / "voc" / "JPEGImages").glob("*.jpg"))
    words = (images[0], images[0].parent, "--model_dir", model_dir, "--out", tmp_path / "p", "--min_score", 0)
    output = run("predict", *words)
    assert f"in {len(images) + 1} images" in output
    assert len(list((tmp_path / "p").glob("*.jpg"))) == len(images) + 1
    rows = json.loads((tmp_path / "p" / "detections.json").read_text())
    assert {row["category_name"] for row in rows} <= {"circle", "square", "triangle", "star"}
    assert kept == ["evaluate", "predict"]
    words = (images[0], "--model_dir", model_dir, "--out", tmp_path / "q", "--min_score", 0)
    first = [row for row in rows if row["image_id"] == 0]
    assert json.loads(run_json("predict", *words, "--json")) == first
    assert run("predict", *words, "--quiet") == ""
    words = ("--model_dir", model_dir, "--out", tmp_path / "e", "--set", "eval_config.num_visualizations=1")
    printed = json.loads(run_json("evaluate", *words, "--json", "--quiet"))
    assert printed == json.loads((tmp_path / "e" / "metrics.json").read_text())


def test_convert_and_inspect(shapes_data: Path, tmp_path: Path) -> None:
    assert "12 images, 4 classes" in run("convert", shapes_data / "voc", tmp_path / "r" / "a.record", "--num-shards", 3)
    assert len(list((tmp_path / "r").glob("a.record-*-of-00003"))) == 3
    run("convert", f"{tmp_path}/r/a.record@3", tmp_path / "c" / "c.json")
    run("convert", tmp_path / "c" / "c.json", tmp_path / "v")
    output = run("inspect", tmp_path / "v", "--sheet", tmp_path / "sheet.png", "--pictures", 5)
    assert "12 images" in output
    assert "suspicious boxes: " in output
    assert output.splitlines()[-1] == f"next: boxwright train {tmp_path / 'v'}"
    assert (tmp_path / "sheet.png").stat().st_size > 1000
    counts = json.loads(run_json("inspect", tmp_path / "v", "--sheet", tmp_path / "sheet.png", "--json"))
    assert counts["images"] == 12
    assert sum(size["images"] for size in counts["sizes"]) == 12
    assert set(counts["boxes"]) <= {"circle", "square", "triangle", "star"}


@pytest.mark.slow_cases("which1", "which2")
@pytest.mark.parametrize("which", [["--shapes"], ["--keypoints"], ["--masks"]])
def test_demo_data_only(which: list[str], tmp_path: Path) -> None:
    output = run("demo", *which, "--out", tmp_path / "d", "--data-only", "--train-images", 4, "--val-images", 2)
    assert "configuration:" in output
    assert "0 without effect, 0 refused" in run("config", "check", tmp_path / "d" / "pipeline.config")
    assert (tmp_path / "d" / "data" / "contact-sheet.png").is_file()


@pytest.mark.slow_cases("which0", "which2")
@pytest.mark.parametrize("which", [["--shapes"], ["--keypoints"], ["--masks"]])
def test_demo_trains_and_ends_with_the_ap_line(which: list[str], tmp_path: Path) -> None:
    sizes = ("--train-images", 20, "--val-images", 4, "--num_train_steps", 2)
    output = run("demo", *which, "--out", tmp_path / "d", *sizes)
    lines = output.strip().splitlines()
    assert lines[-2].startswith("keypoint AP ") == (which == ["--keypoints"])
    assert lines[-2].startswith("mask AP ") == (which == ["--masks"])
    assert lines[-1].startswith("AP ")
    assert "AP50" in lines[-1]
    assert any(line.startswith("$ boxwright train --pipeline_config_path") for line in lines)
    assert any("pictures, truth beside detections:" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["config", "show", "none.config"], "error: none.config: no such file"),
        (["train", "--config", "bad.config", "--model_dir", "m"], "did you mean num_classes?"),
        (["evaluate", "--model_dir", "nothing"], "error: nothing: no such run, checkpoint or exported file"),
        (["predict", "nothing.jpg", "--model_dir", "m", "--out", "o"], "error: nothing.jpg: no such file"),
        (["convert", "nothing", "x.json"], "error: no file matches 'nothing'"),
        (["inspect", "empty"], "error: empty: no known format"),
        (["train", "--config", "good.config", "--model_dir", "m", "--device", "warp"], "device 'warp' cannot be used"),
        (
            ["inspect", "voc", "--sheet", "no/such/folder/x.png"],
            "error: no/such/folder/x.png: could not be written: No such file",
        ),
    ],
)
def test_errors_are_one_line_and_status_one(
    arguments: list[str],
    wanted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_config: Path,
    shapes_data: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.config").write_text(SMALL_MODEL.replace("num_classes", "numclasses"))
    (tmp_path / "good.config").write_text(small_config.read_text())
    (tmp_path / "voc").symlink_to(shapes_data / "voc")
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("sys.argv", ["boxwright", *arguments])
    with errors.capture() as captured, pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    output = captured.get().strip()
    assert wanted in output
    assert "Traceback" not in output
    assert len(output.splitlines()) == 1


def test_weights_go_to_tensorflow_and_come_back(mobilenet_config: Path, shapes_data: Path, tmp_path: Path) -> None:
    """A run, converted, stands for itself: configuration and classes lie beside the checkpoint."""
    train(mobilenet_config, tmp_path / "m", 2, "--no-evaluate")
    out = tmp_path / "out"
    assert "at step 2" in run("export", tmp_path / "m", out / "ckpt-2")
    assert {path.name for path in out.iterdir()} >= {"ckpt-2.index", "checkpoint", "pipeline.config", "label_map.pbtxt"}
    ours = run("evaluate", "--model_dir", tmp_path / "m", "--out", tmp_path / "e1", "--workers", "0")
    theirs = run("evaluate", "--checkpoint", out / "ckpt-2", "--out", tmp_path / "e2", "--workers", "0")
    assert ours.splitlines()[-2] == theirs.splitlines()[-2]
    assert ours.splitlines()[-2].startswith("AP ")
    assert (tmp_path / "e1" / "detections.json").read_text() == (tmp_path / "e2" / "detections.json").read_text()
    images = shapes_data / "voc" / "JPEGImages"
    run("predict", images, "--checkpoint", out, "--out", tmp_path / "p", "--min_score", "0")
    assert len(list((tmp_path / "p").glob("*"))) > 6
    run("export", out / "ckpt-2", tmp_path / "w.safetensors")
    assert (tmp_path / "w.safetensors").stat().st_size > 10000
    for arguments, wanted in (
        ((tmp_path / "m", out), "is a folder; name a file in it"),
        ((out / "ckpt-9", tmp_path / "ckpt-3"), "no such folder or checkpoint; there is ckpt-2"),
    ):
        with pytest.raises(BoxwrightError, match=wanted):
            RUNNER.invoke(app, ["export", *map(str, arguments)], catch_exceptions=False)


def test_records_beside_checkpoints_are_records(shapes_data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    shutil.copytree(shapes_data, folder)
    (folder / "ckpt-1.index").write_bytes(b"whatever")
    run("convert", folder / "train.record@2", tmp_path / "o.json", "--label-map", folder / "label_map.pbtxt")
    assert (tmp_path / "o.json").is_file()


def test_a_checkpoint_alone_is_evaluated_by_what_it_carries(small_config: Path, tmp_path: Path) -> None:
    train(small_config, tmp_path / "m", 1, "--no-evaluate")
    alone = tmp_path / "solo" / "deep"
    alone.mkdir(parents=True)
    shutil.copy(tmp_path / "m" / "ckpt-1.pt", alone / "x.pt")
    (tmp_path / "solo" / "pipeline.config").write_text("model { }")
    assert "AP " in run("evaluate", "--checkpoint", alone / "x.pt", "--set", "eval_config.num_visualizations=1")


def _options() -> list[tuple[str, Any]]:
    """List every option of every command, with the command's name."""
    import typer.main

    commands: list[tuple[str, Any]] = [("boxwright", typer.main.get_command(app))]
    commands += [(f"boxwright {verb}", load_command(verb)) for verb in COMMANDS]
    config = load_command("config")
    commands += [(f"boxwright config {verb}", command) for verb, command in config.commands.items()]
    return [(name, one) for name, command in commands for one in command.params if one.param_type_name == "option"]


def test_options_are_spelled_one_way_and_explained() -> None:
    """Underscores, as in TensorFlow's scripts."""
    options = _options()
    assert len(options) >= 70
    for command, option in options:
        for flag in (*option.opts, *option.secondary_opts):
            # The options that install a shell's completion have the names that all programs of Typer's give them.
            assert "-" not in flag.lstrip("-") or flag.endswith("-completion"), f"{command} {flag}"
        if option.name != "help":
            assert option.help, f"{command} {option.name}"


def test_every_option_takes_hyphens_too() -> None:
    import typer.main

    group: Any = typer.main.get_command(app)
    top = group.make_context("boxwright", ["train"], resilient_parsing=True)
    checked = 0
    for verb in ("train", "evaluate", "predict", "convert", "export", "inspect", "demo"):
        command = load_command(verb)
        for option in (p for p in command.params if p.param_type_name == "option" and "_" in p.opts[0]):
            words = [option.opts[0].replace("_", "-"), *([] if option.is_flag else ["1"])]
            context = command.make_context(verb, words, parent=top, resilient_parsing=True)
            assert str(context.params[option.name]) in ("1", "1.0", "True", "['1']"), words
            checked += 1
    assert checked >= 35


def test_options_of_training_are_the_settings() -> None:
    """Name, default and help are declared once, in the settings."""
    import dataclasses

    from boxwright.training.settings import RunSettings

    options = {option.name: option for command, option in _options() if command == "boxwright train"}
    shown = [spec for spec in dataclasses.fields(RunSettings) if "help" in spec.metadata]
    assert len(shown) == 30
    for spec in shown:
        option = options[spec.name]
        assert option.help == spec.metadata["help"]
        assert option.default == (None if spec.default == () else spec.default)


def test_the_device_defaults_to_an_accelerator() -> None:
    defaults = {command: option.default for command, option in _options() if option.name == "device"}
    assert {name.split()[-1]: value for name, value in defaults.items()} == dict.fromkeys(
        ("init", "train", "evaluate", "predict", "benchmark", "doctor"), "auto"
    ) | {"serve": "cpu", "ui": "cpu"}
