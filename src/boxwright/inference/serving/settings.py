"""Settings of the server."""

from __future__ import annotations

from dataclasses import dataclass

from boxwright.base.settings import name_device, setting

_LIMITS = "Limits"


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How requests are accepted and answered; `boxwright serve` has an option for each."""

    host: str = setting("127.0.0.1", "The address to listen on; 0.0.0.0 for all networks.")
    # TensorFlow Serving's port for REST.
    port: int = setting(8501, "The port; 0 for any free one.", least=0, most=65535)
    max_batch: int = setting(8, "Maximum batch size.", least=1)
    batch_wait_ms: float = setting(2.0, "Milliseconds that the first picture of a batch waits for others.", least=0)
    threads: int = setting(0, "Threads of the runtime; 0 for its default.", least=0)
    device: str = setting("cpu", "cpu; cuda or tensorrt for ONNX Runtime, gpu or npu for OpenVINO, where installed.")
    decoders: int = setting(0, "Processes that decode pictures; 0 for one per usable CPU, 2 to 4.", least=0)
    allow_host: tuple[str, ...] = setting(
        (),
        "A name that browsers reach the server by, HOST or HOST:PORT; addresses and this host's name always work.",
    )
    allow_edited: bool = setting(False, "Serve an exported file that was modified.")
    thresholds: str = setting(
        "", "A report's thresholds.json: a confidence threshold for each class of this model, in all answers."
    )
    raw_outputs: bool = setting(
        False, "Answer TensorFlow's clients with raw_detection_boxes and raw_detection_scores too: megabytes a picture."
    )
    white_level: float = setting(
        0.0, "What is white in pictures of more than 8 bits, as 4095 for 12 bits; 0: as in the training data.", least=0
    )
    queue: int = setting(64, "Maximum number of queued pictures; further requests are answered with 503.", _LIMITS, 1)
    timeout_s: float = setting(
        10.0, "Seconds from a request's first byte until it is answered 408 or 504.", _LIMITS, 0.001
    )
    grace_s: float = setting(20.0, "Seconds for requests in progress to finish when the server shuts down.", _LIMITS, 0)
    idle_s: float = setting(30.0, "Seconds after which an idle connection is closed.", _LIMITS, 0.001)
    max_connections: int = setting(
        1000, "Maximum number of connections; fewer if the system allows fewer open files.", _LIMITS, 1
    )
    max_body_mib: float = setting(20.0, "Maximum size of a request, in MiB.", _LIMITS, 0.001)
    max_pixels: int = setting(
        50_000_000, "Maximum number of pixels in a picture, checked before it is decoded.", _LIMITS, 1
    )
    max_request_pixels: int = setting(
        100_000_000, "Maximum number of pixels in all pictures of a request, checked before any is decoded.", _LIMITS, 1
    )
    max_images: int = setting(32, "Maximum number of pictures in a request.", _LIMITS, 1)
    max_held_mib: float = setting(
        1024.0, "Maximum memory for all requests' bodies and pictures, in MiB; beyond it, 503.", _LIMITS, 0.001
    )
    decoder_mib: float = setting(1024.0, "Maximum memory of a decoding process, in MiB.", _LIMITS, 64)

    def __post_init__(self) -> None:
        name_device(self)


@dataclass(frozen=True)
class SamplePicture:
    """A picture that the page offers for a first try.

    Attributes:
        name: Its file's name.
        jpeg: The file.
    """

    name: str
    jpeg: bytes
