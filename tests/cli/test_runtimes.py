"""What detects: PyTorch for a run or checkpoint, and the runtime of its format for an exported file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import boxwright as bw
from boxwright.api import export as export_module
from boxwright.base.errors import DataError, ExportError
from boxwright.cli import predict
from boxwright.cli.main import app
from boxwright.cli.serving import exported_for_serving
from boxwright.inference.detect_functions import ModelSource
from boxwright.inference.serving.settings import ServerSettings
from boxwright.inference.settings import PredictionSettings
from boxwright.weights import export_weights as weights_digest
from boxwright.weights.open_model import open_model
from tests.api.models import DATA, small_run
from tests.cli.test_commands import RUNNER, run

NEEDS_EXPORT = "runs in PyTorch; run `boxwright export {} --format {}`, and name the file that it writes"


def refusal(*arguments: object) -> str:
    """Return the error of a command."""
    result = RUNNER.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 1
    return str(result.exception)


@pytest.mark.parametrize(("runtime", "format"), [("onnxruntime", "onnx"), ("openvino", "openvino")])
def test_a_run_is_exported_before_another_runtime_detects(runtime: str, format: str, tmp_path: Path) -> None:
    folder, picture = small_run().folder, small_run().picture
    refused = f"runtime {runtime}: {folder} {NEEDS_EXPORT.format(folder, format)}"
    for command in (("predict", picture), ("evaluate",)):
        out = tmp_path / "out"
        assert refused in refusal(*command, "--model_dir", folder, "--out", out, "--runtime", runtime)
        assert not out.exists()
    many = ("predict", picture, "--model_dir", folder, "--out", tmp_path / "results.parquet")
    assert refused in refusal(*many, "--runtime", runtime)
    for evaluate_or_load in (bw.load, bw.evaluate):
        with pytest.raises(ExportError) as raised:
            evaluate_or_load(folder, runtime=runtime)
        assert str(raised.value) == refused


def test_predict(tmp_path: Path) -> None:
    picture = small_run().picture
    scores = {}
    for model, runtime in (
        (small_run().folder, "auto"),
        (small_run().folder, "torch"),
        (small_run().onnx, "auto"),
        (small_run().onnx, "onnxruntime"),
    ):
        out = tmp_path / f"{runtime} {model.suffix}"
        run("predict", picture, "--model_dir", model, "--out", out, "--runtime", runtime, "--min_score", "0.1")
        rows = json.loads((out / "detections.json").read_text())
        scores[model.suffix, runtime] = [row["score"] for row in rows]
    assert scores["", "auto"] == scores["", "torch"]
    assert scores[".onnx", "auto"] == scores[".onnx", "onnxruntime"]
    assert len(scores["", "torch"]) > 0
    assert scores[".onnx", "auto"] == pytest.approx(scores["", "torch"], abs=1e-3)
    words = ("predict", picture, "--model_dir", small_run().onnx, "--runtime")
    assert "is exported, and runs in onnxruntime" in refusal(*words, "torch")
    assert "expected auto, torch, onnxruntime, openvino" in refusal(*words, "tensorrt")


def test_how_to_detect_faster_is_said_once_after_many_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, picture = small_run().folder, small_run().picture
    words = ("predict", picture, picture, "--model_dir", folder, "--device", "cpu", "--out")
    hint = "a file that detects faster on a CPU"
    assert hint not in run(*words, tmp_path / "few")
    monkeypatch.setattr(predict, "_MANY_IMAGES", 1)
    text = " ".join(run(*words, tmp_path / "many").split())
    assert text.count(hint) == text.count(f"boxwright export {folder}") == 1
    text = " ".join(run(*words, tmp_path / "results.parquet").split())
    assert text.count(hint) == text.count(f"boxwright export {folder}") == 1


def test_weights_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed, digest = [], weights_digest.weights_sha256

    def counted(detector: bw.Detector) -> str:
        hashed.append(detector)
        return digest(detector)

    monkeypatch.setattr(weights_digest, "weights_sha256", counted)
    ModelSource(small_run().folder, PredictionSettings(device="cpu")).open()
    assert len(hashed) == 1


def evaluated(model: Path, out: Path, *more: object) -> tuple[str, dict[str, Any], dict[str, float]]:
    """Return what an evaluation of a model prints, `evaluation.json`, and its metrics."""
    data = ("--pipeline_config_path", small_run().config, "--workers", "0")
    text = run("evaluate", "--model_dir", model, "--out", out, *data, *more)
    about = json.loads((out / "evaluation.json").read_text())
    return text, about, json.loads((out / "metrics.json").read_text())


def test_evaluate(tmp_path: Path) -> None:
    folder, onnx = small_run().folder, small_run().onnx
    _, about, own = evaluated(folder, tmp_path / "torch")
    assert about["runtime"] == "torch"
    text, about, exported = evaluated(onnx, tmp_path / "onnx", "--runtime", "onnxruntime", "--device", "cpu")
    assert "runtime: onnxruntime; exported detectors compute no losses" in text
    assert (about["runtime"], about["device"]) == ("onnxruntime", "cpu")
    assert about["weights_sha256"] == open_model(folder, device="cpu").weights_sha256()
    assert "onnxruntime" in about["versions"]
    name = "DetectionBoxes_Precision/mAP"
    assert own[name] > 0
    assert exported[name] == pytest.approx(own[name], abs=1e-4)
    assert any("Loss" in name for name in own)
    assert not any("Loss" in name for name in exported)


def test_evaluate_by_workers(tmp_path: Path) -> None:
    onnx, some = small_run().onnx, ("--sample_1_of_n_eval_examples", "2")
    whole = evaluated(onnx, tmp_path / "one", *some)[2]
    _, about, shared = evaluated(onnx, tmp_path / "two", *some, "--engine", "local", "--shares", "2")
    assert about["runtime"] == "onnxruntime"
    assert shared == whole
    words = ("evaluate", "--model_dir", onnx, "--runtime", "openvino")
    assert "is exported, and runs in onnxruntime" in refusal(*words)
    watched = (*words, "--watch", "--pipeline_config_path", small_run().config)
    assert "--watch evaluates each checkpoint in PyTorch" in refusal(*watched)


def test_devices(tmp_path: Path) -> None:
    folder, onnx, picture, out = small_run().folder, small_run().onnx, small_run().picture, tmp_path / "out"
    for command in (("predict", picture, "--out", out), ("evaluate", "--out", out)):
        for device, message in (("cuda", "has no CUDAExecutionProvider"), ("gpu", "runs exports on cpu, cuda")):
            assert message in refusal(*command, "--model_dir", onnx, "--device", device)
        for device, format in (("tensorrt", "onnx"), ("npu", "openvino")):
            refused = f"device '{device}': {folder} {NEEDS_EXPORT.format(folder, format)}"
            assert refused in refusal(*command, "--model_dir", folder, "--device", device)
    assert not out.exists()
    assert "has no CUDAExecutionProvider" in refusal("serve", folder, "--device", "cuda")
    assert "OpenVINO finds CPU here" in refusal("serve", folder, "--device", "npu")
    assert "has no CUDAExecutionProvider" in refusal("serve", onnx, "--device", "cuda")


class Exporter:
    """Stands for an export, which takes 10 seconds, by a copy of the run's own exported file."""

    def __init__(self) -> None:
        self.formats: list[str] = []

    def __call__(self, detector: bw.Detector, path: Path, **options: Any) -> None:
        self.formats.append(options["format"])
        path.parent.mkdir(parents=True)
        shutil.copyfile(small_run().onnx, path)


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Exporter:
    exporter = Exporter()
    monkeypatch.setattr(export_module, "export", exporter)
    return exporter


