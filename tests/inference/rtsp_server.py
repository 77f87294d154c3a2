"""A camera on the network, on the loopback address: RTSP 1.0 (RFC 2326) with H.264 in RTP (RFC 6184) over the same TCP."""

from __future__ import annotations

import base64
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import av
import numpy as np
from numpy.typing import NDArray

_RATE = 25
_CLOCK = 90_000
_MOST = 1200  # bytes of a packet


@contextmanager
def serving_pictures(pictures: Sequence[NDArray[np.uint8]], clients: int = 1) -> Iterator[str]:
    """Serve pictures to one client after the other as fast as they read them, and hang up on each.

    Yields:
        The address.
    """
    units = [_units(packet) for packet in _encoded(pictures)]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_serve, args=(listening, units, clients), daemon=True)
        thread.start()
        yield f"rtsp://127.0.0.1:{listening.getsockname()[1]}/camera"


def _encoded(pictures: Sequence[NDArray[np.uint8]]) -> list[bytes]:
    encoder = av.CodecContext.create("libx264", "w")
    encoder.height, encoder.width = pictures[0].shape[:2]
    encoder.pix_fmt, encoder.framerate = "yuv420p", _RATE
    encoder.options = {"preset": "ultrafast", "tune": "zerolatency", "x264-params": "repeat-headers=1:annexb=1"}
    frames = [av.VideoFrame.from_ndarray(picture, format="rgb24") for picture in pictures]
    return [bytes(packet) for frame in [*frames, None] for packet in encoder.encode(frame)]


def _units(packet: bytes) -> list[bytes]:
    parts = packet.replace(b"\0\0\0\1", b"\0\0\1").split(b"\0\0\1")
    return [part for part in parts if part]


def _serve(listening: socket.socket, units: list[list[bytes]], clients: int) -> None:
    for _ in range(clients):
        client, _ = listening.accept()
        _serve_client(client, units)


def _serve_client(client: socket.socket, units: list[list[bytes]]) -> None:
    # A client may have enough before the end.
    with suppress(OSError), client, client.makefile("rb") as reader:
        while line := reader.readline().decode().strip():
            method = line.split()[0]
            headers = dict(_header(text) for text in iter(lambda: reader.readline().decode().strip(), ""))
            client.sendall(_answer(method, line.split()[1], headers["cseq"], units[0]))
            if method == "PLAY":
                _play(client, units)
                return


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.lower(), value.strip()


def _answer(method: str, address: str, number: str, first: list[bytes]) -> bytes:
    more = {
        "OPTIONS": ["Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN"],
        "SETUP": ["Session: 1", "Transport: RTP/AVP/TCP;unicast;interleaved=0-1"],
        "PLAY": ["Session: 1"],
    }.get(method, [])
    body = ""
    if method == "DESCRIBE":
        sets = ",".join(base64.b64encode(unit).decode() for unit in first if unit[0] & 31 in (7, 8))
        body = "\r\n".join(
            [
                "v=0", "o=- 0 0 IN IP4 127.0.0.1", "s=-", "t=0 0", "m=video 0 RTP/AVP 96", f"a=rtpmap:96 H264/{_CLOCK}",
                f"a=fmtp:96 packetization-mode=1;sprop-parameter-sets={sets}", "a=control:0", "",
            ]
        )  # fmt: skip
        more = ["Content-Type: application/sdp", f"Content-Base: {address}/", f"Content-Length: {len(body)}"]
    return "\r\n".join(["RTSP/1.0 200 OK", f"CSeq: {number}", *more, "", body]).encode()


def _play(client: socket.socket, units: list[list[bytes]]) -> None:
    number = 0
    for picture, parts in enumerate(units):
        payloads = [payload for unit in parts for payload in _payloads(unit)]
        for place, payload in enumerate(payloads):
            last = 0x80 if place == len(payloads) - 1 else 0
            packet = struct.pack(">BBHII", 0x80, 96 | last, number, picture * _CLOCK // _RATE, 7) + payload
            client.sendall(b"$\0" + struct.pack(">H", len(packet)) + packet)
            number += 1


def _payloads(unit: bytes) -> Iterator[bytes]:
    """Yield a unit as one packet, or as fragments (FU-A)."""
    if len(unit) <= _MOST:
        yield unit
        return
    for start in range(1, len(unit), _MOST):
        mark = (0x80 if start == 1 else 0) | (0x40 if start + _MOST >= len(unit) else 0)
        yield bytes([unit[0] & 0xE0 | 28, mark | unit[0] & 31]) + unit[start : start + _MOST]
