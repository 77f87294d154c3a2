"""Training and evaluating in one call, and what a run says of itself."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import boxwright as bw
from boxwright.api.train import ProgressBar, is_data, is_watched
from boxwright.data.convert import write_yolo
from boxwright.training.log import Evaluated, Scalars, named_listeners
from boxwright.training.settings import RunOptions
from tests.api.models import DATA, STEPS, SmallRun, demo_config

FAST: dict[str, Any] = {"device": "cpu", "workers": 0, "log_every_n": 1}


@pytest.fixture
def config(run: SmallRun, tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.config"
    path.write_text(demo_config(run.config.parent, steps=2))
    return path


def test_training_returns_the_run(config: Path, tmp_path: Path) -> None:
    heard: list[tuple[int, dict[str, float]]] = []
    run = bw.train(
        config,
        tmp_path / "model",
        epochs=1.5,
        overrides=["train_config.batch_size=4"],
        listeners=lambda step, numbers: heard.append((step, dict(numbers))),
        **FAST,
    )
    # 8 images, 4 a step: one and a half times through them are 3 steps.
    assert run.step == 3
    assert run.best == tmp_path / "model" / "best.pt"
    assert "DetectionBoxes_Precision/mAP" in run.metrics
    assert run.metrics == pytest.approx(bw.evaluate(tmp_path / "model", device="cpu"), abs=1e-6)
    assert [step for step, numbers in heard if "learning_rate" in numbers] == [1, 2, 3]
    assert heard[-1][1] == pytest.approx(run.metrics)
    assert "step 3, AP" in repr(run)
    again = bw.train(config, tmp_path / "model", epochs=2, overrides=["train_config.batch_size=4"], **FAST)
    assert again.step == 4


def test_single_settings_are_keywords_with_their_types() -> None:
    options = {name: hint.__forward_arg__ for name, hint in RunOptions.__annotations__.items()}
    # A device may be given as a number or as PyTorch's, too.
    assert options.pop("device") == "AnyDevice"
    assert options == {name: hint for name, hint in bw.RunSettings.__annotations__.items() if name != "device"}


def test_a_run_of_an_earlier_day(run: SmallRun, tmp_path: Path) -> None:
    opened = bw.Run(run.folder)
    assert opened.step == STEPS
    assert isinstance(opened.model(), bw.Model)
    assert opened.model("newest").step == STEPS
    with pytest.raises(bw.TrainingError, match="expected best or newest"):
        opened.model("last")
    with pytest.raises(bw.CheckpointError, match="no run"):
        bw.Run(tmp_path)


def test_the_history_is_drawn(run: SmallRun, tmp_path: Path) -> None:
    opened = bw.Run(run.folder)
    steps = [row["step"] for row in opened.history if "evaluation" not in row]
    assert steps == [1, *range(20, STEPS + 1, 20)]
    picture = opened.plot_history(tmp_path / "history.png")
    assert isinstance(picture, Image.Image)
    with Image.open(tmp_path / "history.png") as written:
        assert np.array_equal(np.asarray(written.convert("RGB")), np.asarray(picture))
    # A line of another color than grey stands in each half.
    pixels = np.asarray(picture).astype(int)
    colored = (pixels.max(2) - pixels.min(2)) > 60
    half = colored.shape[1] // 2
    assert colored[:, :half].sum() > 50
    assert colored[:, half:].sum() > 20
    with pytest.raises(bw.DataError, match=r"ends in \.png or \.jpg"):
        opened.plot_history(tmp_path / "history.pdf")
    with pytest.raises(bw.DataError, match="metrics.jsonl is missing or empty"):
        bw.Run(tmp_path, step=3).plot_history()


def test_every_way_to_evaluate(run: SmallRun) -> None:
    by_folder = bw.evaluate(run.folder, device="cpu")
    ways = {
        "text": bw.evaluate(str(run.folder), device="cpu"),
        "model": bw.load(run.folder).evaluate(),
        "run": bw.Run(run.folder).evaluate(device="cpu"),
        "checkpoint": bw.evaluate(run.folder / f"ckpt-{STEPS}.pt", device="cpu"),
        "configuration first": bw.evaluate(bw.load_config(run.config), run.folder),
        "named": bw.evaluate(run.folder, config=run.config),
        "export": bw.evaluate(run.onnx),
    }
    assert by_folder["DetectionBoxes_Precision/mAP@.50IOU"] > 0.5
    for name, found in ways.items():
        metric = "DetectionBoxes_Precision/mAP"
        assert found[metric] == pytest.approx(by_folder[metric], abs=2e-3), name
    changed = bw.evaluate(run.folder, overrides=["eval_config.metrics_set=pascal_voc_detection_metrics"])
    assert "PascalBoxes_Precision/mAP@0.5IOU" in changed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:masks are dropped")
def test_a_folder_of_annotated_pictures_is_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As for the command: the run's folder is called model, unless it is named."""
    monkeypatch.chdir(tmp_path)
    write_yolo(DATA, Path("my-data/data.yaml"), "train")
    small: dict[str, Any] = {**FAST, "max_seconds": 0.001, "evaluate": False}
    run = bw.train("my-data", epochs=1, **small)
    assert run.folder == Path("model")
    assert (tmp_path / "model" / "pipeline.config").is_file()
    assert bw.train(Path("my-data/data.yaml"), "named", epochs=1, **small).folder == Path("named")


