"""Indexes of the model zoo's checkpoints: the real ones, where `BOXWRIGHT_CHECKPOINT_INDEXES` names them, and like ones."""

from __future__ import annotations

import json
import shutil
import struct
from collections import Counter
from pathlib import Path

import pytest
import torch

from boxwright.base.crc import masked_crc
from boxwright.base.errors import CheckpointError
from boxwright.base.varint import write_varint
from boxwright.nn.tensorflow_names.checkpoint_keys import ATTRIBUTE
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config
from boxwright.weights.load_weights import load_weights
from boxwright.weights.sources import is_tensorflow
from boxwright.weights.tensorflow.bundle import DTYPES, Bundle, read_index, write_bundle
from boxwright.weights.tensorflow.sstable import decompress, read_table
from boxwright.weights.tensorflow.variables import tf2_variables, to_tensorflow
from tests.conftest import GOLDEN, extra_folder

RECORDED = GOLDEN / "checkpoint" / "tf2_checkpoint"


def test_real_indexes_hold_what_is_listed() -> None:
    folder = extra_folder("BOXWRIGHT_CHECKPOINT_INDEXES")
    if folder is None:
        pytest.skip("BOXWRIGHT_CHECKPOINT_INDEXES names no folder of real checkpoint indexes")
    expected = json.loads((folder / "expected.json").read_text())
    assert len(expected) == 4
    for name, tensors in expected.items():
        _, entries = read_index(folder / name)
        found = {key.decode(): [entry.dtype, list(entry.shape)] for key, entry in entries.items()}
        assert found == {key: [DTYPES[dtype], shape] for key, (dtype, shape) in tensors.items()}, name


