"""Detectors run in the runtime that is asked for, by an export that is made once and kept."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import boxwright as bw
from boxwright.base.errors import ConfigError, DataError, ExportError, OutputError
from boxwright.cli.main import app
from boxwright.cli.serving import exported_for_serving
from boxwright.exporters import cache
from boxwright.exporters import export as export_module
from boxwright.exporters.parity import Report, Stage
from boxwright.exporters.runtime_choice import Pictures, RuntimeRequest, choose_export, saves_time
from boxwright.inference.finders import ModelSource
from boxwright.inference.settings import PredictionSettings
from boxwright.inference.shards import PLAN
from boxwright.runtime.exported import ExportedDetector
from boxwright.runtime.formats import EXPORTED_FOR
from boxwright.weights import weights_digest
from boxwright.weights.exports import open_export
from boxwright.weights.open_model import OpenModel, open_model
from tests.api.models import DATA, small_run
from tests.cli.test_commands import RUNNER, run

PICTURES = [DATA[number].image for number in range(4)]


def sample() -> tuple[Sequence[NDArray[np.uint8]], str]:
    return PICTURES, "shapes"


def unread() -> tuple[Sequence[NDArray[np.uint8]], str]:
    raise AssertionError("no picture is needed")


class Exporter:
    """Stands for an export, which takes 10 seconds, by a copy of the run's own exported file.

    Attributes:
        ratio: Its time divided by PyTorch's.
    """

    def __init__(self) -> None:
        self.made, self.error, self.ratio = 0, "", 0.5

    def __call__(
        self, model: OpenModel, runtime: str, path: Path, pictures: Sequence[NDArray[np.uint8]], source: str
    ) -> None:
        self.made += 1
        assert runtime == "onnxruntime"
        assert len(pictures) > 0
        if self.error:
            raise ExportError(self.error)
        shutil.copyfile(small_run().onnx, path)

    def measured_ratio(self, model: OpenModel, export: ExportedDetector, picture: NDArray[np.uint8]) -> float:
        """Return the ratio, after a detection with the export."""
        export.detect([picture])
        return self.ratio


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Exporter:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    exporter = Exporter()
    monkeypatch.setattr(cache, "_export", exporter)
    monkeypatch.setattr(cache, "_measured_ratio", exporter.measured_ratio)
    return exporter


def opened() -> OpenModel:
    return open_model(small_run().folder, device="cpu")


def refusal(*arguments: object) -> str:
    """Return the error of a command."""
    result = RUNNER.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 1
    return str(result.exception)


@pytest.mark.slow
def test_an_export_is_made_once(exporter: Exporter) -> None:
    assert cache.find_export(opened(), "onnxruntime") is None
    first = cache.make_export(opened(), "onnxruntime", sample)
    again = cache.make_export(opened(), "onnxruntime", unread)
    found = cache.find_export(opened(), "onnxruntime")
    assert found is not None
    assert first.path == again.path == found.path
    assert exporter.made == 1
    for one, other in zip(found.detector.detect(PICTURES), opened().finder()(PICTURES), strict=True):
        assert len(one.scores) > 0
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)


@pytest.mark.slow
def test_other_weights_and_configurations_have_other_exports(exporter: Exporter) -> None:
    path = cache.make_export(opened(), "onnxruntime", sample).path
    model = opened()
    with_other_weights = opened()
    next(iter(with_other_weights.detector.parameters())).data[0] += 1e-3
    changed = bw.load_config(small_run().config, ["model.ssd.post_processing.score_converter=SIGMOID"])
    changed.model.ssd.post_processing.batch_non_max_suppression.iou_threshold = 0.123  # type: ignore[union-attr]
    for other in (with_other_weights, replace(model, own_config=changed)):
        assert cache.find_export(other, "onnxruntime") is None
    assert cache.find_export(model, "openvino") is None
    assert path.is_file()


def test_a_damaged_export_is_made_again(exporter: Exporter, caplog: pytest.LogCaptureFixture) -> None:
    path = cache.make_export(opened(), "onnxruntime", sample).path
    path.write_bytes(path.read_bytes()[:-100])
    with caplog.at_level(logging.WARNING, "boxwright"):
        found = choose_export(opened(), RuntimeRequest("onnxruntime"), Pictures(sample))
    assert found is not None
    assert found.detector.detect(PICTURES[:1])
    assert "it is not used" in caplog.text
    assert exporter.made == 2


def test_what_cannot_be_exported_is_remembered(exporter: Exporter, caplog: pytest.LogCaptureFixture) -> None:
    exporter.error = "differs from the detector"
    for _ in range(2):
        with pytest.raises(ExportError, match="differs from the detector"):
            choose_export(opened(), RuntimeRequest("onnxruntime"), Pictures(sample))
    with caplog.at_level(logging.WARNING, "boxwright"):
        assert choose_export(opened(), RuntimeRequest("auto"), Pictures(sample)) is None
    assert "detecting with PyTorch, as there is no export: differs from the detector" in caplog.text
    assert exporter.made == 1


def test_two_at_once_make_one(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    started, may_end = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> None:
        started.set()
        assert may_end.wait(60)
        exporter(*arguments)

    monkeypatch.setattr(cache, "_export", slow)
    paths: list[Path] = []

    def make() -> None:
        paths.append(cache.make_export(opened(), "onnxruntime", sample).path)

    threads = [threading.Thread(target=make) for _ in range(2)]
    threads[0].start()
    assert started.wait(60)
    threads[1].start()
    may_end.set()
    for thread in threads:
        thread.join(60)
    assert len(paths) == 2
    assert exporter.made == 1


def test_the_cache_is_bounded(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOST_EXPORTS", 2)
    paths = []
    for number in range(3):
        model = opened()
        next(iter(model.detector.parameters())).data[0] += number
        paths.append(cache.make_export(model, "onnxruntime", sample).path)
    assert [path.is_file() for path in paths] == [False, True, True]


def test_refused(exporter: Exporter) -> None:
    with pytest.raises(ConfigError, match="runtime tensorrt: expected auto, torch, onnxruntime, openvino"):
        choose_export(opened(), RuntimeRequest("tensorrt"))
    with pytest.raises(ExportError, match="runtime openvino: --compile needs PyTorch"):
        choose_export(opened(), RuntimeRequest("openvino", unsupported="--compile needs PyTorch"))
    with pytest.raises(ExportError, match="no pictures to compare an export on"):
        choose_export(opened(), RuntimeRequest("onnxruntime"))
    file = open_model(small_run().onnx)
    for runtime in ("openvino", "torch"):
        with pytest.raises(ExportError, match=rf"runtime {runtime}: .* is exported, and runs in onnxruntime"):
            choose_export(file, RuntimeRequest(runtime))
    assert choose_export(file, RuntimeRequest("onnxruntime")) is None
    assert choose_export(file, RuntimeRequest("auto")) is None
    assert choose_export(opened(), RuntimeRequest("torch"), Pictures(unread)) is None
    assert exporter.made == 0


def test_few_pictures_are_not_worth_an_export(exporter: Exporter) -> None:
    assert choose_export(opened(), RuntimeRequest("auto"), Pictures(unread, 80)) is None
    assert choose_export(opened(), RuntimeRequest("auto")) is None
    assert choose_export(opened(), RuntimeRequest("auto"), Pictures(sample)) is not None
    # 0.3 s each: of 200 the export saves 30 s, and takes 15 s and 40 detections of 0.3 s.
    assert saves_time(0.3, 200)
    assert not saves_time(0.3, 179)
    assert not saves_time(10.0, 80)


def test_an_export_that_is_slower_is_left_to_who_names_it(
    exporter: Exporter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter.ratio = 1.2
    with caplog.at_level(logging.INFO, "boxwright"):
        assert choose_export(opened(), RuntimeRequest("auto"), Pictures(sample)) is None
    assert "detecting with PyTorch, as onnxruntime took 1.20 times as long" in caplog.text
    with monkeypatch.context() as patched:  # it is known before the file is opened
        patched.setattr(cache, "open_export", None)
        assert choose_export(opened(), RuntimeRequest("auto"), Pictures(unread)) is None
    named = choose_export(opened(), RuntimeRequest("onnxruntime"))
    assert named is not None
    assert exporter.made == 1
    speed = named.path.with_name("speed.json")
    assert cache.time_ratio(opened(), "onnxruntime") == 1.2
    for text in ("", "{}", '{"onnxruntime": "fast"}'):
        speed.write_text(text)
        assert choose_export(opened(), RuntimeRequest("auto")) is not None


def test_a_loaded_run_detects_with_its_export(exporter: Exporter) -> None:
    folder = small_run().folder
    assert bw.load(folder)._export is None
    model = bw.load(folder, runtime="onnxruntime", device="cpu")
    assert exporter.made == 1
    assert model._export is not None
    assert bw.load(folder, device="cpu")._export is not None
    assert bw.load(folder, runtime="torch", device="cpu")._export is None
    (exported,) = model.detect(PICTURES[:1])
    assert not model.is_exported
    # A detector that was handed out may be changed: from then on it detects itself.
    next(iter(model.detector.parameters())).data.zero_()
    (own,) = model.detect(PICTURES[:1])
    assert model._export is None
    assert len(exported) > 0
    assert not np.array_equal(exported.scores, own.scores)


def test_predict(exporter: Exporter, tmp_path: Path) -> None:
    folder, picture = small_run().folder, small_run().picture
    found = {}
    for runtime in ("torch", "onnxruntime"):
        out = tmp_path / runtime
        text = run("predict", picture, "--model_dir", folder, "--out", out, "--runtime", runtime, "--min_score", "0.1")
        assert ("runtime: onnxruntime" in text) == (runtime == "onnxruntime")
        found[runtime] = json.loads((out / "detections.json").read_text())
    assert exporter.made == 1
    scores = [[row["score"] for row in rows] for rows in found.values()]
    assert len(scores[0]) > 0
    assert scores[1] == pytest.approx(scores[0], abs=1e-3)
    words = ("predict", picture, "--model_dir", folder, "--runtime", "onnxruntime", "--compile")
    assert "runtime onnxruntime: --compile needs PyTorch" in refusal(*words)


def test_a_job_is_resumed_in_its_runtime(exporter: Exporter, tmp_path: Path) -> None:
    folder, picture, out = small_run().folder, small_run().picture, tmp_path / "results.parquet"
    words = ("predict", picture, "--model_dir", folder, "--out", out)
    run(*words, "--runtime", "onnxruntime")
    assert json.loads((out / PLAN).read_text())["weights"].endswith(" onnx float32")
    (part,) = out.glob("part-*")
    part.unlink()
    (done,) = out.glob("_done-*")
    done.unlink()
    run(*words)
    assert [one.name for one in out.glob("part-*")] == [part.name]
    assert "other weights" in refusal(*words, "--runtime", "torch")


def test_a_run_is_served_by_its_export(exporter: Exporter, tmp_path: Path) -> None:
    path = exported_for_serving(small_run().folder, "cpu")
    assert path.name == "detector.onnx"
    assert open_model(path).is_exported
    assert "only an exported file is watched" in refusal("serve", small_run().folder, "--watch")


def test_unreadable_pictures_leave_it_to_pytorch(exporter: Exporter) -> None:
    def unreadable() -> tuple[Sequence[NDArray[np.uint8]], str]:
        raise DataError("no picture can be read")

    assert choose_export(opened(), RuntimeRequest("auto"), Pictures(unreadable)) is None
    with pytest.raises(DataError, match="no picture can be read"):
        choose_export(opened(), RuntimeRequest("onnxruntime"), Pictures(unreadable))


def test_what_is_killed_or_refused_leaves_little(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cache.make_export(opened(), "onnxruntime", sample).path
    path.unlink()
    (path.parent / ".detector.onnx.x1").mkdir()  # where a killed process was writing
    cache.make_export(opened(), "onnxruntime", sample)
    assert {one.name for one in path.parent.iterdir()} == {path.name, "speed.json"}
    monkeypatch.setattr(cache, "_MOST_EXPORTS", 2)
    exporter.error = "differs from the detector"
    for number in range(1, 4):
        model = opened()
        next(iter(model.detector.parameters())).data[0] += number
        with pytest.raises(ExportError, match="differs"):
            cache.make_export(model, "onnxruntime", sample)
    root = path.parent.parent
    assert len([one for one in root.iterdir() if one.is_dir()]) == 2
    assert {one.suffix for one in root.iterdir() if one.is_file()} == {".lock"}


def test_a_cache_that_cannot_be_written(exporter: Exporter, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert choose_export(opened(), RuntimeRequest("auto"), Pictures(sample)) is None
    assert "detecting with PyTorch, as there is no export" in caplog.text
    with pytest.raises(OutputError, match="cannot be created"):
        choose_export(opened(), RuntimeRequest("onnxruntime"), Pictures(sample))


def test_exports_that_another_process_removes(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(path: Path) -> None:
        shutil.rmtree(path)
        raise FileNotFoundError(path)

    kept = cache.make_export(opened(), "onnxruntime", sample).path
    with monkeypatch.context() as patched:
        patched.setattr(cache.os, "utime", gone)
        assert cache.find_export(opened(), "onnxruntime") is not None
    assert not kept.is_file()
    assert cache._bytes_in(kept.parent) == 0
    assert cache.find_export(opened(), "onnxruntime") is None


def test_weights_are_hashed_once(exporter: Exporter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hashed, digest = [], weights_digest.weights_sha256

    def counted(detector: bw.Detector) -> str:
        hashed.append(detector)
        return digest(detector)

    monkeypatch.setattr(weights_digest, "weights_sha256", counted)
    for runtime in ("torch", "onnxruntime", "auto"):
        hashed.clear()
        settings = PredictionSettings(runtime=runtime, device="cpu")
        ModelSource(small_run().folder, settings).open(pictures=Pictures(sample))
        assert len(hashed) == 1


def test_pytorch_needs_no_exporter() -> None:
    script = """
