"""Checkpoint bundles: good ones, and every way in which one can be bad."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

from boxwright.base.crc import mask_crc
from boxwright.base.errors import CheckpointError, OutputError
from boxwright.base.varint import read_varint, write_varint
from boxwright.nn.tensorflow_names.checkpoint_keys import ATTRIBUTE
from boxwright.weights.tensorflow.bundle import Bundle, find_bundle, slice_key, write_bundle
from boxwright.weights.tensorflow.object_graph import GRAPH_KEY, BundleEntry, BundleHeader, ObjectGraph, build_graph
from boxwright.weights.tensorflow.sstable import read_table, write_table
from tests.conftest import GOLDEN

RECORDED = GOLDEN / "checkpoint" / "tf2_checkpoint"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    shutil.copytree(RECORDED, folder)
    for path in folder.iterdir():
        path.chmod(0o644)
    return folder


def test_what_tensorflow_wrote_reads_and_writes_alike() -> None:
    data = (RECORDED / "ckpt-1.index").read_bytes()
    table = read_table(data, "index")
    assert len(table) > 600
    assert list(table) == sorted(table)
    assert read_table(write_table(table), "again") == table


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**32, 2**63])
def test_varints(value: int) -> None:
    assert read_varint(write_varint(value) + b"rest", 0) == (value, len(write_varint(value)))
    with pytest.raises(ValueError, match="end within"):
        read_varint(write_varint(value)[:-1] + b"" if value > 127 else b"", 0)


def test_keys_that_share_beginnings_and_empty_tables() -> None:
    items = {f"model/layer-{number}/kernel".encode(): bytes([number % 256]) * number for number in range(500)}
    assert read_table(write_table(items), "table") == items
    assert read_table(write_table({}), "table") == {}


DTYPES = (
    "float32",
    "float64",
    "float16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
)


def test_every_type(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {f"{name}{ATTRIBUTE}": np.array([[0, 1, 7]]).astype(name) for name in DTYPES}
    arrays[f"complex{ATTRIBUTE}"] = np.array([1 + 2j], np.complex64)
    arrays[f"scalar{ATTRIBUTE}"] = np.array(5, np.int64)
    arrays[f"empty{ATTRIBUTE}"] = np.zeros((0, 3), np.float32)
    bundle = Bundle(write_bundle(tmp_path / "ckpt-3", arrays, {}))
    assert bundle.verify() == []
    assert len(bundle) == len(arrays)
    for key, value in arrays.items():
        assert bundle[key].dtype == value.dtype
        assert bundle[key].shape == value.shape
        assert np.array_equal(bundle[key], value)
    with pytest.raises(KeyError):
        bundle["nothing"]
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_bundle(tmp_path / "x", {f"a{ATTRIBUTE}": np.array(["text"])}, {})
    with pytest.raises(CheckpointError, match="is not the key of a variable"):
        write_bundle(tmp_path / "x", {"a": np.zeros(1)}, {})


def by_hand(
    folder: Path, tensors: dict[bytes, tuple[dict[str, Any], bytes]], shards: int = 1, endianness: int = 0
) -> Path:
    """Write a bundle from raw entries: ({field: value}, bytes)."""
    table = {b"": BundleHeader(num_shards=shards, endianness=endianness).SerializeToString()}
    data: dict[int, bytes] = dict.fromkeys(range(shards), b"")
    for key, (fields, body) in tensors.items():
        shard = fields.pop("shard_id", 0)
        shape, slices = fields.pop("shape"), fields.pop("slices", [])
        entry = BundleEntry(shard_id=shard, offset=len(data[shard]), size=len(body), **fields)
        entry.crc32c = mask_crc(google_crc32c.value(body))
        for side in shape:
            entry.shape.dim.add(size=side)
        for extents in slices:
            part = entry.slices.add()
            for start, length in extents:
                part.extent.add(start=start, length=max(length, 0))
        table[key] = entry.SerializeToString()
        data[shard] += body
    for number, body in data.items():
        (folder / f"x.data-{number:05d}-of-{shards:05d}").write_bytes(body)
    (folder / "x.index").write_bytes(write_table(table))
    return folder / "x"


def test_bfloat16_and_half(tmp_path: Path) -> None:
    """0x3FC0 is 1.5 and 0xC000 is -2 in bfloat16, the upper half of their float32."""
    body = struct.pack("<2H", 0x3FC0, 0xC000)
    halves = np.array([1.5, -2], np.float16).tobytes()
    bundle = Bundle(
        by_hand(tmp_path, {b"a": ({"dtype": 14, "shape": (2,)}, body), b"b": ({"dtype": 19, "shape": (2,)}, halves)})
    )
    assert bundle["a"].tolist() == [1.5, -2]
    assert bundle["a"].dtype == np.float32
    assert bundle["b"].tolist() == [1.5, -2]


def test_several_shards(tmp_path: Path) -> None:
    values = np.array([1, 2], "<f4").tobytes()
    bundle = Bundle(
        by_hand(
            tmp_path,
            {b"a": ({"dtype": 1, "shape": (2,), "shard_id": 1}, values), b"b": ({"dtype": 1, "shape": (1, 2)}, values)},
            shards=2,
        )
    )
    assert bundle["a"].tolist() == [1, 2]
    assert bundle["b"].tolist() == [[1, 2]]


def test_big_endian_is_refused(tmp_path: Path) -> None:
    """Nothing proves the mark, and a changed one would turn every number around."""
    values = np.array([1, 2], ">f4").tobytes()
    with pytest.raises(CheckpointError, match="big-endian machine"):
        Bundle(by_hand(tmp_path, {b"a": ({"dtype": 1, "shape": (2,)}, values)}, endianness=1))


def test_slices(tmp_path: Path) -> None:
    """A 3 × 2 tensor in two slices of rows, as partitioned variables are stored."""
    first, rest = ((0, 1), (0, -1)), ((1, 2), (0, -1))
    whole = ({"dtype": 1, "shape": (3, 2), "slices": [first, rest]}, b"")
    parts = {
        slice_key("v", first): ({"dtype": 1, "shape": (1, 2)}, np.array([[1, 2]], np.float32).tobytes()),
        slice_key("v", rest): ({"dtype": 1, "shape": (2, 2)}, np.array([[3, 4], [5, 6]], np.float32).tobytes()),
    }
    bundle = Bundle(by_hand(tmp_path, {b"v": whole, **parts}))
    assert list(bundle) == ["v"]
    assert bundle["v"].tolist() == [[1, 2], [3, 4], [5, 6]]
    parts.pop(slice_key("v", rest))
    whole = ({"dtype": 1, "shape": (3, 2), "slices": [first, rest]}, b"")
    parts = {slice_key("v", first): ({"dtype": 1, "shape": (1, 2)}, np.array([[1, 2]], np.float32).tobytes())}
    with pytest.raises(CheckpointError, match="the slice .* is missing"):
        Bundle(by_hand(tmp_path, {b"v": whole, **parts}))["v"]


@pytest.mark.parametrize(
    ("path", "wanted"),
    [("", "ckpt-1"), ("ckpt-1", "ckpt-1"), ("ckpt-1.index", "ckpt-1")],
)
def test_what_a_path_may_be(path: str, wanted: str) -> None:
    assert find_bundle(RECORDED / path).name == wanted


def test_a_folder_without_state_gives_the_newest(copy: Path) -> None:
    (copy / "checkpoint").unlink()
    for suffix in ("index", "data-00000-of-00001"):
        shutil.copy(copy / f"ckpt-1.{suffix}", copy / f"ckpt-10.{suffix}")
        shutil.copy(copy / f"ckpt-1.{suffix}", copy / f"ckpt-9.{suffix}")
    assert find_bundle(copy).name == "ckpt-10"
    (copy / "checkpoint").write_text('model_checkpoint_path: "/gone/elsewhere/ckpt-9"\n')
    assert find_bundle(copy).name == "ckpt-9"


def test_a_saved_model(copy: Path, tmp_path: Path) -> None:
    variables = tmp_path / "saved_model" / "variables"
    variables.mkdir(parents=True)
    for suffix in ("index", "data-00000-of-00001"):
        shutil.copy(copy / f"ckpt-1.{suffix}", variables / f"variables.{suffix}")
    assert Bundle(tmp_path / "saved_model").verify() == []


def test_missing_and_foreign(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="ckpt-2.index is missing; there is ckpt-1.index"):
        Bundle(copy / "ckpt-2")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CheckpointError, match="no TensorFlow checkpoint"):
        Bundle(empty)
    (copy / "ckpt-1.data-00000-of-00001").rename(copy / "away")
    with pytest.raises(CheckpointError, match=r"1 of 1 data files missing: ckpt-1.data-00000-of-00001"):
        Bundle(copy)
    (copy / "ckpt-1.index").write_bytes(b"not a table, but longer than the forty-eight bytes of a footer")
    with pytest.raises(CheckpointError, match="not the index of a TensorFlow checkpoint"):
        Bundle(copy)


@pytest.mark.parametrize("keep", [0, 10, 48, 1000, 20000, -1])
def test_truncated_index(copy: Path, keep: int) -> None:
    path = copy / "ckpt-1.index"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"ckpt-1\.index: .*(cut off|damaged|empty)"):
        Bundle(copy)


@pytest.mark.parametrize("at", [100, 5000, 30000])
def test_flipped_byte_in_the_index(copy: Path, at: int) -> None:
    path = copy / "ckpt-1.index"
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="checksum of the block at byte"):
        Bundle(copy)


def test_truncated_and_damaged_data(copy: Path) -> None:
    path = copy / "ckpt-1.data-00000-of-00001"
    original = path.read_bytes()
    path.write_bytes(original[: len(original) // 2])
    bundle = Bundle(copy)
    problems = bundle.verify()
    assert len(problems) > 50
    assert all("cut off" in problem for problem in problems)
    damaged = bytearray(original)
    key = next(key for key in bundle if "kernel" in key)
    damaged[bundle.entries[key].offset + 3] ^= 1
    path.write_bytes(bytes(damaged))
    bundle = Bundle(copy)
    (problem,) = bundle.verify()
    assert key in problem
    with pytest.raises(CheckpointError, match="its checksum does not hold"):
        bundle[key]
    other = next(name for name in bundle if name != key)
    assert bundle[other].size, "what is whole still reads"


def test_damaged_graph(copy: Path) -> None:
    bundle = Bundle(copy)
    path = copy / "ckpt-1.data-00000-of-00001"
    data = bytearray(path.read_bytes())
    data[bundle.entries[GRAPH_KEY].offset + 100] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="_CHECKPOINTABLE_OBJECT_GRAPH: damaged"):
        Bundle(copy).graph()


def test_a_checkpoint_by_name_has_no_graph(tmp_path: Path) -> None:
    body = np.zeros(2, np.float32).tobytes()
    prefix = by_hand(tmp_path, {b"FeatureExtractor/MobilenetV1/Conv2d_0/weights": ({"dtype": 1, "shape": (2,)}, body)})
    bundle = Bundle(prefix)
    assert not bundle.is_object_based
    with pytest.raises(CheckpointError, match="has no graph of objects"):
        bundle.graph()


def test_paths_and_aliases(tmp_path: Path) -> None:
    key = f"model/_efficientnet/layer/kernel{ATTRIBUTE}"
    prefix = write_bundle(
        tmp_path / "a", {key: np.ones(2, np.float32)}, {"model/backbone/layer": "model/_efficientnet/layer"}
    )
    graph = Bundle(prefix).graph()
    assert graph.resolve("model/backbone/layer/kernel") == key
    assert graph.resolve("model/_efficientnet/layer/kernel") == key
    assert graph.resolve("model/_efficientnet/layer") is None
    assert graph.resolve("model/_efficientnet/layer/kernel", "average") is None
    assert graph.resolve("nowhere") is None


def test_full_disk_leaves_nothing_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("boxwright.base.files.os.fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        write_bundle(tmp_path / "ckpt-1", {f"a{ATTRIBUTE}": np.ones(3)}, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"shape": (2**20, 2**20)}, "do not fit shape"),
        ({"shape": (-1, -4)}, "do not fit shape"),
        ({"shape": (1,), "offset": -4}, "cut off"),
        ({"shape": (1,), "size": 2**40}, "cut off"),
        ({"shape": (1,), "shard_id": 7}, "data file 7 of 1"),
        ({"shape": (1,), "shard_id": -1}, "data file -1 of 1"),
        ({"shape": (2**20, 2**20), "slices": [((0, 1), (0, 1))]}, "do not fill shape|is missing"),
    ],
)
def test_an_index_that_lies(tmp_path: Path, fields: dict[str, Any], wanted: str) -> None:
    """A damaged or malicious index must not ask for terabytes, or for another file's bytes."""
    body = np.ones(1, np.float32).tobytes()
    entry = BundleEntry(dtype=1, size=4, crc32c=mask_crc(google_crc32c.value(body)))
    for side in fields.pop("shape"):
        entry.shape.dim.add(size=side)
    for extents in fields.pop("slices", []):
        part = entry.slices.add()
        for start, length in extents:
            part.extent.add(start=start, length=length)
    for name, value in fields.items():
        setattr(entry, name, value)
    (tmp_path / "x.data-00000-of-00001").write_bytes(body)
    header = BundleHeader(num_shards=1).SerializeToString()
    (tmp_path / "x.index").write_bytes(write_table({b"": header, b"v": entry.SerializeToString()}))
    with pytest.raises(CheckpointError, match=wanted):
        Bundle(tmp_path / "x")["v"]


def test_headers_and_names_that_lie(tmp_path: Path) -> None:
    (tmp_path / "x.index").write_bytes(write_table({b"": BundleHeader(num_shards=20_000_000).SerializeToString()}))
    with pytest.raises(CheckpointError, match="20000000 data files"):
        Bundle(tmp_path / "x")
    prefix = by_hand(tmp_path, {b"\xff\xfe": ({"dtype": 1, "shape": (1,)}, np.ones(1, np.float32).tobytes())})
    with pytest.raises(CheckpointError, match="a name is not text"):
        Bundle(prefix)


def test_a_name_with_slashes_and_dots() -> None:
    """A key escapes them; the graph's own names, which TF compares, have them as they are."""
    keys = {f"model/heads/{name}/kernel{ATTRIBUTE}": name for name in ("box.Sscale", "a..b", "a...Sb")}
    graph = build_graph(keys, {})
    names = {child.local_name for node in graph.nodes for child in node.children}
    assert names == {"model", "heads", "kernel", "box/scale", "a.b", "a./b"}
    read = ObjectGraph(graph)
    for key in keys:
        assert read.resolve(key.removesuffix(ATTRIBUTE)) == key
