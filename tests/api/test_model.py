"""Opening whatever detects, and what can be given to it."""

from __future__ import annotations

import functools
import http.server
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import boxwright as bw
from tests.api.models import DATA, STEPS, SmallRun
from tests.http_servers import running_server


@pytest.fixture(scope="module", params=["folder", "best", "onnx"])
def model(run: SmallRun, request: pytest.FixtureRequest) -> bw.Model:
    return bw.load({"folder": run.folder, "best": run.folder / "best.pt", "onnx": run.onnx}[request.param])


def forms(path: Path) -> dict[str, Any]:
    """The same picture in every form that people hold one in."""
    array = np.asarray(Image.open(path).convert("RGB"))
    return {
        "path": path,
        "name": str(path),
        "bytes": path.read_bytes(),
        "bytearray": bytearray(path.read_bytes()),
        "PIL image": Image.open(path),
        "array": array,
        "array with alpha": np.dstack([array, np.full(array.shape[:2], 9, np.uint8)]),
        "array of other integers": array.astype(np.int64),
        "floats": array.astype(np.float32),
        "mirrored twice": array[:, ::-1][:, ::-1],
        "tensor": torch.from_numpy(array.copy()).permute(2, 0, 1),
        "float tensor": torch.from_numpy(array.copy()).permute(2, 0, 1).double(),
        "tensor that learns": torch.from_numpy(array.copy()).permute(2, 0, 1).float().requires_grad_(),
    }


def same(one: bw.Result, other: bw.Result) -> None:
    np.testing.assert_allclose(one.boxes, other.boxes, atol=1e-3)
    np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
    np.testing.assert_array_equal(one.image, other.image)


@pytest.mark.slow_cases("folder", "best")
def test_every_form_of_a_picture_gives_the_same(model: bw.Model, run: SmallRun) -> None:
    expected = model(run.picture)
    assert len(expected) > 0
    for name, picture in forms(run.picture).items():
        found = model(picture)
        assert isinstance(found, bw.Result), name
        same(found, expected)


def test_floats_in_0_to_1_need_a_word(model: bw.Model, run: SmallRun) -> None:
    unit = np.asarray(Image.open(run.picture).convert("RGB")).astype(np.float32) / 255
    for picture in (unit, torch.from_numpy(unit).permute(2, 0, 1)):
        with pytest.raises(bw.DataError, match='scale="unit"'):
            model(picture)
        same(model(picture, scale="unit"), model(run.picture))
    with pytest.raises(bw.DataError, match=r"expected numbers in 0\.\.1, found 0 to 255"):
        model(unit * 255, scale="unit")
    with pytest.raises(bw.DataError, match="expected guess or pixels or unit"):
        model(unit, scale="percent")
    black = np.zeros((40, 40, 3), np.float32)
    assert isinstance(model(black), bw.Result)


@pytest.mark.slow_cases("folder", "best")
def test_one_in_one_out_a_list_in_a_list_out(model: bw.Model, run: SmallRun, tmp_path: Path) -> None:
    expected = [model(DATA[number].image) for number in range(3)]
    arrays = np.stack([DATA[number].image for number in range(3)])
    for number, array in enumerate(arrays):
        Image.fromarray(array).save(tmp_path / f"{number}.png")
    several: dict[str, Any] = {
        "list": list(arrays),
        "tuple": tuple(arrays),
        "generator": (array for array in arrays),
        "array": arrays,
        "tensor": torch.from_numpy(arrays).permute(0, 3, 1, 2),
        "paths": sorted(tmp_path.iterdir()),
        "folder": tmp_path,
        "pattern": f"{tmp_path}/*.png",
    }
    for name, pictures in several.items():
        found = model(pictures)
        assert isinstance(found, list), name
        assert len(found) == 3, name
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    assert model([]) == []
    assert len(model([run.picture])) == 1
    assert [len(one) for one in model.stream(arrays, batch_size=2)] == [len(one) for one in expected]
    assert [len(one) for one in model.detect(list(arrays))] == [len(one) for one in expected]


