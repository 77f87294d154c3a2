"""What a server needs beside a model."""

from __future__ import annotations

from dataclasses import dataclass

from boxwright.settings import setting

__all__ = ["ServerSettings"]

_LIMITS = "Limits"


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How requests are taken and answered; `boxwright serve` has an option for each."""

    host: str = setting("127.0.0.1", "Where to listen; 0.0.0.0 for every network.")
    port: int = setting(8501, "Which port; 0 for any that is free.", least=0, most=65535)
    max_batch: int = setting(8, "The most pictures that run together.", least=1)
    batch_wait_ms: float = setting(2.0, "How long the first of a batch waits for others, in milliseconds.", least=0)
    threads: int = setting(0, "Threads of the runtime; 0 for what it chooses.", least=0)
    queue: int = setting(64, "The most pictures that wait; beyond, requests are answered 503.", _LIMITS, 1)
    timeout_s: float = setting(10.0, "Seconds after which a request is answered 504.", _LIMITS, 0.001)
    grace_s: float = setting(
        20.0, "Seconds that requests begun have to finish when the server is told to end.", _LIMITS, 0
    )
    max_body_mib: float = setting(20.0, "The largest request, in MiB.", _LIMITS, 0.001)
    max_pixels: int = setting(50_000_000, "The most pixels of a picture, read before it is decoded.", _LIMITS, 1)
    max_images: int = setting(32, "The most pictures of a request.", _LIMITS, 1)
