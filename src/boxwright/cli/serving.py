"""Running the server for `boxwright serve`, `boxwright ui` and `boxwright monitor`."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxwright.base.errors import ConfigError, DataError, ExportError
from boxwright.base.files import is_file
from boxwright.cli.console import console
from boxwright.inference.serving.settings import SamplePicture, ServerSettings
from boxwright.runtime.devices import runtime_for_device
from boxwright.runtime.formats import EXPORT_FORMATS, is_export

if TYPE_CHECKING:
    from fastapi import FastAPI

_NAME = "detector"
_ODD = re.compile(r"[^\w.-]+")


@dataclass(frozen=True)
class Access:
    """Who may use a server, and how.

    Attributes:
        api_key: What clients send; empty for no key.
        certfile: A TLS certificate, or None.
        keyfile: Its key, or None if the certificate's file has it.
    """

    api_key: str = ""
    certfile: Path | None = None
    keyfile: Path | None = None


def run_server(
    models: dict[str, Path],
    settings: ServerSettings,
    access: Access,
    *,
    watch: bool = False,
    samples: Sequence[SamplePicture] = (),
    announce: Callable[[str], Any],
) -> None:
    """Serve models by their names until the process is stopped; runs and checkpoints are exported first.

    Args:
        watch: Whether to reload files that change.
        samples: Pictures that the page offers.
        announce: Called with the server's address once clients may connect.
    """
    from boxwright.runtime.allocator import share_arenas

    require_server()
    require_posix()
    from boxwright.inference.serving.app import make_app
    from boxwright.inference.serving.guard import Counters
    from boxwright.inference.serving.model import ServedModel
    from boxwright.weights import exports

    counters = Counters()
    with tempfile.TemporaryDirectory() as folder:  # only until the files are read
        files = {
            name: path if is_export(path) else exported_for_serving(path, settings, Path(folder, str(number)))
            for number, (name, path) in enumerate(models.items())
        }
        # Before the runtime and the server start threads, each of which would get an arena.
        share_arenas()
        served = [
            ServedModel(path, name, settings, counters.observe, exports.__name__, allow_edited=settings.allow_edited)
            for name, path in files.items()
        ]
    app = make_app(served, settings, counters, api_key=access.api_key, watch=watch, samples=samples)
    run_app(app, settings, access, announce, lambda: console.print(counters.summary()))


def require_server() -> None:
    """Raise an ExportError that says what to install, if a library of the server is missing."""
    from boxwright.runtime.optional import require_library

    for library in ("fastapi", "uvicorn", "orjson", "prometheus_client"):
        require_library(library, "serve")


def require_posix() -> None:
    """Raise a ConfigError where pictures cannot be decoded in processes of their own, as on Windows."""
    if not (hasattr(os, "preadv") and hasattr(signal, "SIGALRM")):
        raise ConfigError(
            "the server decodes pictures in processes that share files in memory, which this system lacks: "
            "run it on Linux or macOS, or in a container"
        )


def run_app(
    app: FastAPI,
    settings: ServerSettings,
    access: Access,
    announce: Callable[[str], Any],
    ended: Callable[[], Any] = lambda: None,
) -> None:
    """Serve an application until the process is stopped.

    Args:
        announce: As of `run_server`.
        ended: Called once every request is answered.

    Raises:
        ConfigError: If the address cannot be listened on.
    """
    import uvicorn

    from boxwright.inference.serving.server import Server

    config = uvicorn.Config(
        app,
        # Connections extend this protocol; uvicorn would choose httptools where it is installed.
        http="h11",
        ws="none",
        host=settings.host,
        port=settings.port,
        log_level="warning",
        server_header=False,
        # Our own timer, which also ends half-sent requests, comes first.
        timeout_keep_alive=int(settings.idle_s) + 1,
        timeout_graceful_shutdown=max(int(settings.grace_s), 1),
        ssl_certfile=access.certfile,
        ssl_keyfile=access.keyfile,
    )
    config.load()
    sockets = [listening_socket(settings.host, settings.port)]
    sockets[0].listen(config.backlog)  # clients may connect as soon as the address is printed
    server = Server(config, settings, ended)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    announce(f"{'https' if access.certfile else 'http'}://{host}:{sockets[0].getsockname()[1]}")
    server.run(sockets=sockets)


def name_models(models: Sequence[Path]) -> list[str]:
    """Return what clients call each of several models: the name of its file or folder, numbered where two are alike."""
    if len(models) == 1:
        return [_NAME]
    # A run's export is RUN/export/detector.onnx: every run's has the same name.
    plain = [path.parent.parent if path.parent.name == "export" else path for path in map(Path.absolute, models)]
    stems = [_ODD.sub("-", path.stem if is_export(path) else path.name).strip(".-") or _NAME for path in plain]
    names: list[str] = []
    for stem in stems:
        numbered = (f"{stem}-{number}" for number in itertools.count(2))
        names.append(stem if stem not in names else next(candidate for candidate in numbered if candidate not in names))
    return names


def exported_for_serving(source: Path, settings: ServerSettings, folder: Path) -> Path:
    """Return the export of a run or checkpoint: the one in its folder if it has the same weights, else a new one.

    Args:
        source: The run's folder, or the checkpoint.
        settings: Of the server; its device decides the format.
        folder: Where a new export is written.

    Raises:
        BoxwrightError: If it cannot be opened or exported, or its export differs from it.
    """
    from boxwright.api.export import export_model
    from boxwright.cli.options import require_checkpoint
    from boxwright.exporters.export import FORMATS
    from boxwright.runtime.sessions import read_metadata, require_device
    from boxwright.weights.open_model import export_folder, open_model

    require_checkpoint(source)
    runtime = runtime_for_device(settings.device) or "onnxruntime"
    require_device(runtime, settings.device)
    format = EXPORT_FORMATS[runtime]
    opened = open_model(source, device="cpu")
    name = f"detector{FORMATS[format].suffix}"
    kept = export_folder(source) / name
    if is_file(kept):
        metadata = read_metadata(kept, allow_edited=settings.allow_edited)
        if metadata.weights_sha256 == opened.weights_sha256():
            console.print(f"{source}: serving {kept}, which has its weights")
            return kept
    console.print(
        f"{source}: exporting it to a temporary file; `boxwright export {source} --format {format}` keeps an export, "
        "which is served at once",
    )
    try:
        with console.status("exporting …"):
            return export_model(opened, format, folder / name).path
    except DataError as error:
        raise ExportError(
            f"{source} is exported before it is served, and cannot be compared with its export on its evaluation data: "
            f"{error}; run `boxwright export {source} --images FOLDER`, and serve that file"
        ) from None


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket, on any free port for 0, whose connections send small answers at once.

    asyncio turns off Nagle's algorithm only if a socket names its protocol, which uvicorn's own does not: each answer
    would take 40 ms more.

    Raises:
        ConfigError: If the port is in use, or the host is not this machine.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, socket.IPPROTO_TCP)
        try:
            # A restarted server need not wait until the kernel has forgotten the old connections.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except OSError:
            listening.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "this is no name of a host"
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}") from None
    return listening
