"""TF1's checkpoints as files: of the first format, as bundles by name, and as frozen graphs; whole and damaged."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import boxwright as bw
from boxwright.base.errors import CheckpointError
from boxwright.config.load import parse_message
from boxwright.weights.sources import is_tensorflow
from boxwright.weights.tensorflow.bundle import slice_key, write_bundle
from boxwright.weights.tensorflow.checkpoint import (
    FrozenGraph,
    SavedSlices,
    find_tensorflow,
    open_tensorflow,
    read_step,
)
from boxwright.weights.tensorflow.object_graph import GraphDef, SavedTensorSlices
from boxwright.weights.tensorflow.sstable import write_table
from tests.conftest import GOLDEN
from tests.golden.weights import weight

Arrays = Mapping[str, NDArray[Any]]
RECORDED = json.loads((GOLDEN / "tf1" / "embedded_ssd_mobilenet_v1_coco.json").read_text())
WEIGHTS = {name: weight(name, tuple(shape), RECORDED["gain"]) for name, shape in RECORDED["variables"]}
CONFIG = f"model {{ {RECORDED['model_text']} }}"
_NUMBERS = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}
_LISTS = {"float32": "floats", "float64": "doubles", "int32": "ints", "int64": "longs"}


def put(proto: Any, array: NDArray[Any]) -> None:
    """Write an array as TensorFlow's saver of the first format does: values one by one."""
    if array.dtype == np.float16:
        proto.halves.extend(array.reshape(-1).view(np.uint16).tolist())
    else:
        getattr(proto, _LISTS[array.dtype.name]).extend(array.reshape(-1).tolist())


def saved_slices(arrays: Arrays, cut: str = "") -> bytes:
    """Write a checkpoint of the first format; the tensor `cut` in two slices along its first side."""
    head, table = SavedTensorSlices(), {}
    for name, array in arrays.items():
        meta = head.meta.tensor.add(name=name, type=_NUMBERS[array.dtype.name])
        for side in array.shape:
            meta.shape.dim.add(size=side)
        half = array.shape[0] // 2 if name == cut else 0
        for start, end in ((0, half), (half, array.shape[0])) if half else ((0, 0),):
            entry = SavedTensorSlices()
            entry.data.name = name
            for number in range(array.ndim):
                whole = number > 0 or not half
                entry.data.slice.extent.add(start=0 if whole else start, length=0 if whole else end - start)
            put(entry.data.data, array[start:end] if half else array)
            extent = tuple((e.start, e.length or -1) for e in entry.data.slice.extent)
            table[slice_key(name, extent)] = entry.SerializeToString()
    return write_table({b"": head.SerializeToString(), **table})


def frozen_graph(arrays: Arrays) -> bytes:
    """Write constants, each with what reads it, as TensorFlow's freezing leaves them."""
    graph = GraphDef()
    graph.node.add(name="image_tensor", op="Placeholder")
    for name, array in arrays.items():
        node = graph.node.add(name=name, op="Const")
        value = node.attr.add(key="value").value.tensor
        value.dtype = _NUMBERS[array.dtype.name]
        for side in array.shape:
            value.shape.dim.add(size=side)
        value.content = array.tobytes()
        graph.node.add(name=f"{name}/read", op="Identity")
    graph.node.add(name="Postprocessor/scale", op="Const").attr.add(key="value").value.tensor.dtype = 1
    return bytes(graph.SerializeToString())