def copied_run(tmp_path: Path) -> Path:
    """Return a copy of the run, without exports."""
    shutil.copytree(small_run().folder, tmp_path / "run", ignore=shutil.ignore_patterns("export", "eval", "train"))
    return tmp_path / "run"


def test_a_served_run_is_exported_to_a_temporary_file(
    exporter: Exporter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, scratch = copied_run(tmp_path), tmp_path / "scratch"
    path = exported_for_serving(folder, ServerSettings(), scratch)
    assert path == scratch / "detector.onnx"
    assert open_model(path).is_exported
    assert f"boxwright export {folder} --format onnx" in " ".join(capsys.readouterr().out.split())
    assert not (folder / "export").exists()
    assert exporter.formats == ["onnx"]
    assert "only an exported file is watched" in refusal("serve", folder, "--watch")


def test_a_run_is_served_by_its_own_export(
    exporter: Exporter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, scratch = copied_run(tmp_path), tmp_path / "scratch"
    kept = folder / "export" / "detector.onnx"
    kept.parent.mkdir()
    shutil.copyfile(small_run().onnx, kept)
    assert exported_for_serving(folder, ServerSettings(), scratch) == kept
    assert f"serving {kept}" in "".join(capsys.readouterr().out.splitlines())
    assert exporter.formats == []


def test_an_export_of_other_weights_is_not_served(
    exporter: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, scratch = copied_run(tmp_path), tmp_path / "scratch"
    kept = folder / "export" / "detector.onnx"
    kept.parent.mkdir()
    shutil.copyfile(small_run().onnx, kept)
    before = kept.read_bytes()
    monkeypatch.setattr(weights_digest, "weights_sha256", lambda detector: "others")
    assert exported_for_serving(folder, ServerSettings(), scratch) == scratch / "detector.onnx"
    assert kept.read_bytes() == before


def test_a_run_without_readable_data_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*arguments: object) -> None:
        raise DataError("no picture can be read")

    monkeypatch.setattr(export_module, "pictures_of_data", unreadable)
    folder = copied_run(tmp_path)
    with pytest.raises(ExportError, match=f"no picture can be read; run `boxwright export {folder} --images FOLDER`"):
        exported_for_serving(folder, ServerSettings(), tmp_path / "scratch")


def test_a_loaded_run_detects_in_pytorch() -> None:
    model = bw.load(small_run().folder, device="cpu", runtime="auto")
    (before,) = model.detect(DATA[0].image)
    next(iter(model.detector.parameters())).data.zero_()
    (after,) = model.detect(DATA[0].image)
    assert len(before) > 0
    assert not np.array_equal(before.scores, after.scores)