def test_the_sources_are_named(model: bw.Model, run: SmallRun) -> None:
    assert model(run.picture).source == str(run.picture)
    assert model(Image.open(run.picture)).source == str(run.picture)
    assert model(run.picture.read_bytes()).source == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere.jpg", "nowhere.jpg"),
        ("clip.mp4", "is a video: boxwright predict"),
        (b"", "0 bytes"),
        (b"no image at all", "not an image of a known format"),
        (7, "expected a path, an address, bytes"),
        (None, "expected a path, an address, bytes"),
        ({"image": 1}, "expected a path, an address, bytes"),
        ([None], "image 0: expected a path, an address, bytes"),
        (np.zeros((0, 5, 3), np.uint8), "some pixels, found shape"),
        (np.zeros((5, 5, 7), np.uint8), "1, 3 or 4 channels"),
        (np.zeros(5, np.uint8), "HWC array"),
        (np.full((5, 5, 3), -1), "expected numbers in 0..255, found -1"),
        (np.full((5, 5, 3), 300), "found 300 to 300"),
        (np.full((5, 5, 3), np.nan), "not finite"),
        (np.full((5, 5, 3), "a"), "expected numbers in 0..255"),
        (np.zeros((5, 5, 3), bool), "expected numbers in 0..255"),
        (torch.zeros(5, 5, 3), "CHW tensor"),
        (torch.zeros(3, 0, 5), "some pixels"),
    ],
)
def test_what_is_no_picture(run: SmallRun, given: Any, message: str) -> None:
    model = bw.load(run.onnx)
    with pytest.raises(bw.DataError, match=message):
        model(given)


@pytest.mark.slow_cases("folder", "best")
def test_grey_pictures(model: bw.Model) -> None:
    grey = DATA[1].image[..., 0]
    colour = np.repeat(grey[..., None], 3, axis=2)
    for picture in (grey, grey[..., None], torch.from_numpy(grey.copy()), Image.fromarray(grey)):
        same(model(picture), model(colour))


def test_least_score_and_batch_size(model: bw.Model, run: SmallRun) -> None:
    everything = model(run.picture)
    kept = model(run.picture, min_score=0.3)
    assert model(run.picture, conf=0.3).scores.tolist() == kept.scores.tolist()
    assert [len(one) for one in model.stream([run.picture], conf=0.3)] == [len(kept)]
    for options, message in (
        ({"conf": 0.3, "min_score": 0.3}, "two names of the confidence threshold"),
        ({"batch_size": 0}, "batch_size: expected a whole number of at least 1, found 0"),
    ):
        with pytest.raises(bw.ConfigError, match=message):
            model(run.picture, **options)  # type: ignore[call-overload]  # on purpose
    assert len(kept) == int((everything.scores >= 0.3).sum()) < len(everything)
    with pytest.raises(bw.ConfigError, match="batch_size: expected a whole number of at least 1"):
        model(run.picture, batch_size=0)


def test_what_a_model_says_of_itself(run: SmallRun) -> None:
    model, exported = bw.load(run.folder), bw.load(run.onnx)
    assert isinstance(model, bw.Model)
    assert not isinstance(model, torch.nn.Module)
    assert isinstance(model.detector, torch.nn.Module)
    assert model.step == exported.step == STEPS
    assert model.names == exported.names == [item.title for item in DATA.categories]
    assert len(repr(model)) < 300
    assert f"step {STEPS}" in repr(model)
    assert model.config.train_config is not None
    assert exported.config.train_config is not None
    assert exported.config.train_config.num_steps == STEPS
    assert exported.is_exported
    assert not model.is_exported
    with pytest.raises(bw.ExportError, match="contains no PyTorch module"):
        _ = exported.detector
    with pytest.raises(bw.ExportError, match="contains no PyTorch module"):
        exported.export("onnx")


