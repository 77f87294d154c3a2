"""From a checkpoint to exported files, and what takes them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import boxwright as bw
from boxwright.base.errors import BoxwrightError
from boxwright.cli.console import console, errors
from boxwright.cli.main import app, from_absl
from boxwright.exporters import export as exporting
from boxwright.exporters.export import report_path, verify
from boxwright.exporters.parity import Report
from boxwright.exporters.settings import ExportSettings, Nms
from boxwright.runtime.sessions import read_metadata
from boxwright.weights.export_weights import write_tensorflow_checkpoint
from boxwright.weights.tensorflow.bundle import Bundle
from tests.api.models import STEPS, small_run
from tests.exporters.exported import exported_detector
from tests.exporters.small_detectors import CATEGORIES, MOBILENET_V1, build, pictures
from tests.made_once import made_once
from tests.without_torch import WITHOUT_TORCH

CHECKPOINT = f"ckpt-{STEPS}.pt"


def run(*arguments: Any, code: str | None = None, fails: bool = False) -> str:
    """Run a command here, or, where it must not import something, in a process that starts with some code."""
    if code is None:
        with console.capture() as captured, errors.capture() as refused:
            result = CliRunner().invoke(app, from_absl([str(argument) for argument in arguments]))
        told = captured.get() + refused.get() + result.output + str(result.exception or "")
        assert (result.exit_code != 0) == fails, told
        assert result.exception is None or isinstance(result.exception, BoxwrightError | SystemExit)
        return told
    words = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def project() -> Path:
    return made_once("project", make_project)


def make_project(folder: Path) -> None:
    """Write what a user has: a configuration, a run's folder, photos."""
    shutil.copyfile(small_run().config, folder / "pipeline.config")
    shutil.copytree(small_run().folder, folder / "training")
    write_photos(folder)


@pytest.fixture(scope="module")
def of_tensorflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What TensorFlow's user has: a configuration, a label map, a checkpoint, photos."""
    folder = tmp_path_factory.mktemp("tensorflow")
    (folder / "map.pbtxt").write_text("".join(f"item {{ id: {c.id} name: '{c.name}' }}\n" for c in CATEGORIES))
    reader = f'label_map_path: "{folder}/map.pbtxt" tf_record_input_reader {{ input_path: "?" }}'
    text = f"model {{ {MOBILENET_V1} }} train_config {{ }} train_input_reader {{ {reader} }} eval_config {{ }}"
    (folder / "pipeline.config").write_text(text)
    write_tensorflow_checkpoint(build(MOBILENET_V1), folder / "training" / "ckpt-5", step=5)
    write_photos(folder)
    return folder


def write_photos(folder: Path) -> None:
    (folder / "photos").mkdir()
    for number, picture in enumerate(pictures()):
        Image.fromarray(picture).save(folder / "photos" / f"{number}.png")


@pytest.fixture(scope="module")
def file() -> Path:
    """The export of the project's weights that the tests share."""
    return exported_detector().file


def export_to(path: Path, project: Path, name: str = CHECKPOINT) -> str:
    source, images = project / "training" / name, project / "photos"
    return run("export", source, path, "--config", project / "pipeline.config", "--images", images)