def test_what_is_trained_on_is_data_or_a_configuration(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.yaml").write_text("nc: 1\nnames: [a]\n")
    (tmp_path / "pipeline.yaml").write_text("model:\n  ssd: {}\n")
    (tmp_path / "instances.json").write_text('{"images": [], "annotations": [], "categories": []}')
    (tmp_path / "notes.txt").write_text("hello")
    for name in (tmp_path, "data.yaml", "instances.json", "train.record-00000-of-00002"):
        assert is_data(name), name
    for name in (config, "pipeline.yaml", "preset:d_fine_n_coco", "nothing.config"):
        assert not is_data(name), name
    for name, message in (
        ("notes.txt", "COCO's .json, TFRecords"),
        ("nothing", "and no such file"),
        ("", "no such file"),
    ):
        with pytest.raises(bw.ConfigError, match=f"neither annotated pictures .*{message}"):
            bw.train(name, tmp_path / "m")
    with pytest.raises(bw.ConfigError, match="both name annotated pictures"):
        bw.train(tmp_path, tmp_path / "m", data=tmp_path)


def test_what_is_said_wrong(config: Path, run: SmallRun, tmp_path: Path) -> None:
    for call, message in (
        (lambda: bw.train(config), "name the run's folder"),
        (lambda: bw.train(config, tmp_path / "m", out=tmp_path / "n"), "are aliases"),
        (lambda: bw.train(model_dir=tmp_path / "m"), "not both"),
        (lambda: bw.train(config, tmp_path / "m", data=tmp_path), "not both"),
        (lambda: bw.train(config, tmp_path / "m", ignore_exif=True), "ignore_exif: for data="),
        (lambda: bw.train(config, tmp_path / "m", model="ssd"), "names a preset"),
        (lambda: bw.train(config, tmp_path / "m", epoch=3), "did you mean"),
        (lambda: bw.train(config, tmp_path / "m", epochs=0), "epochs: expected a number above 0"),
        (lambda: bw.train(config, tmp_path / "m", epochs=float("nan")), "epochs: expected a number above 0"),
        (lambda: bw.evaluate(bw.load_config(config)), "the run's folder is missing"),
        (lambda: bw.evaluate(bw.load(run.onnx), run.folder), "remove model_dir"),
        (lambda: bw.evaluate(run.folder, devise="cpu"), "did you mean device"),
        (lambda: bw.evaluate(run.folder, engine="local"), "engine has no effect here"),
        (lambda: bw.load(run.folder).evaluate(device="cpu"), "device has no effect on a Model that is already open"),
        (lambda: bw.evaluate(run.folder, workers="2"), "workers: expected int, found '2'"),
        (lambda: bw.train(config, tmp_path / "m", track="wandb"), "track: expected tuple, found 'wandb'"),
        (lambda: bw.train(config, tmp_path / "m", evaluate=1), "evaluate: expected bool, found 1"),
        (lambda: bw.train(config, tmp_path / "m", epochs="3"), "epochs: expected a number above 0"),
    ):
        with pytest.raises(bw.ConfigError, match=message):
            call()
    with pytest.raises(bw.TrainingError, match=r"expected a function of \(step, numbers\)"):
        bw.train(config, tmp_path / "m", listeners=3, **FAST)  # type: ignore[arg-type]
    assert not (tmp_path / "m" / "ckpt-2.pt").exists()


def test_the_callers_configuration_stays(config: Path, tmp_path: Path) -> None:
    opened = bw.load_config(config)
    before = opened.train_config.num_steps if opened.train_config else None
    bw.train(opened, tmp_path / "m", epochs=0.5, overrides=["train_config.batch_size=4"], evaluate=False, **FAST)
    assert opened.train_config is not None
    assert opened.train_config.num_steps == before
    assert opened.train_config.batch_size == 8


@pytest.mark.slow
def test_print_is_a_listener(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bw.train(config, tmp_path / "m", listeners=print, evaluate=False, **FAST)
    # Commands of other tests may have let the log be printed too.
    lines = [line for line in capsys.readouterr().out.splitlines() if line[:1].isdigit()]
    assert [line.split(" ")[0] for line in lines] == ["1", "2"]
    assert all("Loss/total_loss" in line for line in lines)


def test_a_listener_with_the_former_method_is_told_its_new_name() -> None:
    heard: list[int] = []

    class Listener:
        def hear(self, step: int, event: object) -> None:
            heard.append(step)

        def close(self) -> None:
            heard.append(-1)

    with pytest.warns(DeprecationWarning, match=r"Listener\.hear is deprecated: name the method on_event"):
        named = named_listeners([Listener()])  # type: ignore[list-item]
    named["Listener"].on_event(3, Scalars({}))
    named["Listener"].close()
    assert heard == [3, -1]


@pytest.mark.slow
def test_several_listeners(config: Path, tmp_path: Path) -> None:
    class Hears:
        def __init__(self) -> None:
            self.steps: list[int] = []
            self.closed = False

        def on_event(self, step: int, event: object) -> None:
            self.steps.append(step)

        def close(self) -> None:
            self.closed = True

    hears, steps = Hears(), set[int]()
    bw.train(config, tmp_path / "m", listeners=[hears, lambda step, _: steps.add(step)], evaluate=False, **FAST)
    assert hears.closed
    assert set(hears.steps) == steps == {1, 2}


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
    assert "step 5  AP 0.500" in text


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
    assert shown == ["step 3  AP 0.500"]


def test_nobody_watches_a_file() -> None:
    assert not is_watched(Console(file=io.StringIO()))
    assert is_watched(Console(file=io.StringIO(), force_terminal=True))