def test_the_mode_of_training_stays(run: SmallRun) -> None:
    model = bw.load(run.folder)
    model.detector.train()
    model(run.picture)
    assert model.detector.training


def test_optimized(run: SmallRun) -> None:
    before, model = bw.load(run.folder)(run.picture), bw.load(run.folder)
    assert model.optimize() is model
    np.testing.assert_allclose(model(run.picture).above(0.3).scores, before.above(0.3).scores, atol=1e-4)


def test_what_cannot_be_opened(run: SmallRun, tmp_path: Path) -> None:
    with pytest.raises(bw.CheckpointError, match="no such run, checkpoint or exported file"):
        bw.load(tmp_path / "nowhere")
    with pytest.raises(bw.CheckpointError, match="no checkpoint in this folder"):
        bw.load(tmp_path)
    damaged = tmp_path / "a.onnx"
    damaged.write_bytes(run.onnx.read_bytes()[:1000])
    with pytest.raises(bw.ExportError, match="no checksum"):
        bw.load(damaged)
    with pytest.raises(bw.ExportError, match="is not an ONNX file, or damaged"):
        bw.load(damaged, allow_edited=True)
    with pytest.raises(bw.ExportError, match="has no CUDAExecutionProvider"):
        bw.load(run.onnx, device="cuda")
    with pytest.raises(bw.ExportError, match="remove these options"):
        bw.load(run.onnx, config=run.config)


def test_an_exported_model_needs_no_pytorch(run: SmallRun, tmp_path: Path) -> None:
    program = """
import sys
import boxwright as bw
found = bw.load(sys.argv[1])(sys.argv[2])
found.save(sys.argv[3])
print(len(found), [one.name for one in found[found.scores > 0.5]], found[0], found._repr_html_()[:3], found.to_coco()[:1])
assert "torch" not in sys.modules, "torch was imported"
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(run.onnx), str(run.picture), str(tmp_path / "out.jpg")],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.jpg").stat().st_size > 500


@pytest.mark.slow
def test_export_takes_pictures_of_the_runs_own_data(run: SmallRun, tmp_path: Path) -> None:
    model = bw.load(run.folder)
    path = model.export("pt2", tmp_path / "detector.pt2", images=[run.picture, DATA[3].image])
    assert path == tmp_path / "detector.pt2"
    np.testing.assert_allclose(
        bw.load(path)(run.picture).above(0.3).scores, model(run.picture).above(0.3).scores, atol=1e-4
    )
    for wrong, options in ((bw.ExportError, {"format": "tflight"}), (bw.ExportError, {"opsets": 17})):
        with pytest.raises(wrong, match="expected onnx|has no option 'opsets'"):
            model.export(path=tmp_path / "b.onnx", images=[run.picture], **options)


def test_a_stream_without_end(run: SmallRun) -> None:
    given: list[int] = []

    def endless() -> Any:
        while True:
            given.append(1)
            yield run.picture

    stream = bw.load(run.onnx).stream(endless(), batch_size=2)
    assert len(next(stream)) > 0
    assert len(given) == 2


def test_an_address_is_fetched(run: SmallRun) -> None:
    """From a server of this machine; what it sends is decoded as a file is."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(run.picture.parent))
    with running_server(handler) as address:
        model = bw.load(run.onnx)
        found = model(f"{address}/{run.picture.name}")
        same(found, model(run.picture))
        assert found.source == f"{address}/{run.picture.name}"
        with pytest.raises(bw.DataError, match="404"):
            model(f"{address}/nowhere.png")
        with pytest.raises(bw.DataError, match="expected an image, found"):
            model(f"{address}/")


