"""What is opened is what was written, of all formats; and what runs is what was opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from boxwright.base.errors import ExportError
from boxwright.runtime.export_file import check_seal, packed_members, read_export_file, unpacked_members
from boxwright.runtime.metadata import UNSEALED, seal
from boxwright.runtime.sessions import read_metadata
from boxwright.weights.exports import open_export
from tests.exporters.tiny_exports import PICTURE, copied_export

SUFFIXES = (".onnx", ".xml", ".pt2", ".tflite")


@pytest.mark.slow_cases(".pt2", ".tflite")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_was_written_opens_and_says_its_checksum(suffix: str, tmp_path: Path) -> None:
    path = copied_export(suffix, tmp_path)
    check_seal(read_export_file(path))
    assert open_export(path).metadata.checksum != UNSEALED
    assert read_metadata(path).checksum.startswith("boxwright-sha256:")


def _refused(path: Path) -> bool:
    try:
        check_seal(read_export_file(path))
    except ExportError:
        return True
    return False


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_any_changed_byte_is_refused(suffix: str, tmp_path: Path) -> None:
    """Of an archive's bytes some mean nothing (dates of its members): those may change."""
    path = copied_export(suffix, tmp_path)
    rng = np.random.default_rng(1)
    files = [path, *([path.with_suffix(".bin")] if suffix == ".xml" else [])]
    for file in files:
        whole = file.read_bytes()
        members = unpacked_members(whole, "it") if suffix == ".pt2" else {}
        refused = 0
        for place in rng.choice(len(whole), min(150, len(whole)), replace=False):
            changed = bytearray(whole)
            changed[place] ^= 1 << int(rng.integers(8))
            file.write_bytes(changed)
            if _refused(path):
                refused += 1
            else:
                assert suffix == ".pt2", place
                assert unpacked_members(bytes(changed), "it") == members
        assert refused >= (100 if suffix == ".pt2" else min(150, len(whole)))
        file.write_bytes(whole)


@pytest.mark.slow_cases(".xml", ".tflite")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_edited_file_is_opened_only_where_that_is_said(suffix: str, tmp_path: Path) -> None:
    """A legitimate edit, of the metric that a file tells: 7 steps become 8."""
    path = copied_export(suffix, tmp_path)
    old, new = (b"&quot;step&quot;: 7", b"&quot;step&quot;: 8") if suffix == ".xml" else (b'"step": 7', b'"step": 8')
    if suffix == ".pt2":
        members = unpacked_members(path.read_bytes(), "it")
        path.write_bytes(packed_members({name: part.replace(old, new) for name, part in members.items()}))
    else:
        path.write_bytes(path.read_bytes().replace(old, new))
    for opened in (open_export, read_metadata):
        with pytest.raises(ExportError, match="is not as it was written.*--allow_edited"):
            opened(path)
        found = opened(path, allow_edited=True)
        assert getattr(found, "metadata", found).step == 8  # type: ignore[attr-defined]


def test_a_file_without_a_checksum_is_refused(tmp_path: Path) -> None:
    path = copied_export(".onnx", tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"boxwright-sha256:", b"boxwright-sha255:"))
    with pytest.raises(ExportError, match="has no checksum"):
        open_export(path)
    path.write_bytes(whole + whole)
    with pytest.raises(ExportError, match="is not as it was written"):
        open_export(path)


def test_weights_that_are_not_beside_their_xml_are_named(tmp_path: Path) -> None:
    path = copied_export(".xml", tmp_path)
    path.with_suffix(".bin").unlink()
    with pytest.raises(ExportError, match=r"its weights, tiny\.bin, are not beside it"):
        open_export(path)


def test_openvino_runs_what_it_opened_whatever_becomes_of_the_file(tmp_path: Path) -> None:
    """A runtime that maps the weights ends by SIGBUS when they are cut, and finds other boxes when they are changed."""
    path = copied_export(".xml", tmp_path)
    session = open_export(path).session
    before = session.run(PICTURE)
    weights = path.with_suffix(".bin")
    data = weights.read_bytes()
    with weights.open("r+b") as file:  # in place: a new file of that name would leave the mapped one as it was
        file.write(bytes(len(data)))
    after = session.run(PICTURE)
    with weights.open("r+b") as file:
        file.truncate(0)
    last = session.run(PICTURE)
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name])
        np.testing.assert_array_equal(value, last[name])
    np.testing.assert_allclose(before["detection_scores"], 0.2, atol=1e-6)  # 51 / 255


def test_a_seal_has_one_place() -> None:
    with pytest.raises(ValueError, match="found 0"):
        seal([b"nothing"])
    with pytest.raises(ValueError, match="found 2"):
        seal([UNSEALED.encode(), UNSEALED.encode()])
    parts = seal([b"a" + UNSEALED.encode(), b"b"])
    assert [len(part) for part in parts] == [1 + len(UNSEALED), 1]
    # hashlib over the lengths and the parts, by hand: sha256 of (82, "a" + zeros, 1, "b").
    import hashlib

    content = (82).to_bytes(8, "little") + b"a" + UNSEALED.encode() + (1).to_bytes(8, "little") + b"b"
    assert parts[0].endswith(hashlib.sha256(content).hexdigest().encode())
