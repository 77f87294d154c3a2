"""What a stranger types in the first ten minutes, against the installed package: `make test-wheel` runs it.

It stands alone: nothing of the checkout is imported, and where BOXWRIGHT_CHECKOUT names it, the package must not come
from there.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import boxwright as bw
from boxwright.data.shapes import ShapesDataset

BOXWRIGHT = [sys.executable, "-m", "boxwright"]


def shell(*words: object, code: int = 0, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run `boxwright …` in a process of its own and return all that it prints."""
    command = [*BOXWRIGHT, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a TFRecord project, a trained run in `run`, and a picture."""
    folder = tmp_path_factory.mktemp("home")
    shell("demo", "--shapes", "--data_only", "--out", folder / "demo", "--train_images", 16, "--val_images", 4)
    picture = ShapesDataset(16, seed=0, size=(128, 128))[0].image
    Image.fromarray(picture).save(folder / "photo.jpg", quality=95)
    schedule = "train_config.optimizer.adam_optimizer.learning_rate.cosine_decay_learning_rate"
    bw.train(
        folder / "demo" / "pipeline.config",
        folder / "run",
        epochs=120,
        overrides=["train_config.batch_size=8", f"{schedule}.total_steps=240", f"{schedule}.warmup_steps=10"],
        device="cpu",
        workers=0,
    )
    return folder


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    return home


def export_of_roboflow(folder: Path) -> Path:
    """A YOLO export: `../train/images` in data.yaml, a polygon, an empty label file, `valid`."""
    for name, count, seed in (("train", 40, 1), ("valid", 10, 2)):
        data = ShapesDataset(count, seed=seed, size=(96, 96))
        for kind in ("images", "labels"):
            (folder / name / kind).mkdir(parents=True)
        for number in range(count):
            sample, stem = data[number], f"{number}_jpg.rf.{seed}"
            Image.fromarray(sample.image).save(folder / name / "images" / f"{stem}.jpg")
            rows = []
            for label, box in zip(sample.labels.tolist(), (sample.boxes / 96).tolist(), strict=True):
                x0, y0, x1, y1 = box
                polygon = f"{x0} {y0} {x1} {y0} {x1} {y1} {x0} {y1}"
                plain = f"{(x0 + x1) / 2} {(y0 + y1) / 2} {x1 - x0} {y1 - y0}"
                rows.append(f"{label} {polygon if number == 1 else plain}")
            (folder / name / "labels" / f"{stem}.txt").write_text("\n".join(rows) if number else "")
    names = [item.name for item in ShapesDataset(1).categories]
    (folder / "data.yaml").write_text(
        f"train: ../train/images\nval: ../valid/images\nnc: {len(names)}\nnames: {names}\n"
    )
    return folder


def test_it_is_the_installed_package() -> None:
    checkout = os.environ.get("BOXWRIGHT_CHECKOUT")
    if checkout:
        assert not Path(bw.__file__).is_relative_to(checkout)
    assert bw.__version__ == shell("--version").strip()
    assert {"load", "train", "evaluate", "Model", "Result", "Run"} <= set(dir(bw))


def test_the_first_minute(tmp_path: Path) -> None:
    """The demo, and the README's first lines of Python, in an empty folder and without a network."""
    # A proxy at a port of no server makes every connection fail.
    offline = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}
    environment = {**os.environ, **offline, "BOXWRIGHT_OFFLINE": "1"}
    lines = shell("demo", cwd=tmp_path, env=environment).splitlines()
    assert lines[-1] == "next: open demo/report/index.html"
    (line,) = (line for line in lines if line.endswith(" on 72 pictures that training did not use"))
    assert float(line.split()[3]) > 0.85
    assert (tmp_path / "demo" / "report" / "index.html").is_file()
    with Image.open(tmp_path / "demo" / "detections.jpg") as sheet:
        assert sheet.width > 1000
    program = (
        "import boxwright as bw; result = bw.load('demo')(bw.sample_images()[0]); "
        "result.save('out.jpg'); print(result[result.scores > 0.3].names())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "WBC" in done.stdout
    assert (tmp_path / "out.jpg").is_file()


def test_snippet_1_load(here: Path) -> None:
    det = bw.load("run")
    assert isinstance(det, bw.Model)
    assert det.names == [item.title for item in ShapesDataset(1).categories]


def test_snippet_2_one_in_one_out(here: Path) -> None:
    import torch

    det = bw.load("run")
    found = det("photo.jpg")
    image = Image.open("photo.jpg")
    array = np.asarray(image)
    for picture in (Path("photo.jpg"), Path("photo.jpg").read_bytes()):
        np.testing.assert_allclose(det(picture).scores, found.scores, atol=1e-4)
    # Pillow decodes JPEG a little differently from TensorFlow, as which files are read.
    decoded = det(array)
    for picture in (image, torch.from_numpy(array.copy()).permute(2, 0, 1), array.astype(np.float32)):
        np.testing.assert_allclose(det(picture).scores, decoded.scores, atol=1e-4)
    assert [len(one) for one in det(["photo.jpg", array])] == [len(found), len(decoded)]
    with pytest.raises(bw.DataError, match='scale="unit"'):
        det(array / 255)
    np.testing.assert_allclose(det(array / 255, scale="unit").scores, decoded.scores, atol=1e-4)


def test_snippet_3_pictures(here: Path, tmp_path: Path) -> None:
    found = bw.load("run")("photo.jpg")
    assert found.plot().size[0] >= 128
    assert found.save(tmp_path / "out.jpg").is_file()
    assert len(repr(found)) < 200
    assert "photo.jpg" in repr(found)
    assert "<table>" in found._repr_html_()


def test_snippet_4_indexing(here: Path) -> None:
    found = bw.load("run")("photo.jpg")
    assert found[0].score == pytest.approx(float(found.scores[0]))
    assert (found[found.scores > 0.3].scores > 0.3).all()
    for one in found[:3]:
        box, score, name = one
        assert box.shape == (4,)
        assert name in bw.load("run").names
        assert 0 <= score <= 1


def test_snippet_5_conversions(here: Path) -> None:
    found = bw.load("run")("photo.jpg")
    assert len(found.to_supervision()) == len(found)
    assert found.to_coco()[0]["image_id"] == "photo"
    assert list(found.to_pandas()["name"]) == found.names()
    assert isinstance(found.numpy().boxes, np.ndarray)
    assert found.to("cpu").boxes.device.type == "cpu"


def test_snippet_6_train_and_run(here: Path) -> None:
    run = bw.train("demo/pipeline.config", "model", epochs=1, overrides=["train_config.batch_size=8"], workers=0)
    assert run.step == 2
    assert run.best is not None
    assert "DetectionBoxes_Precision/mAP" in run.metrics
    assert isinstance(run.model(), bw.Model)
    assert bw.evaluate("model")["DetectionBoxes_Precision/mAP"] == pytest.approx(
        run.metrics["DetectionBoxes_Precision/mAP"], abs=1e-4
    )
    assert run.plot_history().size[0] > 100


def test_snippet_7_export_takes_the_runs_pictures(here: Path) -> None:
    path = bw.load("run").export("onnx")
    assert path == Path("run/export/detector.onnx")
    program = (
        "import sys, boxwright as bw; found = bw.load('run/export/detector.onnx')('photo.jpg'); "
        "assert 'torch' not in sys.modules; print(len(found))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(bw.load("run/export/detector.onnx")("photo.jpg"))


def test_snippet_8_from_data(here: Path, tmp_path: Path) -> None:
    export = export_of_roboflow(tmp_path / "export")
    resizer = "model.ssd.image_resizer.fixed_shape_resizer"
    small = [f"{resizer}.height=96", f"{resizer}.width=96"]
    run = bw.train(
        data=export / "data.yaml",
        model="ssd_mobilenet_v2_fpnlite_320",
        out=tmp_path / "model",
        overrides=["train_config.num_steps=1", *small],
        device="cpu",
        workers=0,
    )
    assert run.step == 1


def test_snippet_9_print_is_a_listener(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bw.train("demo/pipeline.config", tmp_path, overrides=["train_config.num_steps=1"], listeners=print, workers=0)
    assert "Loss/total_loss" in capsys.readouterr().out


def test_snippet_10_what_was_before_works(here: Path) -> None:
    config = bw.load_config("demo/pipeline.config")
    detector, _, step = bw.restore_detector("run")
    assert step == 240
    assert len(detector.detect([np.asarray(Image.open("photo.jpg"))])) == 1
    assert bw.evaluate(config, model_dir="run")
    with pytest.raises(bw.CheckpointError, match="is exported, for detection alone"):
        bw.restore_detector("run/export/detector.onnx")


def test_three_commands_from_a_folder_to_pictures(tmp_path: Path) -> None:
    """Train, evaluate, predict: the run's own pictures show what it finds."""
    export_of_roboflow(tmp_path / "export")
    said = shell("train", "export", "--epochs", 2, "--batch", 8, "--workers", 0, cwd=tmp_path)
    assert "next: boxwright evaluate --model_dir model" in said
    said = shell("evaluate", "--model_dir", "model", cwd=tmp_path)
    assert "AP 0." in said
    said = shell("predict", "export/valid/images", "--model", "model", "--conf", 0.01, cwd=tmp_path)
    assert len(list((tmp_path / "predictions").glob("*.jpg"))) == 10


def test_init_doctor_and_models(tmp_path: Path) -> None:
    export_of_roboflow(tmp_path / "export")
    said = shell("init", "export", "--no_steps", cwd=tmp_path)
    assert said.rstrip().endswith("next: boxwright train --config pipeline.config --model_dir model")
    assert "0 refused" in shell("config", "check", "pipeline.config", cwd=tmp_path)
    assert "YOLO, 40 images to train and 10 to evaluate" in shell("doctor", "export", cwd=tmp_path)
    rows = json.loads(shell("models", "--all", "--json"))
    assert len(rows) >= 29 + 23
    assert "ssd_mobilenet_v2_fpnlite_320" in {row["name"] for row in rows}
    assert "num_classes: 90" in shell("config", "show", "preset:efficientdet_d0")


def test_convert_writes_yolo_where_yolo_is_named(tmp_path: Path) -> None:
    export_of_roboflow(tmp_path / "export")
    shell("convert", "export", "yolo/data.yaml", cwd=tmp_path)
    assert (tmp_path / "yolo" / "data.yaml").is_file()
    assert len(list((tmp_path / "yolo" / "labels" / "train").glob("*.txt"))) == 40


def test_every_command_has_its_help() -> None:
    """Each that `boxwright --help` lists, and each command in a group, is imported and answers."""

    def commands(*group: str) -> list[str]:
        """Return the first word of each entry, in every part of the help, that is neither an option nor an argument."""
        parts = re.findall(r"^(\S.*):\n((?: .*\n)+)", shell(*group, "--help"), re.M)
        entries = "".join(text for heading, text in parts if heading != "Examples")
        return re.findall(r"^  ([a-z]\S*)", entries, re.M)

    names = commands()
    assert len(names) == len(set(names)) == 22
    assert {"train", "serve", "ui", "config"} <= set(names)
    assert set(commands("weights")) == {"list", "info", "fetch", "verify", "where"}
    for name in names:
        assert f"boxwright {name}" in shell(name, "--help")
        for inner in commands(name):
            assert f"boxwright {name} {inner}" in shell(name, inner, "--help")


def test_from_a_name_to_a_fine_tuned_detector(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One command each: detect with published weights, fine-tune them, export; the file is fetched once."""
    shell("export", "run", tmp_path / "served" / "made_up.safetensors")
    content = (tmp_path / "served" / "made_up.safetensors").read_bytes()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (tmp_path / "table.toml").write_text(
            '[made_up]\npublisher = "nobody"\npage = "https://example.com"\nlicense = "MIT"\ncode_license = "MIT"\n'
            'data = ["shapes"]\nclasses = "shapes"\nshown = "not shown"\n[made_up.weights.made_up_shapes]\n'
            f'file = "made_up.safetensors"\naddress = "http://127.0.0.1:{server.server_port}/{{file}}"\n'
            f'size = {len(content)}\nsha256 = "{hashlib.sha256(content).hexdigest()}"\ndigest_by = "publisher"\n'
            'presets = ["ssd_mobilenet_v2_fpn_small"]\noverrides = ["num_classes=4"]\n'
        )
        monkeypatch.setenv("BOXWRIGHT_WEIGHTS_TABLE", str(tmp_path / "table.toml"))
        monkeypatch.setenv("BOXWRIGHT_WEIGHTS", str(tmp_path / "cache"))
        said = shell("weights", "fetch", "made_up_shapes")
        assert "license of the weights: MIT; trained on shapes" in said
        server.shutdown()
    assert "made_up_shapes" in shell("weights", "where")
    assert "its SHA-256 agrees" in shell("weights", "verify", tmp_path / "cache" / "made_up.safetensors")
    monkeypatch.setenv("BOXWRIGHT_OFFLINE", "1")
    assert "could not be fetched" in shell("predict", "photo.jpg", "--model", "d_fine_s_coco", code=1)
    assert "--weights none" in shell(
        "train", "demo", "--model", "d_fine_s_coco", "--model_dir", tmp_path / "no", code=1
    )


def test_what_is_not_there_says_what_is(tmp_path: Path) -> None:
    assert "no command 'trian'; did you mean train?" in shell("trian", code=2)
    assert "--min_score" in shell("predict", "x.jpg", "--model", "m", "--threshold", 0.3, code=2)
    assert "no such run, checkpoint or exported file" in shell("val", "--model_dir", tmp_path / "nowhere", code=1)
    assert "Usage" in shell("detect", "--help")