def test_open_files_are_images(run: SmallRun, tmp_path: Path) -> None:
    """Wherever they stand, and twice; io.BytesIO that an image was just written to stands at its end."""
    model = bw.load(run.onnx)
    expected = model(run.picture)
    buffer = io.BytesIO()
    Image.open(run.picture).save(buffer, "PNG")
    for _ in range(2):
        same(model(buffer), expected)
    with run.picture.open("rb") as file:
        found = model(file)
        same(found, expected)
        assert found.source == str(run.picture)
    with tempfile.SpooledTemporaryFile() as upload, zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        upload.write(run.picture.read_bytes())
        same(model(upload), expected)
        archive.write(run.picture, "a.png")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive, archive.open("a.png") as member:
        same(model([member, memoryview(buffer.getvalue())])[0], expected)
    same(model(io.BufferedReader(Unseekable(run.picture.read_bytes()))), expected)


class Unseekable(io.RawIOBase):
    """A response of a server, say."""

    def __init__(self, data: bytes) -> None:
        self._left = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._left.readinto(buffer)


def test_open_files_that_are_no_images(run: SmallRun, tmp_path: Path) -> None:
    model = bw.load(run.onnx)
    (tmp_path / "a.txt").write_text("text")
    with (tmp_path / "a.txt").open() as file, pytest.raises(bw.DataError, match=r'open\(path, "rb"\); its read\(\)'):
        model(file)
    with pytest.raises(bw.DataError, match="closed file"):
        model(file)
    with pytest.raises(bw.DataError, match="image 1: .*0 bytes"):
        model([run.picture, io.BytesIO()])
    with (tmp_path / "a.txt").open("rb") as binary, pytest.raises(bw.DataError, match=r"a\.txt.*not an image"):
        model(binary)


def test_a_stream_of_a_folder_has_a_result_for_each_file(run: SmallRun, tmp_path: Path) -> None:
    for name in ("a", "c", "e"):
        (tmp_path / f"{name}.png").write_bytes(run.picture.read_bytes())
    (tmp_path / "b.png").write_bytes(b"")
    (tmp_path / "d.jpg").write_bytes(run.picture.read_bytes()[:300])
    model = bw.load(run.onnx)
    results = list(model.stream(tmp_path, batch_size=2))
    assert [Path(result.source).name for result in results] == ["a.png", "b.png", "c.png", "d.jpg", "e.png"]
    assert [bool(result.error) for result in results] == [False, True, False, True, False]
    for number in (0, 2, 4):
        same(results[number], model(run.picture))
    bad = results[1]
    assert "b.png" in bad.error
    assert bad.error in repr(bad)
    assert "b.png" in bad._repr_html_()
    assert (len(bad), bad.names(), list(bad), bad.to_coco(), bad.image.shape) == (0, [], [], [], (0, 0, 3))
    assert len(bad.above(0.1)) == len(bad[:3]) == 0
    for draw in (bad.plot, lambda: bad.save(tmp_path / "x.jpg")):
        with pytest.raises(bw.DataError, match=r"b\.png"):
            draw()
    for call in (model, model.detect):
        with pytest.raises(bw.DataError, match=r"b\.png"):
            call(tmp_path)


def test_a_stream_goes_on_past_what_is_no_picture(run: SmallRun) -> None:
    model = bw.load(run.onnx)
    dark = np.full((8, 8, 3), 0.5, np.float32)
    given = [run.picture, None, "gone.jpg", np.zeros((5, 5, 7), np.uint8), run.picture]
    errors = [result.error for result in model.stream(given)]
    assert [bool(error) for error in errors] == [False, True, True, True, False]
    assert "image 1: expected a path" in errors[1]
    assert "gone.jpg" in errors[2]
    assert [bool(result.error) for result in model.stream(iter([dark, run.picture]))] == [True, False]
    with pytest.raises(bw.DataError, match="as if they were in 0..1"):
        next(model.stream([dark]))
    with pytest.raises(bw.DataError, match="expected a path"):
        next(model.stream(7))