def test_exporting_writes_the_file_and_its_report(
    file: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the graph of the shared file, which is made already."""
    import onnx

    made = replace(exporting.FORMATS["onnx"], make=lambda *_: onnx.load(file))
    monkeypatch.setitem(exporting.FORMATS, "onnx", made)
    assert "suppression" in export_to(tmp_path / "detector.onnx", project)
    assert report_path(tmp_path / "detector.onnx").is_file()
    assert read_metadata(tmp_path / "detector.onnx").step == STEPS


@pytest.mark.slow
def test_exporting(of_tensorflow: Path, tmp_path: Path) -> None:
    assert "suppression" in export_to(tmp_path / "detector.onnx", of_tensorflow, "ckpt-5")
    assert read_metadata(tmp_path / "detector.onnx").step == 5
    assert report_path(tmp_path / "detector.onnx").is_file()


def test_inspecting_and_predicting_without_pytorch(file: Path, project: Path, tmp_path: Path) -> None:
    told = run("inspect", file, code=WITHOUT_TORCH)
    assert "1 circle, 2 square, 3 triangle, 4 star" in told
    assert "passed" in told
    assert "detection_boxes" in told
    run("predict", project / "photos", "--model_dir", file, "--out", tmp_path / "a", code=WITHOUT_TORCH)
    run(
        "predict", project / "photos", "--checkpoint", project / "training" / CHECKPOINT, "--config",
        project / "pipeline.config", "--out", tmp_path / "b",
    )  # fmt: skip
    ours, theirs = (json.loads((tmp_path / name / "detections.json").read_text()) for name in ("a", "b"))
    assert len(ours) == len(theirs) > 10
    # Scores that are as good as equal may change places.
    first, second = (
        sorted((one["file_name"], one["category_name"], *one["bbox"]) for one in rows) for rows in (ours, theirs)
    )
    for one, other in zip(first, second, strict=True):
        assert one[:2] == other[:2]
        np.testing.assert_allclose(one[2:], other[2:], atol=0.01)
    changed = run(
        "predict", project / "photos", "--model_dir", file, "--out", tmp_path / "c", "--set", "x=1", fails=True
    )
    assert "is exported: its configuration" in changed
    for words in (["predict", project / "photos", "--out", tmp_path / "c"], ["evaluate", "--compile"]):
        refused = run(*words, "--model_dir", file, "--precision", "bfloat16", fails=True)
        assert "is exported: its precision is fixed" in refused


@pytest.mark.slow
def test_very_many_pictures_videos_and_tiles_without_pytorch(file: Path, project: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from boxwright.inference.video import open_video_for_writing

    photos = tmp_path / "photos"
    shutil.copytree(project / "photos", photos)
    (photos / "broken.png").write_bytes(b"rubbish")
    words = ["predict", photos, "--model_dir", file, "--out", tmp_path / "r.parquet", "--part_size", 2]
    assert "more than --max_errors" in run(*words, fails=True)
    told = run(*words, "--max_errors", 0.5, code=WITHOUT_TORCH)
    assert "units are done" in told
    (photos / "broken.png").unlink()
    count = len(pictures())
    rows = pq.read_table(tmp_path / "r.parquet").to_pylist()
    assert len(rows) == count + 1
    assert [bool(row["error"]) for row in rows] == [False] * count + [True]
    run("predict", photos, "--model_dir", file, "--out", tmp_path / "a", "--no_pictures")
    assert sum(len(row["boxes"] or ()) for row in rows) == len(
        json.loads((tmp_path / "a" / "detections.json").read_text())
    )
    with open_video_for_writing(tmp_path / "video.mp4") as video:
        for number in range(5):
            video.write(pictures()[0], number / 10)
    told = run(
        "predict", tmp_path / "video.mp4", "--model_dir", file, "--out", tmp_path / "f", "--track", "--save-video",
        "--coco", "--csv", "--tile", 60, "--profile", code=WITHOUT_TORCH,
    )  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "f").iterdir()) == ["coco.json", "detections.csv", "video.mp4"]
    for stage in ("read", "network", "draw", "write"):
        assert stage in told
    words[5] = tmp_path / "s.parquet"
    assert "such as 3/16" in run(*words, "--shards", "17/16", fails=True)
    assert "expected local or ray" in run(*words, "--engine", "spark", fails=True)


@pytest.mark.slow
def test_evaluating_without_pytorch(file: Path, project: Path, tmp_path: Path) -> None:
    """The same metrics as with PyTorch's own readers, by threads and alone."""
    from boxwright.data.convert import write_tfrecords
    from boxwright.data.shapes import ShapesDataset

    write_tfrecords(ShapesDataset(8, seed=4, size=(96, 128)), tmp_path / "val.record")
    text = (project / "pipeline.config").read_text()
    (tmp_path / "p.config").write_text(text.replace(str(small_run().config.parent), str(tmp_path)))
    found = []
    for name, workers, code in (("a", 2, WITHOUT_TORCH), ("b", 0, WITHOUT_TORCH), ("c", 0, None)):
        more = {} if code is None else {"code": code}
        words = ["--engine", "local", "--shares", 2] if code is None else []
        run(
            "evaluate", "--model_dir", file, "--config", tmp_path / "p.config", "--out", tmp_path / name, "--workers",
            workers, *words, **more,
        )  # fmt: skip
        found.append(json.loads((tmp_path / name / "detections.json").read_text()))
        assert len(list((tmp_path / name / "pictures").iterdir())) == 8
    assert len(found[0]) > 20
    assert found[0] == found[1] == found[2]


def test_verifying_and_measuring(file: Path, project: Path, tmp_path: Path) -> None:
    source = project / "training" / CHECKPOINT
    told = run(
        "export", source, "--verify", file, "--config", project / "pipeline.config", "--images", project / "photos"
    )
    assert "detections" in told
    told = run(
        "benchmark", file, project / "pipeline.config", "--batch", 1, "--batch", 3, "--rounds", 3, "--threads", 1,
        "--images", project / "photos", "--out", tmp_path / "b.json",
    )  # fmt: skip
    assert "ratio" in told
    timings = json.loads((tmp_path / "b.json").read_text())["timings"]
    assert [(one["name"], one["batch"]) for one in timings] == [
        (str(name), size) for size in (1, 3) for name in (file, project / "pipeline.config")
    ]
    for one in timings:
        assert len(one["samples_ms"]) == 3
        assert one["least_ms"] == min(one["samples_ms"]) <= one["median_ms"] <= one["p95_ms"] <= max(one["samples_ms"])
    assert timings[0]["ratio"] == 1
    words = ["benchmark", file, "--batch", 1, "--rounds", 3, "--out", tmp_path / "c.json"]
    assert "ratio" in run(*words, code=WITHOUT_TORCH)
    assert json.loads((tmp_path / "c.json").read_text())["facts"] == {}, "counted in networks that PyTorch runs"


@pytest.mark.slow
def test_measuring_against_torchvision(of_tensorflow: Path, tmp_path: Path) -> None:
    config = of_tensorflow / "pipeline.config"
    their = "torchvision:ssdlite320_mobilenet_v3_large"
    words = ["benchmark", config, "--compare", their, "--batch", 2, "--rounds", 3, "--out", tmp_path / "b.json"]
    for more in ([], ["--train", "--precision", "bfloat16"]):
        told = run(*words, *more)
        assert "million parameters" in told
        found = json.loads((tmp_path / "b.json").read_text())
        rounded = [f"{config}, bfloat16"] if more else []
        assert [one["name"] for one in found["timings"]] == [str(config), *rounded, their]
        ours, theirs = (found["facts"][str(name)] for name in (config, their))
        # torchvision's page gives 3.44 million parameters and 0.58 GFLOPs, by its count of one for a multiplication and addition.
        assert theirs["parameters"] == pytest.approx(3.44e6, rel=0.01)
        assert theirs["gflops"] == pytest.approx(2 * 0.583 * 2, rel=0.1)
        assert 0 < ours["parameters"] < theirs["parameters"]
        assert 0 < ours["peak_mib"] < theirs["peak_mib"] < 2000
    assert "expected NAME" in run(*words[:2], "--compare", "torchvision:nothing", fails=True)
    assert "expected float32 or bfloat16" in run(*words[:2], "--precision", "int8", fails=True)
    assert "cannot be trained" in run("benchmark", "x.onnx", "--train", fails=True)


def run_tensorflows_exporter(project: Path, out: Path, *more: object, fails: bool = False) -> str:
    words = ("--pipeline_config_path", project / "pipeline.config", "--trained_checkpoint_dir", project / "training")
    return run("exporter_main_v2", *words, "--output_directory", out, *more, fails=fails)


def test_tensorflows_exporter_says_and_writes_what_tensorflows_does(
    file: Path, of_tensorflow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the export itself, which takes ten seconds: the file is another detector's, and so is the report."""

    def copied(detector: bw.Detector, path: Path, images: Any, **_: Any) -> Report:
        shutil.copy(file, path)
        return verify(exported_detector().detector, path, images)

    monkeypatch.setattr(exporting, "export", copied)
    out = tmp_path / "exported"
    told = run_tensorflows_exporter(of_tensorflow, out, "--images", of_tensorflow / "photos")
    assert "there is no saved_model/" in told
    written = {path.name for path in out.iterdir()}
    assert written == {"pipeline.config", "label_map.pbtxt", "detector.onnx", "checkpoint"}
    again = run_tensorflows_exporter(of_tensorflow, out, fails=True)
    assert "already contains an export" in again


@pytest.mark.slow  # the test above
def test_tensorflows_exporter(of_tensorflow: Path, tmp_path: Path) -> None:
    out = tmp_path / "exported"
    refused = run_tensorflows_exporter(of_tensorflow, out, "--use_side_inputs=true", fails=True)
    assert "--use_side_inputs: use boxwright export --context" in refused
    assert not out.exists()
    change = "model { ssd { post_processing { batch_non_max_suppression { iou_threshold: 0.4 } } } }"
    words = ("--input_type", "tf_example", "--use_side_inputs=false", "--config_override", change)
    told = run_tensorflows_exporter(of_tensorflow, out, *words, "--images", of_tensorflow / "photos")
    assert "there is no saved_model/" in told
    assert "ONNX has no decoder" in told
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert names == {
        "pipeline.config", "label_map.pbtxt", "detector.onnx", "detector.onnx.parity.json", "checkpoint/checkpoint",
        "checkpoint/ckpt-0.index", "checkpoint/ckpt-0.data-00000-of-00001",
    }  # fmt: skip
    assert Bundle(out / "checkpoint" / "ckpt-0").verify() == []
    metadata = read_metadata(out / "detector.onnx")
    assert metadata.suppression["iou_threshold"] == pytest.approx(0.4)
    assert (metadata.step, metadata.input["type"]) == (5, "tf_example")
    again = run_tensorflows_exporter(of_tensorflow, out, fails=True)
    assert "already contains an export" in again


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ("savedmodel", "needs TensorFlow to write; .onnx"),
        ("executorch", "different results; export to .onnx"),
        (
            "engine",
            "export to .onnx with --nms padded --batch 1 --image_size 640x480 (and --precision float16, as precision is "
            "the file's), then trtexec --onnx=detector.onnx --stronglyTyped",
        ),
        ("mlpackage", "export to .pt2 with --batch 1 --image_size 640x480, then coremltools.convert"),
        ("NCNN", "export to .onnx with --nms none --batch 1 --image_size 640x480, then pnnx detector.onnx"),
        ("xyz", "expected onnx, openvino, pt2, litert, triton"),
    ],
)
def test_formats_that_are_not_written_name_the_way_there(form: str, reason: str, project: Path) -> None:
    told = run("export", project / "training" / CHECKPOINT, "x", "--format", form, fails=True)
    assert f"--format {form}: " in told
    assert reason in told


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["--nms", "none"], ["--image_size", "96x96", "--batch", "1"], ["--precision", "float16"]]
)
def test_the_next_command_works(words: list[str], tmp_path: Path) -> None:
    """A file without suppression, or for pictures of one size, is not for `predict`."""
    file = tmp_path / "d.onnx"
    told = run("export", small_run().folder, file, *words)
    (line,) = [line for line in told.splitlines() if line.startswith("next: boxwright ")]
    following = [str(small_run().picture) if word == "IMAGES" else word for word in line.split()[2:]]
    assert following[0] == ("predict" if words[0] == "--precision" else "inspect")
    run(*following, *(["--out", tmp_path / "out"] if following[0] == "predict" else []))


