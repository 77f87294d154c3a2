"""`boxwright serve`."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from boxwright.cli.console import console
from boxwright.errors import ConfigError, ExportError
from boxwright.runtime.formats import EXPORTS
from boxwright.serving.settings import ServerSettings

__all__ = ["listening_socket", "serve_command"]


def serve_command(
    settings: ServerSettings,
    model: Annotated[
        Path,
        typer.Argument(help="An exported detector: .onnx, OpenVINO's .xml, .tflite or .pt2 (`boxwright export`)."),
    ],
    name: Annotated[str, typer.Option("--name", help="What clients call the model.")] = "detector",
    watch: Annotated[
        bool, typer.Option("--watch", help="Take up the file anew when it changes; no request is dropped.")
    ] = False,
    api_key_file: Annotated[
        Path | None,
        typer.Option("--api_key_file", help="A file whose first line clients must send: Authorization: Bearer LINE."),
    ] = None,
    certfile: Annotated[Path | None, typer.Option("--certfile", help="A TLS certificate.")] = None,
    keyfile: Annotated[Path | None, typer.Option("--keyfile", help="Its key.")] = None,
) -> None:
    """Answer requests: TensorFlow Serving's REST protocol, the Open Inference Protocol, and POST /detect with an image."""
    if model.suffix not in EXPORTS:
        raise ExportError(f"{model}: only exported detectors are served; write one by `boxwright export {model}`")
    from boxwright.runtime.allocator import share_arenas
    from boxwright.runtime.optional import require_library

    for library in ("fastapi", "uvicorn", "orjson", "prometheus_client"):
        require_library(library, "serve")
    import uvicorn

    from boxwright.inference import exports
    from boxwright.serving.app import Counters, make_app
    from boxwright.serving.model import ServedModel
    from boxwright.serving.server import Server

    share_arenas()
    key = _key(api_key_file)
    counters = Counters()
    served = ServedModel(model, name, settings, counters.observe, exports.__name__)
    app = make_app(served, settings, counters, api_key=key, watch=watch)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=max(int(settings.grace_s), 1),
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
    )
    server = Server(config, lambda: console.print(counters.summary(), markup=False))
    config.load()
    sockets = [listening_socket(settings.host, settings.port)]
    where = f"{'https' if certfile else 'http'}://{settings.host}:{sockets[0].getsockname()[1]}"
    mib = settings.queue * settings.max_pixels * 3 / 2**20
    console.print(f"{model}: {where}/ (at most {settings.queue} pictures wait: {mib:,.0f} MiB)", markup=False)
    console.print(f"TensorFlow Serving: {where}/v1/models/{name}:predict", markup=False)
    console.print(f"Open Inference: {where}/v2/models/{name}/infer", markup=False)
    console.print(f"an image: curl --data-binary @image.jpg {where}/detect", markup=False)
    server.run(sockets=sockets)


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket whose connections send small answers at once.

    asyncio turns waiting for more to send (Nagle's algorithm) off only where a socket names its protocol, which
    uvicorn's own does not: each answer would take 40 ms more.

    Args:
        host: Its name or address.
        port: Its number; 0 for any that is free.

    Returns:
        The socket, bound.

    Raises:
        ConfigError: Where another listens, or the host is not this machine.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listening


def _key(path: Path | None) -> str:
    if path is None:
        return ""
    lines = path.read_text().splitlines() if path.is_file() else []
    if not lines or not lines[0].strip():
        raise ConfigError(f"--api_key_file {path}: expected a file whose first line is the key")
    return lines[0].strip()
