"""Changes to bytes that damaged files and hostile people make."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_ODD = [
    b"nan",
    b"inf",
    b"-1",
    b"0",
    b"1e400",
    b"9" * 50,
    b"2147483648",
    b"-9223372036854775808",
    b"1.5",
    b"true",
    b"null",
]
_ODD += [
    b'""',
    b"''",
    b"\0",
    b"\xff\xfe",
    "²".encode(),
    "\u2028".encode(),
    b"\xc2\x85",
    b"../../x",
    b"/etc/passwd",
    b"a" * 5000,
]
_ODD += [
    b"{",
    b"}",
    b"[",
    b"]",
    b"<",
    b">",
    b":",
    b"&x",
    b"*x",
    b"\\",
    b"\n",
    b"%s",
    b"\xed\xa0\x80",
    b"[[[[",
    b"{{{{",
    b"e",
]
_NUMBER = re.compile(rb"-?\d+(\.\d+)?")


def mutate(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Return data with one to four changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        data = rng.choice(_CHANGES)(data, rng, others)
    return data


def _place(data: bytes, rng: random.Random) -> int:
    # Beginnings and ends hold headers and directories.
    return rng.choice(
        (rng.randrange(len(data)), rng.randrange(min(len(data), 64)), -1 - rng.randrange(min(len(data), 64)))
    ) % len(data)


def _flip(data: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    if not data:
        return b"\0"
    out = bytearray(data)
    out[_place(data, rng)] ^= 1 << rng.randrange(8)
    return bytes(out)


def _byte(data: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    if not data:
        return b"\xff"
    out = bytearray(data)
    out[_place(data, rng)] = rng.choice((0, 255, 127, 128, rng.randrange(256)))
    return bytes(out)


def _cut(data: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _drop(data: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 1, 4, 8, rng.randrange(len(data) + 1))) :]


def _repeat(data: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    start = rng.randrange(len(data) + 1)
    piece = data[start : start + rng.choice((1, 8, 64, 400))]
    return data[:start] + piece * rng.choice((1, 2, 30)) + data[start:]


def _fill(data: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    start, length = rng.randrange(len(data) + 1), rng.choice((1, 8, 64, 512))
    return data[:start] + rng.choice((b"\0", b"\xff")) * min(length, len(data) - start) + data[start + length :]


def _insert(data: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + rng.choice(_ODD) + data[start:]


def _number(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return _insert(data, rng, others)
    one = rng.choice(found)
    return data[: one.start()] + rng.choice(_ODD) + data[one.end() :]


def _splice(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _swap_lines(data: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    lines = data.split(b"\n")
    rng.shuffle(lines)
    return b"\n".join(lines)


def _nest(data: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    opening, closing = rng.choice(((b"{", b"}"), (b"[", b"]"), (b"a {", b"}"), (b"<a>", b"</a>"), (b'{"a":', b"}")))
    start, times = rng.randrange(len(data) + 1), rng.choice((3, 70, 1500))
    return data[:start] + opening * times + closing * times + data[start:]


_CHANGES = (
    _flip,
    _flip,
    _byte,
    _byte,
    _cut,
    _drop,
    _repeat,
    _fill,
    _insert,
    _number,
    _number,
    _splice,
    _swap_lines,
    _nest,
)
