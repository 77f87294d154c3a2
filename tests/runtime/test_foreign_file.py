"""Files of other programs: one sentence says what runs them, whatever opens them and whatever flags are given."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import boxwright as bw
from boxwright.base.errors import BoxwrightError, CheckpointError, ExportError
from boxwright.config.load import parse_message
from boxwright.runtime.foreign_file import foreign_file, has_external_data
from boxwright.runtime.sessions import read_metadata
from boxwright.weights.exports import open_export
from tests.conftest import SMALL_MODEL
from tests.exporters.tiny_exports import copied_export

ULTRALYTICS = {"description": "Ultralytics YOLO11n model trained on coco.yaml", "task": "detect", "names": "{0: 'a'}"}


def an_onnx(metadata: dict[str, str], producer: str = "pytorch", version: str = "2.4.0") -> bytes:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("images", "output0")]
    graph = helper.make_graph([helper.make_node("Relu", ["images"], ["output0"])], "main_graph", value[:1], value[1:])
    model = helper.make_model(graph, producer_name=producer, producer_version=version)
    helper.set_model_props(model, metadata)
    return bytes(model.SerializeToString())


def a_tflite(description: str | None, attached: dict[str, str] | None = None) -> bytes:
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    import flatbuffers

    model = schema.ModelT()
    model.version, model.description, model.buffers = 3, description, [schema.BufferT()]
    builder = flatbuffers.Builder(64)
    builder.Finish(model.Pack(builder), b"TFL3")
    stream = io.BytesIO(bytes(builder.Output()))
    if attached:
        stream.seek(0, io.SEEK_END)
        with zipfile.ZipFile(stream, "a") as archive:
            for name, text in attached.items():
                archive.writestr(name, text)
    return stream.getvalue()


XML = b'<?xml version="1.0"?>\n<net name="Model0" version="11">\n<layers>\n</layers>\n</net>\n'


def a_zip() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/models/model.json", "{}")
    return stream.getvalue()


def test_what_it_says_of_itself() -> None:
    said = foreign_file(an_onnx(ULTRALYTICS), ".onnx")
    assert said == (
        "was not written by Boxwright: run it with ONNX Runtime, or with the program that wrote it "
        "(pytorch 2.4.0; Ultralytics YOLO11n model trained on coco.yaml; task detect)"
    )
    assert foreign_file(an_onnx({}), ".onnx").endswith("(pytorch 2.4.0)")
    assert foreign_file(an_onnx({}, "", ""), ".onnx").endswith("the program that wrote it")
    assert foreign_file(an_onnx({"task": "a\nb\x1b[31m" + "c" * 1000}), ".onnx").count("\n") == 0
    assert foreign_file(XML, ".xml").endswith("run it with OpenVINO, or with the program that wrote it")
    assert "torch.export.load" in foreign_file(a_zip(), ".pt2")


def test_what_a_tflite_says_of_itself() -> None:
    assert foreign_file(a_tflite("MLIR Converted."), ".tflite").endswith("wrote it (MLIR Converted.)")
    assert foreign_file(a_tflite(None), ".tflite").endswith("run it with LiteRT, or with the program that wrote it")
    attached = {"temp_meta.txt": str({"author": "Ultralytics", "task": "segment"})}
    assert foreign_file(a_tflite("MLIR Converted.", attached), ".tflite").endswith("(MLIR Converted.; task segment)")


@pytest.mark.parametrize("suffix", [".onnx", ".xml", ".pt2", ".tflite"])
def test_ours_are_not_foreign_even_cut_or_without_a_seal(suffix: str, tmp_path: Path) -> None:
    data = copied_export(suffix, tmp_path).read_bytes()
    assert foreign_file(data, suffix) == ""
    assert foreign_file(data.replace(b"boxwright-sha256:", b"boxwright-other0:"), suffix) == ""
    if suffix != ".xml":  # whose metadata are at the end, and which is no XML without it
        assert foreign_file(data[: len(data) // 2], suffix) == ""


@pytest.mark.parametrize("suffix", [".onnx", ".tflite", ".pt2", ".xml"])
def test_what_is_no_file_of_the_format_is_left_to_others(suffix: str) -> None:
    for data in (b"garbage!", b"\xff" * 64, b"\0\0\0\0TFL3", b"\x40\0\0\0TFL3" + b"\xff" * 80):
        assert foreign_file(data, suffix) == "" or suffix == ".tflite"
    if suffix != ".xml":
        assert "Git LFS pointer" in foreign_file(b"version https://git-lfs.github.com/spec/v1\n", suffix)


def test_all_that_opens_one_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "yolo.onnx"
    path.write_bytes(an_onnx(ULTRALYTICS))
    detector = bw.build_detector(parse_message(SMALL_MODEL, bw.Pipeline))
    openers: list[tuple[type[BoxwrightError], Callable[[], Any]]] = [
        (ExportError, lambda: bw.load(path)),
        (ExportError, lambda: bw.load(path, allow_edited=True)),
        (ExportError, lambda: open_export(path)),
        (ExportError, lambda: read_metadata(path, allow_edited=True)),
        (ExportError, lambda: bw.evaluate(path)),
        (CheckpointError, lambda: bw.restore_detector(path)),
        (CheckpointError, lambda: bw.load_weights(detector, path)),
    ]
    for kind, call in openers:
        with pytest.raises(kind, match=r"yolo\.onnx was not written by Boxwright: run it with ONNX Runtime") as error:
            call()
        assert "allow_edited" not in str(error.value)


def test_an_export_of_ours_has_no_weights_to_restore(tmp_path: Path) -> None:
    detector = bw.build_detector(parse_message(SMALL_MODEL, bw.Pipeline))
    path = copied_export(".onnx", tmp_path)
    assert onnx.load(path).metadata_props
    for call in (lambda: bw.restore_detector(path), lambda: bw.load_weights(detector, path)):
        with pytest.raises(CheckpointError, match="is exported, for detection alone"):
            call()


# model { graph { initializer { data_location: EXTERNAL } } }, by hand: 7, 5 and 14 with their wire types.
TENSOR = b"\x70\x01"
GRAPH = b"\x2a" + bytes([len(TENSOR)]) + TENSOR
MODEL = b"\x3a" + bytes([len(GRAPH)]) + GRAPH


def test_external_data_is_found() -> None:
    assert has_external_data(MODEL)
    assert not has_external_data(b"\x3a\x04\x2a\x02\x70\x00")
    assert not has_external_data(b"")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        # ONNX Runtime keeps 32 bits of a tag: this one is graph's to it, and of no known number here.
        (b"\xba\x80\x80\x80\x10" + MODEL[1:], "invalid number"),
        (b"\xba\x00" + MODEL[1:], "overlong encoding"),
        (b"\x3a\x84\x00" + GRAPH, "overlong encoding"),
        (b"\x02\x00", "invalid number"),
        (b"\x3b\x3c", "unknown wire type"),
        (MODEL[:-1], "beyond its message"),
        (b"\x3a", "end within a number"),
    ],
)
def test_what_two_readers_would_read_differently_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        has_external_data(data)
