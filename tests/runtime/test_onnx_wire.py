from __future__ import annotations

import pytest

from boxwright.runtime.foreign_file import has_external_data

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
