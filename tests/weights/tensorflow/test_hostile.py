"""Checkpoints of TensorFlow that were made to hurt: their checksums hold, and what they say cannot be."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import boxwright as bw
from boxwright.base.errors import BoxwrightError, CheckpointError
from boxwright.nn.tensorflow_names.checkpoint_keys import ATTRIBUTE
from boxwright.weights.sources import is_tensorflow
from boxwright.weights.tensorflow.bundle import Bundle, find_bundle, write_bundle
from boxwright.weights.tensorflow.object_graph import (
    GRAPH_KEY,
    BundleEntry,
    BundleHeader,
    ObjectGraph,
    ObjectGraphProto,
)
from boxwright.weights.tensorflow.sstable import read_table, write_table
from boxwright.weights.tensorflow.variables import from_tensorflow
from tests.fuzz.guard import guarded
from tests.fuzz.readers import small_checkpoint

KEY = f"model/a/kernel{ATTRIBUTE}".encode()


def bundle(folder: Path, change: Callable[[dict[bytes, bytes]], None]) -> Path:
    """A checkpoint of one variable, whose index is changed and written with checksums that hold."""
    prefix = write_bundle(folder / "ckpt-1", {KEY.decode(): np.arange(6, dtype=np.float32).reshape(2, 3)}, {})
    index = Path(f"{prefix}.index")
    table = read_table(index.read_bytes(), "x")
    change(table)
    index.write_bytes(write_table(table))
    return prefix


def entry(**fields: Any) -> Callable[[dict[bytes, bytes]], None]:
    def change(table: dict[bytes, bytes]) -> None:
        proto = BundleEntry.FromString(table[KEY])
        for name, value in fields.items():
            if name == "slices":
                for extents in value:
                    part = proto.slices.add()
                    for start, length in extents:
                        part.extent.add(start=start, length=length)
            else:
                setattr(proto, name, value)
        table[KEY] = proto.SerializeToString()

    return change


def header(**fields: Any) -> Callable[[dict[bytes, bytes]], None]:
    def change(table: dict[bytes, bytes]) -> None:
        proto = BundleHeader.FromString(table[b""])
        for name, value in fields.items():
            setattr(proto, name, value)
        table[b""] = proto.SerializeToString()

    return change


@pytest.mark.slow_except("change7")
@pytest.mark.parametrize(
    "change",
    [
        entry(slices=[[(0, 1)] * 7]),
        entry(slices=[[(-5, 3), (0, 3)]]),
        entry(slices=[[(0, 2**40), (0, 3)]]),
        entry(offset=2**62),
        entry(size=-1),
        entry(shard_id=2**31 - 1),
        entry(dtype=7),
        header(endianness=1),
        header(num_shards=0),
        header(num_shards=-5),
        header(num_shards=2**31 - 1),
        lambda table: table.update({KEY: b"\xff\xff"}),
        lambda table: table.update({b"\xff\xff": table[KEY]}),
        lambda table: table.update({GRAPH_KEY.encode(): table[KEY]}),
        lambda table: table.pop(b""),
    ],
)
def test_entries_that_cannot_be(tmp_path: Path, change: Callable[[dict[bytes, bytes]], None]) -> None:
    prefix = bundle(tmp_path, change)

    def read() -> None:
        found = Bundle(prefix)
        problems = found.verify()
        if problems:
            raise CheckpointError(problems[0])
        found.graph()
        _ = found[KEY.decode()]

    outcome = guarded(read)
    assert outcome.kind == "refused" or "KeyError" in outcome.text, outcome.text


def test_weights_of_whole_numbers_are_refused(tmp_path: Path) -> None:
    """Four bytes of a float are four bytes of an int: the type alone changes, and nothing else could tell."""
    from boxwright.weights.tensorflow.variables import to_tensorflow

    path = tmp_path / "c.pt"
    path.write_bytes(small_checkpoint()[0])
    detector, _, _ = bw.restore_detector(path)
    arrays, _ = to_tensorflow(detector.network)
    first = next(iter(arrays))
    arrays[first] = arrays[first].view(np.int32)
    with pytest.raises(CheckpointError, match="weights are floating-point numbers, found int32"):
        from_tensorflow(detector.network, arrays)


@pytest.mark.slow
def test_keys_that_grow() -> None:
    """Each key repeats the one before and adds a byte: kilobytes on disk, gigabytes in memory."""
    from boxwright.base.varint import write_varint

    block, last = bytearray(), 0
    for length in range(1, 60_000):
        block += write_varint(last) + write_varint(1) + write_varint(0) + b"k"
        last = length
    data = _table_of(bytes(block) + struct.pack("<II", 0, 1))
    outcome = guarded(lambda: read_table(data, "x.index"), memory=2**31)
    assert outcome.kind == "refused", outcome.text
    assert "BOXWRIGHT_MAX_INDEX_BYTES" in outcome.text


def test_a_block_that_is_named_again_and_again() -> None:
    from boxwright.base.varint import write_varint

    entries = b"".join(
        write_varint(0) + write_varint(4) + write_varint(1) + struct.pack(">I", n) + b"v" for n in range(900)
    )
    data = _table_of(entries + struct.pack("<II", 0, 1), times=20_000)
    outcome = guarded(lambda: read_table(data, "x.index"))
    assert outcome.kind == "refused", outcome.text
    assert "overlaps the one before" in outcome.text


def _table_of(block: bytes, times: int = 1) -> bytes:
    """A table with one block of data, which its index names so often."""
    from boxwright.base.crc import masked_crc
    from boxwright.base.varint import write_varint
    from boxwright.weights.tensorflow.sstable import _MAGIC

    out = bytearray()

    def append(body: bytes) -> bytes:
        handle = write_varint(len(out)) + write_varint(len(body))
        out.extend(body + b"\0" + struct.pack("<I", masked_crc(body + b"\0")))
        return handle

    handle = append(block)
    index = b"".join(
        write_varint(0) + write_varint(4) + write_varint(len(handle)) + struct.pack(">I", n) + handle
        for n in range(times)
    )
    tail = append(struct.pack("<II", 0, 1)) + append(index + struct.pack("<II", 0, 1))
    return bytes(out) + tail.ljust(40, b"\0") + struct.pack("<Q", _MAGIC)


@pytest.mark.parametrize("node", [-(10**9), -1, 5, 2**31 - 1])
def test_graphs_with_nodes_that_are_not_there(node: int) -> None:
    proto = ObjectGraphProto()
    root = proto.nodes.add()
    root.children.add(node_id=node, local_name="a")
    root.children.add(node_id=1, local_name="b")
    proto.nodes.add().slot_variables.add(original_variable_node_id=1, slot_name="average", slot_variable_node_id=node)
    graph = ObjectGraph(proto)
    assert graph.resolve("a/b") is None
    assert graph.resolve("a") is None
    assert graph.resolve("b", "average") is None
    assert ObjectGraph(ObjectGraphProto()).resolve("a") is None


@pytest.mark.parametrize("named", ["/", "", "..", "x" * 5000, "a\0b", "ckpt-\n"])
def test_a_state_file_that_names_nothing(tmp_path: Path, named: str) -> None:
    (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{named}"\n')
    with pytest.raises(CheckpointError, match="no TensorFlow checkpoint"):
        find_bundle(tmp_path)


@pytest.mark.parametrize("path", ["x" * 5000, "a\0b", "none/ckpt-0", "/"])
def test_paths_that_are_no_checkpoint(path: str) -> None:
    assert not is_tensorflow(path)
    with pytest.raises(BoxwrightError):
        bw.restore_detector(path)


def test_an_index_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "ckpt-1.index").mkdir()
    for path in (tmp_path, tmp_path / "ckpt-1", tmp_path / "ckpt-1.index"):
        with pytest.raises(CheckpointError):
            Bundle(path)