def test_a_file_without_suppression_says_so(tmp_path: Path) -> None:
    from boxwright.runtime.exported import checked_outputs

    with pytest.raises(bw.ExportError, match="ends before suppression .--nms none.: it has raw boxes"):
        checked_outputs({"raw_detection_boxes": np.zeros((1, 4, 4), np.float32)}, 1)


def test_ways_name_options_that_are_there() -> None:
    """Every option of ours in a text is one of the command, and its value is taken."""
    from boxwright.cli.commands import load_command
    from boxwright.exporters.other_formats import way_to

    options = {flag for param in load_command("export").params for flag in param.opts}
    texts = [way_to(name) for name in ("engine", "mlpackage", "ncnn", "mnn", "rknn", "hef", "om", "pte", "saved_model")]
    assert all(texts)
    named = {word for text in texts for word in re.findall("--[a-zA-Z_]+", text)}
    named -= {"--onnx", "--saveEngine", "--stronglyTyped", "--device"}  # of others' commands and of `predict`
    assert named == {"--nms", "--batch", "--image_size", "--precision"} <= options
    assert ExportSettings(nms=Nms.PADDED, batch=1, image_size="640x480").to_graph_options().image_size == (480, 640)


def test_serving_what_is_not_exported(of_tensorflow: Path) -> None:
    assert "boxwright export" in run("serve", of_tensorflow / "training", fails=True)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("detector.engine", "trtexec --onnx"),
        ("detector.mlpackage", "coremltools"),
        ("detector.torchscript", ".pt2 is PyTorch's own format"),
        ("detector.PTH", "weights are written as .safetensors"),
        ("model.ckpt", "name ckpt-N, as in model.ckpt-0"),
        ("detector.h5", "name ckpt-N"),
        ("detector.ncnn", "pnnx"),
        ("detector.xyz", "no format is known by this name; expected .onnx"),
        ("detector", "no format is known by this name"),
    ],
)
def test_unknown_endings_name_the_way_there(of_tensorflow: Path, tmp_path: Path, name: str, way: str) -> None:
    told = run("export", of_tensorflow / "training", tmp_path / name, fails=True)
    assert way in told
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["checkpoint", "saved_model"])
def test_an_export_of_tensorflow_is_not_written_into(of_tensorflow: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    words = ["--pipeline_config_path", of_tensorflow / "pipeline.config", "--output_directory", tmp_path]
    told = run("exporter_main_v2", "--trained_checkpoint_dir", of_tensorflow / "training", *words, fails=True)
    assert "already contains an export; name another folder" in told
    assert [path.name for path in tmp_path.rglob("*")] == [name]


def test_a_tensorflow_by_its_number(of_tensorflow: Path, tmp_path: Path) -> None:
    words = ["export", of_tensorflow / "training", "--config", of_tensorflow / "pipeline.config", "--format"]
    told = run(*words, "tf1", tmp_path / "weights", fails=True)
    assert "--format tf1: this network is one of TensorFlow 2; use --format tf2" in told
    assert not list(tmp_path.iterdir())
    run(*words, "tf2", tmp_path / "weights")
    assert (tmp_path / "weights.index").is_file()


def test_checkpoints_of_another_model_stay_in_their_folder(of_tensorflow: Path, tmp_path: Path) -> None:
    shutil.copytree(of_tensorflow / "training", tmp_path / "training")
    shutil.copy(of_tensorflow / "pipeline.config", tmp_path / "training")
    text = (of_tensorflow / "pipeline.config").read_text()
    assert "at step" in run("export", tmp_path / "training", tmp_path / "out" / "ckpt-7")
    (tmp_path / "out" / "pipeline.config").write_text('preset: "d_fine_n_coco"')
    before = (tmp_path / "out" / "checkpoint").read_bytes()
    told = run("export", tmp_path / "training", tmp_path / "out" / "ckpt-8", fails=True)
    assert "has checkpoints of another model; name another folder" in told
    assert (tmp_path / "out" / "checkpoint").read_bytes() == before
    assert text == (of_tensorflow / "pipeline.config").read_text()
