"""What a server needs beside a model."""

from __future__ import annotations

from dataclasses import dataclass

from boxwright.base.settings import setting

_LIMITS = "Limits"


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How requests are taken and answered; `boxwright serve` has an option for each."""

    host: str = setting("127.0.0.1", "Where to listen; 0.0.0.0 for every network.")
    port: int = setting(8501, "Which port; 0 for any that is free.", least=0, most=65535)
    max_batch: int = setting(8, "The most pictures that run together.", least=1)
    batch_wait_ms: float = setting(2.0, "How long the first of a batch waits for others, in milliseconds.", least=0)
    threads: int = setting(0, "Threads of the runtime; 0 for what it chooses.", least=0)
    decoders: int = setting(0, "Processes that decode pictures; 0 for one a usable CPU, 2 to 4.", least=0)
    allow_host: tuple[str, ...] = setting(
        (),
        "A name by which browsers reach the server, HOST or HOST:PORT; addresses and this machine's name are known.",
    )
    allow_edited: bool = setting(False, "Serve an exported file that is not as `boxwright export` wrote it.")
    queue: int = setting(64, "The most pictures that wait; beyond, requests are answered 503.", _LIMITS, 1)
    timeout_s: float = setting(
        10.0, "Seconds from a request's first byte after which it is answered 408 or 504.", _LIMITS, 0.001
    )
    grace_s: float = setting(
        20.0, "Seconds that requests begun have to finish when the server is told to end.", _LIMITS, 0
    )
    idle_s: float = setting(30.0, "Seconds after which a connection without a request is closed.", _LIMITS, 0.001)
    max_connections: int = setting(
        1000, "The most connections; fewer where the system allows fewer open files.", _LIMITS, 1
    )
    max_body_mib: float = setting(20.0, "The largest request, in MiB.", _LIMITS, 0.001)
    max_pixels: int = setting(50_000_000, "The most pixels of a picture, read before it is decoded.", _LIMITS, 1)
    max_request_pixels: int = setting(
        100_000_000, "The most pixels of a request's pictures together, read before any is decoded.", _LIMITS, 1
    )
    max_images: int = setting(32, "The most pictures of a request.", _LIMITS, 1)
    max_held_mib: float = setting(
        1024.0, "The most memory of all requests' bodies and pictures, in MiB; beyond, 503.", _LIMITS, 0.001
    )
    decoder_mib: float = setting(1024.0, "The most memory of a process that decodes, in MiB.", _LIMITS, 64)