# Worked by hand from the format's description: a literal of 4, then copies with offsets of one, two and four bytes.
@pytest.mark.parametrize(
    ("block", "meaning"),
    [
        (b"\x00", b""),
        (b"\x04\x0cabcd", b"abcd"),
        (b"\x09\x0cabcd\x05\x04", b"abcdabcda"),
        (b"\x08\x0cabcd\x0e\x02\x00", b"abcdcdcd"),
        (b"\x06\x0cabcd\x07\x04\x00\x00\x00", b"abcdab"),
        (b"\x0b\x00x\x19\x01", b"x" * 11),
        (b"\x46\xf0\x45" + b"y" * 70, b"y" * 70),
        (b"\x80\x02\xf4\xff\x00" + b"z" * 256, b"z" * 256),
    ],
)
def test_snappy_blocks(block: bytes, meaning: bytes) -> None:
    assert decompress(block) == meaning


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (b"", "end within"),
        (b"\x05\x0cabcd", "holds 4 bytes but states 5"),
        (b"\x03\x0cabcd", "more than the 3"),
        (b"\x04\x0cab", "cut off"),
        (b"\x08\x0cabcd\x05", "cut off"),
        (b"\x08\x0cabcd\x01\x05", "before its start"),
        (b"\x08\x0cabcd\x01\x00", "before its start"),
        (b"\x46\xf0", "cut off"),
        (b"\xff\xff\xff\xff\xff\x01\x00x", "INDEX_BYTES"),
    ],
)
def test_damaged_snappy_blocks(block: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        decompress(block)


def one_block_table(kind: int, block: bytes) -> bytes:
    """Write a table of one block, in a compression, as LevelDB lays it out."""
    out = bytearray()

    def append(body: bytes, how: int) -> bytes:
        handle = write_varint(len(out)) + write_varint(len(body))
        out.extend(body + bytes([how]) + struct.pack("<I", masked_crc(body + bytes([how]))))
        return handle

    def entries(key: bytes, value: bytes) -> bytes:
        return b"\0" + write_varint(len(key)) + write_varint(len(value)) + key + value + struct.pack("<II", 0, 1)

    data = append(block, kind)
    meta = append(struct.pack("<II", 0, 1), 0)
    index = append(entries(b"k", data), 0)
    return bytes(out) + (meta + index).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def test_a_block_says_how_it_is_compressed() -> None:
    plain = b"\0\x01\x01kv" + struct.pack("<II", 0, 1)
    compressed = write_varint(len(plain)) + bytes([(len(plain) - 1) << 2]) + plain
    assert read_table(one_block_table(0, plain), "t") == read_table(one_block_table(1, compressed), "t") == {b"k": b"v"}
    with pytest.raises(CheckpointError, match=r"compressed in an unknown way \(4\)"):
        read_table(one_block_table(4, plain), "t")
    with pytest.raises(CheckpointError, match="damaged: a compressed block"):
        read_table(one_block_table(1, compressed[:-3]), "t")


@pytest.mark.parametrize("inside", ["checkpoint", "saved_model"])
def test_an_exported_folder_is_a_checkpoint(inside: str, tmp_path: Path) -> None:
    target = tmp_path / "exported" / inside
    if inside == "checkpoint":
        shutil.copytree(RECORDED, target)
    else:
        (target / "variables").mkdir(parents=True)
        for path in RECORDED.glob("ckpt-1.*"):
            shutil.copy(path, target / "variables" / path.name.replace("ckpt-1", "variables"))
    (tmp_path / "exported" / "pipeline.config").write_text("model { }")
    assert is_tensorflow(tmp_path / "exported")
    assert list(Bundle(tmp_path / "exported")) == list(Bundle(RECORDED))


# Index → the configuration of its detector, in the folder of TF's configurations.
DETECTORS = {
    "ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8.ckpt-0.index": "ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8",
    "ssd_mobilenet_v1_fpn_640x640_1-saved_model.index": "ssd_mobilenet_v1_fpn_640x640_coco17_tpu-8",
    "user_resnet50_fpn.ckpt-0.index": "ssd_resnet50_v1_fpn_640x640_coco17_tpu-8",
}


@pytest.mark.slow_cases("ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8.ckpt-0.index", "user_resnet50_fpn.ckpt-0.index")
@pytest.mark.parametrize("index", DETECTORS)
def test_the_variables_of_a_detector_are_those_of_its_index(index: str) -> None:
    """By name and shape; the SavedModel lists its variables by part, so that shapes alone can be told there."""
    folder, configs = extra_folder("BOXWRIGHT_CHECKPOINT_INDEXES"), extra_folder("BOXWRIGHT_CONFIGS")
    if folder is None or configs is None:
        pytest.skip("BOXWRIGHT_CHECKPOINT_INDEXES and BOXWRIGHT_CONFIGS name no folders")
    expected = {key: shape for key, (_, shape) in json.loads((folder / "expected.json").read_text())[index].items()}
    with torch.device("meta"):
        network = build_detector(load_config(configs / "tf2" / f"{DETECTORS[index]}.config")).network
    variables = tf2_variables(network)
    assert not variables.unnamed
    state = network.state_dict()
    ours = {}
    for name, variable in variables.named.items():
        shape = list(state[name].shape)
        ours[variable.key] = (
            [shape[variable.axes.index(axis)] for axis in range(len(shape))] if variable.axes else shape
        )
    if "saved_model" in index:
        parts = ("_box_predictor", "_feature_extractor")
        for part in parts:
            theirs = Counter(str(shape) for key, shape in expected.items() if f"/{part}/" in key)
            assert Counter(str(shape) for key, shape in ours.items() if f"/{part}/" in key) == theirs
        return
    others = {key for key in expected if not key.startswith("model/")}
    assert others <= {"_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter/.ATTRIBUTES/VARIABLE_VALUE"}
    assert ours == {key: shape for key, shape in expected.items() if key not in others}


def test_a_saved_model_that_lists_its_variables(tmp_path: Path) -> None:
    """Its keys are numbers; the graph of objects still has the paths by which TF2's checkpoints name them."""
    from tests.weights.test_load_weights import small

    detector = small()
    arrays, _ = to_tensorflow(detector.network)
    keys, aliases = {}, {}
    for number, (key, array) in enumerate(arrays.items()):
        path = key.removesuffix(ATTRIBUTE).replace("model/", "_model/", 1)
        part = path.split("/")[1]
        keys[f"_model/{part}/variables/{number}{ATTRIBUTE}"] = array
        aliases[path] = f"_model/{part}/variables/{number}"
    write_bundle(tmp_path / "saved_model" / "variables" / "variables", keys, aliases)
    other = small(seed=1)
    report = load_weights(other, tmp_path / "saved_model")
    assert not report.kept
    assert all(key.startswith("_model/") and "/variables/" in key for key in report.restored.values())
    state = detector.network.state_dict()
    assert all((value == state[name]).all() for name, value in other.network.state_dict().items())