import sys
from boxwright.exporters.runtime_choice import choose_export
print([name for name in ("boxwright.exporters.export", "torch", "onnx", "openvino") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def evaluated(out: Path, *more: object) -> tuple[str, dict[str, Any], dict[str, float]]:
    """Return what an evaluation of the run prints, `evaluation.json`, and its metrics."""
    text = run("evaluate", "--model_dir", small_run().folder, "--out", out, "--workers", "0", *more)
    about = json.loads((out / "evaluation.json").read_text())
    return text, about, json.loads((out / "metrics.json").read_text())


def test_evaluate(exporter: Exporter, tmp_path: Path) -> None:
    _, about, own = evaluated(tmp_path / "torch")
    assert about["runtime"] == "torch"
    assert exporter.made == 0
    text, about, exported = evaluated(tmp_path / "onnx", "--runtime", "onnxruntime", "--device", "cpu")
    assert "runtime: onnxruntime" in text
    assert (about["runtime"], about["device"]) == ("onnxruntime", "cpu")
    assert about["weights_sha256"] == opened().weights_sha256()
    assert "onnxruntime" in about["versions"]
    name = "DetectionBoxes_Precision/mAP"
    assert own[name] > 0
    assert exported[name] == pytest.approx(own[name], abs=1e-4)
    assert any("Loss" in name for name in own)
    assert not any("Loss" in name for name in exported)
    # The same export as that of predict: the configuration of an evaluation does not change the detector.
    assert exporter.made == 1
    assert cache.find_export(opened(), "onnxruntime") is not None
    # Of so few images PyTorch has detected before an export is made.
    shutil.rmtree(tmp_path / "cache")
    assert evaluated(tmp_path / "auto", "--runtime", "auto")[1]["runtime"] == "torch"


def test_evaluate_by_workers(exporter: Exporter, tmp_path: Path) -> None:
    words = ("--runtime", "onnxruntime", "--sample_1_of_n_eval_examples", "2")
    one = evaluated(tmp_path / "one", *words)[2]
    _, about, two = evaluated(tmp_path / "two", *words, "--engine", "local", "--shares", "2")
    assert about["runtime"] == "onnxruntime"
    assert two == one
    words = ("evaluate", "--model_dir", small_run().folder, "--runtime", "onnxruntime")
    assert "--engine ray needs PyTorch" in refusal(*words, "--engine", "ray")
    assert "--multi_scale needs PyTorch" in refusal(*words, "--multi_scale", "refinedet320-voc")
    assert "force_no_resize needs PyTorch" in refusal(*words, "--set", "eval_config.force_no_resize=true")
    watched = (*words, "--watch", "--pipeline_config_path", small_run().config)
    assert "--watch evaluates each checkpoint in PyTorch" in refusal(*watched)
    exported = ("evaluate", "--model_dir", small_run().onnx, "--runtime", "openvino")
    assert "is exported, and runs in onnxruntime" in refusal(*exported)


def test_devices(exporter: Exporter, tmp_path: Path) -> None:
    folder, picture = small_run().folder, small_run().picture
    for command in (("predict", picture, "--out", tmp_path / "out"), ("evaluate", "--out", tmp_path / "out")):
        words = (*command, "--model_dir", folder)
        for device, message in (("cuda", "has no CUDAExecutionProvider"), ("gpu", "runs exports on cpu, cuda")):
            assert message in refusal(*words, "--runtime", "onnxruntime", "--device", device)
        assert "OpenVINO finds CPU here" in refusal(*words, "--runtime", "openvino", "--device", "npu")
        assert "add --runtime onnxruntime" in refusal(*words, "--device", "tensorrt")
    with pytest.raises(ExportError, match="has no TensorrtExecutionProvider"):
        bw.load(folder, runtime="onnxruntime", device="tensorrt")
    assert "has no CUDAExecutionProvider" in refusal("serve", folder, "--device", "cuda")
    assert "has no CUDAExecutionProvider" in refusal("serve", small_run().onnx, "--device", "cuda")
    assert exporter.made == 0
    assert not (tmp_path / "out").exists()


def test_an_export_is_compared_on_its_device(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[str] = []

    def on_cpu(path: Path, threads: int, device: str) -> Any:
        places.append(device)
        return open_export(path, threads)

    def verified(detector: bw.Detector, path: Path, pictures: object, *, device: str) -> Any:
        return Report([], {}) if device == "cuda" else differs

    differs = Report([Stage("detections", "scores", 1.0, 0.0)], {})
    monkeypatch.setattr(cache, "open_export", on_cpu)
    monkeypatch.setattr(export_module, "verify", verified)
    first = cache.make_export(opened(), "onnxruntime", sample, device="cuda")
    assert places == ["cuda"]
    with pytest.raises(ExportError, match="on cuda:1, the export differs from the detector"):
        cache.make_export(opened(), "onnxruntime", sample, device="cuda:1")
    assert cache.find_export(opened(), "onnxruntime", device="cuda:1") is None
    assert cache.make_export(opened(), "onnxruntime", sample).path != first.path
    assert exporter.made == 3


@pytest.mark.slow
@pytest.mark.parametrize("runtime", EXPORTED_FOR)
def test_a_real_export(runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOXWRIGHT_CACHE", str(tmp_path / "cache"))
    model = opened()
    found = choose_export(model, RuntimeRequest(runtime), Pictures(sample))
    assert found is not None
    ratio = cache.time_ratio(model, runtime)
    assert ratio is not None
    assert ratio > 0
    for one, other in zip(found.detector.detect(PICTURES), opened().finder()(PICTURES), strict=True):
        assert len(one.scores) == len(other.scores) > 0
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)