def write(arrays: Arrays, kind: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "bundle":
        return write_bundle(folder / "model.ckpt-200", arrays, None)
    path = folder / {"slices": "model.ckpt", "graph": "frozen_inference_graph.pb"}[kind]
    path.write_bytes({"slices": saved_slices, "graph": frozen_graph}[kind](arrays))
    return path


KINDS = ("bundle", "slices", "graph")


@pytest.mark.slow_except("path-graph")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inside", [False, True], ids=["path", "folder"])
def test_a_detector_comes_back(kind: str, inside: bool, tmp_path: Path) -> None:
    path = write({**WEIGHTS, "global_step": np.array(200, np.int64)}, kind, tmp_path / "a")
    (tmp_path / "a" / "pipeline.config").write_text(CONFIG)
    source = path.parent if inside else path
    assert is_tensorflow(source)
    detector, _, step = bw.restore_detector(source)
    assert step == (0 if kind == "graph" else 200)
    plain = bw.build_detector(parse_message(CONFIG, bw.Pipeline))
    bw.load_weights(plain, WEIGHTS)
    state = plain.network.state_dict()
    assert all((value == state[name]).all() for name, value in detector.network.state_dict().items())


def test_averages(tmp_path: Path) -> None:
    """They lie beside the weights, and are taken where they are asked for; of statistics there are none."""
    name = "FeatureExtractor/MobilenetV1/Conv2d_0/weights"
    learnt = [key for key in WEIGHTS if "moving_" not in key]
    average = {f"{key}/ExponentialMovingAverage": WEIGHTS[key] + 1 for key in learnt}
    path = write({**WEIGHTS, **average}, "bundle", tmp_path)
    detector = bw.build_detector(parse_message(CONFIG, bw.Pipeline))
    for use, offset in ((False, 0), (True, 1)):
        report = bw.load_weights(detector, path, use_average=use)
        kernel = detector.network.get_parameter("backbone.stem.0.weight").detach()
        np.testing.assert_array_equal(kernel.permute(2, 3, 1, 0).numpy(), WEIGHTS[name] + offset)
        assert len(report.restored) == len(WEIGHTS)
    average.pop(f"{name}/ExponentialMovingAverage")
    with pytest.raises(CheckpointError, match=r"has none of 1 of .* weights; the first is backbone.stem.0.weight"):
        bw.load_weights(detector, {**WEIGHTS, **average}, use_average=True)


def test_what_is_not_used_has_a_reason() -> None:
    extra = {
        "FeatureExtractor/MobilenetV1/Conv2d_0/weights/RMSProp": "state of the optimizer",
        "FeatureExtractor/MobilenetV1/Conv2d_0/weights/ExponentialMovingAverage": "a moving average, which was not requested",
        "global_step": "a counter",
        "Other/thing": "the network has no such variable",
    }
    detector = bw.build_detector(parse_message(CONFIG, bw.Pipeline))
    report = bw.load_weights(detector, {**WEIGHTS, **{name: np.zeros(1, np.float32) for name in extra}})
    assert report.unused.keys() == extra.keys()
    assert all(report.unused[name].startswith(reason) for name, reason in extra.items())


def test_slices_and_types_of_the_first_format(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(24, dtype=np.float32).reshape(4, 3, 2),
        "b": np.arange(6, dtype=np.float64),
        "half": np.array([1.5, -2], np.float16),
        "n": np.array(7, np.int64),
    }
    path = tmp_path / "model.ckpt"
    path.write_bytes(saved_slices(arrays, cut="a"))
    found = SavedSlices(path)
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_a_constant_of_equal_values(tmp_path: Path) -> None:
    """TensorFlow writes one value for all; the last of a list stands for the rest."""
    graph = GraphDef()
    node = graph.node.add(name="FeatureExtractor/x/BatchNorm/gamma", op="Const")
    value = node.attr.add(key="value").value.tensor
    value.dtype = 1
    value.shape.dim.add(size=5)
    value.floats.extend([1.0, 2.0])
    path = tmp_path / "g.pb"
    path.write_bytes(graph.SerializeToString())
    assert FrozenGraph(path)["FeatureExtractor/x/BatchNorm/gamma"].tolist() == [1, 2, 2, 2, 2]
    value.shape.dim[0].size = 10**15
    path.write_bytes(graph.SerializeToString())
    with pytest.raises(CheckpointError, match="BOXWRIGHT_MAX_CHECKPOINT_BYTES"):
        FrozenGraph(path)["FeatureExtractor/x/BatchNorm/gamma"]


def test_a_frozen_graph_of_two_stages(tmp_path: Path) -> None:
    """Names as in the recorded detectors of two stages: both extractors and all predictors, R-FCN's too."""
    names = [
        "FirstStageFeatureExtractor/InceptionV2/InceptionV2/Conv2d_1a_7x7/depthwise_weights",
        "Conv/weights",
        "FirstStageBoxPredictor/ClassPredictor/biases",
        "SecondStageFeatureExtractor/InceptionV2/Mixed_5a/Branch_0/Conv2d_0a_1x1/BatchNorm/gamma",
        "SecondStageBoxPredictor/BoxEncodingPredictor/weights",
        "SecondStageBoxPredictor/reduce_depth/biases",
    ]
    arrays = {name: np.full(2, number, np.float32) for number, name in enumerate(names)}
    path = tmp_path / "frozen_inference_graph.pb"
    path.write_bytes(frozen_graph(arrays))
    found = FrozenGraph(path)
    assert {name: array.tolist() for name, array in found.items()} == {n: a.tolist() for n, a in arrays.items()}


def test_a_graph_of_something_else(tmp_path: Path) -> None:
    graph = GraphDef()
    graph.node.add(name="dense/kernel", op="Const")
    graph.node.add(name="MatMul", op="MatMul")
    path = tmp_path / "other.pb"
    path.write_bytes(graph.SerializeToString())
    with pytest.raises(CheckpointError, match=r"a graph of 2 nodes \(Const, MatMul\), but none is a constant with the"):
        FrozenGraph(path)


def _lfs(data: bytes) -> bytes:
    return b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize %d\n" % len(data)


WRONG: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "Git LFS": (_lfs, "a Git LFS pointer, not the file itself; fetch the file with `git lfs pull`"),
    "web page": (lambda _: b"\n<!DOCTYPE HTML><html><body>404", "a web page, not the file that its name says"),
    "server": (lambda _: b"<?xml version='1.0'?><Error/>", "an XML text, such as a server's error"),
    "empty": (lambda _: b"", "empty: nothing was written to it"),
    "half": (lambda data: data[: len(data) // 2], "cut off|not a graph"),
}


@pytest.mark.slow_cases(
    "model.ckpt-200.data-00000-of-00001-web page",
    "model.ckpt-200.data-00000-of-00001-server",
    "model.ckpt-200.data-00000-of-00001-empty",
    "a.tar.gz-Git LFS",
    "a.tar.gz-web page",
)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(
    "name", ["model.ckpt-200.index", "model.ckpt-200.data-00000-of-00001", "frozen.pb", "a.tar.gz"]
)
def test_files_are_named_for_what_they_are(name: str, wrong: str, tmp_path: Path) -> None:
    change, problem = WRONG[wrong]
    path = tmp_path / name
    if name == "a.tar.gz":
        path.write_bytes(archive({"x/pipeline.config": CONFIG.encode()}))
        source = path
    else:
        kind = "graph" if name.endswith(".pb") else "bundle"
        source = write(WEIGHTS, kind, tmp_path)
        source = source.rename(path) if kind == "graph" else source
    path.write_bytes(change(path.read_bytes()))
    detector = bw.build_detector(parse_message(CONFIG, bw.Pipeline))
    with pytest.raises(CheckpointError, match=problem):
        bw.load_weights(detector, source)


def archive(files: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.slow_cases("bundle", "graph")
@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_of_the_zoo(kind: str, tmp_path: Path) -> None:
    path = write(WEIGHTS, kind, tmp_path / "in")
    files = {f"ssd_zoo/{file.name}": file.read_bytes() for file in path.parent.iterdir()}
    files["ssd_zoo/pipeline.config"] = CONFIG.encode()
    (tmp_path / "ssd_zoo.tar.gz").write_bytes(archive(files))
    detector, _, _ = bw.restore_detector(tmp_path / "ssd_zoo.tar.gz")
    report = bw.load_weights(detector, str(tmp_path / "ssd_zoo.tar.gz"))
    assert len(report.restored) == len(WEIGHTS)


@pytest.mark.parametrize("name", ["../evil.pb", "/tmp/evil.pb", "a/../../evil.pb"])
def test_an_archive_names_no_path_outside(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(archive({"x/model.ckpt": b"", name: b"evil"}))
    with pytest.raises(CheckpointError, match="names a path outside itself"):
        bw.restore_detector(path)
    assert not (tmp_path / "evil.pb").exists()
    assert not (tmp_path.parent / "evil.pb").exists()


def test_an_archive_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(archive({"x/a.pb": bytes(10**6), "x/b.pb": b"1"}))
    for variable, most in (("BOXWRIGHT_MAX_CHECKPOINT_BYTES", "1000"), ("BOXWRIGHT_MAX_ARCHIVE_FILES", "1")):
        with monkeypatch.context() as patch, pytest.raises(CheckpointError, match=variable):
            patch.setenv(variable, most)
            bw.restore_detector(path)


def test_links_in_archives_are_left_out(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        link = tarfile.TarInfo("x/frozen_inference_graph.pb")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    (tmp_path / "a.tar.gz").write_bytes(out.getvalue())
    with pytest.raises(CheckpointError, match="no checkpoint|no such"):
        bw.restore_detector(tmp_path / "a.tar.gz")


def test_nothing_is_nothing(tmp_path: Path) -> None:
    assert find_tensorflow(tmp_path) is None
    assert find_tensorflow(tmp_path / "model.ckpt") is None
    (tmp_path / "model.ckpt").write_bytes(b"x" * 100)
    assert find_tensorflow(tmp_path / "model.ckpt") is None
    path = write(WEIGHTS, "slices", tmp_path / "b")
    assert read_step(open_tensorflow(path)) == 0


@pytest.mark.parametrize("name", ["..\\..\\evil.pb", "C:\\evil.pb", "C:evil.pb"])
def test_an_archive_names_no_path_outside_on_windows(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(archive({name: b"evil"}))
    with pytest.raises(CheckpointError, match="names a path outside itself"):
        bw.restore_detector(path)


def test_a_long_header_is_not_read(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        member = tarfile.TarInfo("x")
        member.type, member.size = tarfile.GNUTYPE_LONGNAME, 40_000_000
        tar.addfile(member, io.BytesIO(bytes(member.size)))
        tar.addfile(tarfile.TarInfo("y"))
    (tmp_path / "a.tar.gz").write_bytes(out.getvalue())
    with pytest.raises(CheckpointError, match="a header of 4[0-9]+ bytes"):
        bw.restore_detector(tmp_path / "a.tar.gz")


def test_other_compressions_are_refused(tmp_path: Path) -> None:
    for mode in ("w:xz", "w:bz2"):
        (tmp_path / "a.tar").write_bytes(archive({"x/model.ckpt": b"1"}, mode))
        with pytest.raises(CheckpointError, match="not an archive that can be unpacked"):
            bw.restore_detector(tmp_path / "a.tar")


def test_constants_share_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is small enough, all together are not; a byte or two stands for each."""
    graph = GraphDef()
    for number in range(20):
        value = graph.node.add(name=f"FeatureExtractor/{number}/weights", op="Const").attr.add(key="value").value.tensor
        value.dtype = 1
        value.shape.dim.add(size=10**6)
        value.floats.append(1.0)
    (tmp_path / "g.pb").write_bytes(graph.SerializeToString())
    monkeypatch.setenv("BOXWRIGHT_MAX_CHECKPOINT_BYTES", "1e8")
    with pytest.raises(CheckpointError, match="BOXWRIGHT_MAX_CHECKPOINT_BYTES"):
        FrozenGraph(tmp_path / "g.pb")


def test_slices_that_overlap_do_not_fill(tmp_path: Path) -> None:
    head, table = SavedTensorSlices(), {}
    head.meta.tensor.add(name="a", type=1).shape.dim.add(size=4)
    for number in range(2):
        entry = SavedTensorSlices()
        entry.data.name = "a"
        entry.data.slice.extent.add(start=0, length=2)
        entry.data.data.floats.extend([1.0, 2.0])
        table[b"\x00a" + bytes([number])] = entry.SerializeToString()
    (tmp_path / "model.ckpt").write_bytes(write_table({b"": head.SerializeToString(), **table}))
    with pytest.raises(CheckpointError, match="do not fill shape"):
        SavedSlices(tmp_path / "model.ckpt")["a"]


def test_the_newest_of_the_first_format(tmp_path: Path) -> None:
    for step in (900, 1000):
        (tmp_path / f"model.ckpt-{step}").write_bytes(saved_slices({"a": np.ones(1, np.float32)}))
    assert find_tensorflow(tmp_path) == tmp_path / "model.ckpt-1000"
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/gone/model.ckpt-900"')
    assert find_tensorflow(tmp_path) == tmp_path / "model.ckpt-900"


def test_a_prefix_is_enough_for_a_command(tmp_path: Path) -> None:
    from boxwright.cli.options import require_checkpoint

    path = write(WEIGHTS, "bundle", tmp_path).with_name("model.ckpt-200")
    require_checkpoint(path)
    require_checkpoint(tmp_path)
    for missing in (tmp_path / "x" / "none", tmp_path / ("y" * 300)):
        with pytest.raises(CheckpointError, match="no such run, checkpoint or exported file"):
            require_checkpoint(missing if missing.parent != tmp_path else tmp_path / "empty" / missing.name)
