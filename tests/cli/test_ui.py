"""What `boxwright ui` opens, and what several served models are called."""

from __future__ import annotations

import io
import os
import shutil
import webbrowser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from boxwright.base.errors import ConfigError
from boxwright.cli import serve, ui
from boxwright.cli.serving import name_models
from boxwright.cli.ui import _only_model, _sample_pictures, ui_command
from boxwright.inference.serving.settings import ServerSettings
from tests.api.models import small_run


def files(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path.parent, (number, number))


def test_nothing_is_said_in_a_line(tmp_path: Path) -> None:
    files(tmp_path, "data/a.xml", "run/pipeline.config", ".hidden/a.onnx", "1/2/3/4/a.onnx")
    with pytest.raises(ConfigError, match="no run and no exported detector is in this folder; name one, or make one"):
        _only_model(tmp_path)


@pytest.mark.parametrize("name", ["a.onnx", "deep/er/a.tflite"])
def test_the_only_one_is_opened(name: str, tmp_path: Path) -> None:
    files(tmp_path, "data/a.xml", name)
    assert _only_model(tmp_path) == tmp_path / name


def test_a_run_is_one_with_its_exports(tmp_path: Path) -> None:
    files(tmp_path, "run/pipeline.config", "run/ckpt-7.pt", "run/export/detector.onnx")
    assert _only_model(tmp_path) == tmp_path / "run"
    assert _only_model(tmp_path / "run") == tmp_path / "run"


def test_several_are_listed_newest_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files(tmp_path, *(f"run {number}/{name}" for number in range(2) for name in ("pipeline.config", "ckpt-1.pt")))
    files(tmp_path, "open/vino.xml", "open/vino.bin")
    os.utime(tmp_path / "open/vino.xml", (99, 99))
    with pytest.raises(ConfigError, match="several detectors are in this folder: name one, or two to compare them"):
        _only_model(tmp_path)
    listed = capsys.readouterr().out.splitlines()
    assert listed == [
        f"boxwright ui {tmp_path}/open/vino.xml",
        f"boxwright ui '{tmp_path}/run 1'",
        f"boxwright ui '{tmp_path}/run 0'",
    ]


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["any.onnx"], ["detector"]),
        (["a.onnx", "b.onnx"], ["a", "b"]),
        (["runs/a", "runs/b"], ["a", "b"]),
        (["a/export/detector.onnx", "b/export/detector.onnx"], ["a", "b"]),
        (["x/a.onnx", "y/a.onnx", "z/a-2.onnx"], ["a", "a-2", "a-2-2"]),
        (["my model (1)", "50%?"], ["my-model-1", "50"]),
        (["v1.5", "ckpt-3.pt"], ["v1.5", "ckpt-3.pt"]),
    ],
)
def test_names_of_several_models(paths: list[str], names: list[str]) -> None:
    assert name_models([Path(path) for path in paths]) == names


class Server:
    """Stands for the server: keeps what it was to serve, and says that it listens."""

    def __call__(
        self, models: dict[str, Path], settings: ServerSettings, access: Any, *, announce: Any, **_: Any
    ) -> None:
        self.models, self.settings = models, settings
        announce("http://127.0.0.1:1234")


def test_the_page_is_opened_once_the_server_listens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server, opened = Server(), []
    monkeypatch.setattr(ui, "run_server", server)
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or len(opened) == 1)
    ui_command([Path("a.onnx"), Path("b.onnx")])
    assert server.models == {"a": Path("a.onnx"), "b": Path("b.onnx")}
    assert (server.settings.host, server.settings.port) == ("127.0.0.1", 0)
    assert opened == ["http://127.0.0.1:1234/"]
    assert capsys.readouterr().out == "a.onnx and b.onnx: http://127.0.0.1:1234/ (Ctrl+C to stop)\n"
    ui_command([Path("a.onnx")])
    assert "no browser could be opened; open the address yourself" in capsys.readouterr().out
    ui_command([Path("a.onnx")], no_browser=True)
    assert len(opened) == 2


def test_words_of_several_models(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    server, both = Server(), [Path("x.onnx"), Path("y.onnx")]
    monkeypatch.setattr(serve, "run_server", server)
    serve.serve_command(ServerSettings(), both, ["one", "a&b"])
    assert server.models == {"one": both[0], "a&b": both[1]}
    said = capsys.readouterr().out
    assert "curl --data-binary @image.jpg 'http://127.0.0.1:1234/detect?model=a%26b'" in said
    assert "http://127.0.0.1:1234/v1/models/one:predict" in said
    with pytest.raises(ConfigError, match="--name: expected one for each of the 2 models, found 1"):
        serve.serve_command(ServerSettings(), both, ["one"])
    with pytest.raises(ConfigError, match="--name: two models have one name: one, one"):
        serve.serve_command(ServerSettings(), both, ["one", "one"])
    with pytest.raises(ConfigError, match="a report's thresholds are of one model; serve it alone"):
        serve.serve_command(ServerSettings(thresholds="t.json"), both)


def test_the_page_offers_evaluation_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a run and of its export; what has no data here has none, and says why."""
    run = small_run()
    samples = _sample_pictures(run.folder, allow_edited=False)
    assert len(samples) == 8
    assert len({sample.name for sample in samples}) == 8
    for sample in samples:
        with Image.open(io.BytesIO(sample.jpeg)) as picture:
            assert (picture.format, picture.size) == ("JPEG", (96, 96))
    assert _sample_pictures(run.onnx, allow_edited=False) == samples
    moved = tmp_path / "moved"
    shutil.copytree(run.folder, moved)
    config = moved / "pipeline.config"
    config.write_text(config.read_text().replace("val.record", "gone.record"))
    assert _sample_pictures(moved, allow_edited=False) == []
    assert "no sample pictures of the evaluation data: " in capsys.readouterr().out
    assert _sample_pictures(tmp_path / "nothing", allow_edited=False) == []
    assert not capsys.readouterr().out
