"""`boxwright serve`."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Annotated

import typer

from boxwright.base.errors import ConfigError, DataError, ExportError
from boxwright.cli.console import console
from boxwright.runtime.formats import EXPORTED_FOR, EXPORTS
from boxwright.serving.settings import ServerSettings


def serve_command(
    settings: ServerSettings,
    model: Annotated[
        Path,
        typer.Argument(
            help="An exported detector: .onnx, OpenVINO's .xml, .tflite or .pt2 (`boxwright export`); or a run's folder or "
            "checkpoint, which is exported first, compared on its evaluation data."
        ),
    ],
    name: Annotated[str, typer.Option("--name", help="What clients call the model.")] = "detector",
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Reload the file when it changes; no request is dropped.")
    ] = False,
    api_key_file: Annotated[
        Path | None,
        typer.Option("--api_key_file", help="A file whose first line clients must send: Authorization: Bearer LINE."),
    ] = None,
    certfile: Annotated[Path | None, typer.Option("--certfile", help="A TLS certificate.")] = None,
    keyfile: Annotated[Path | None, typer.Option("--keyfile", help="Its key.")] = None,
) -> None:
    """Serve a detector: TensorFlow Serving's REST protocol, the Open Inference Protocol, and POST /detect with an image."""
    if model.suffix not in EXPORTS and watch:
        raise ExportError(f"--watch {model}: only an exported file is watched; run `boxwright export {model}`")
    _check_name(name)
    key = _key(api_key_file)
    _check_certificate(certfile, keyfile)
    from boxwright.runtime.allocator import share_arenas
    from boxwright.runtime.optional import require_library

    for library in ("fastapi", "uvicorn", "orjson", "prometheus_client"):
        require_library(library, "serve")
    import uvicorn

    from boxwright.loading import exports
    from boxwright.serving.app import make_app
    from boxwright.serving.guard import Counters
    from boxwright.serving.model import ServedModel
    from boxwright.serving.server import Server

    if model.suffix not in EXPORTS:
        model = _exported(model, settings.device)
    # Before the runtime and the server start threads, each of which would get an arena.
    share_arenas()
    counters = Counters()
    served = ServedModel(model, name, settings, counters.observe, exports.__name__, allow_edited=settings.allow_edited)
    app = make_app(served, settings, counters, api_key=key, watch=watch)
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
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
    )
    config.load()
    sockets = [listening_socket(settings.host, settings.port)]
    sockets[0].listen(config.backlog)  # clients may connect as soon as the address is printed
    server = Server(config, settings, lambda: console.print(counters.summary(), markup=False))
    _announce(model, name, settings, sockets[0], encrypted=certfile is not None)
    server.run(sockets=sockets)


def _exported(source: Path, device: str) -> Path:
    """Return the cached export of a run or checkpoint, made now if there is none.

    Raises:
        BoxwrightError: If it cannot be opened, or its export differs from it.
    """
    from boxwright.api.export import pictures_of_data
    from boxwright.cli.paths import require_checkpoint
    from boxwright.exporters.cache import default_runtime
    from boxwright.exporters.runtime_choice import choose_export
    from boxwright.loading.open_model import open_model
    from boxwright.runtime.devices import runtime_of

    require_checkpoint(source)
    runtime = runtime_of(device) or default_runtime()
    if runtime is None:
        needed = " or ".join(f"boxwright[{one.format}]" for one in EXPORTED_FOR.values())
        raise ExportError(f"{source}: only exported detectors are served, and no exporter is installed: {needed}")
    opened = open_model(source, device="cpu")
    try:
        with console.status("exporting …"):
            found = choose_export(
                opened, runtime, sample=lambda: pictures_of_data(opened.config, opened.detector), device=device
            )
    except DataError as error:
        raise ExportError(
            f"{source} is exported before it is served, and cannot be compared with its export on its evaluation data: "
            f"{error}; run `boxwright export {source} --images FOLDER`, and serve that file"
        ) from None
    if found is None:  # choose_export raises where a runtime is named
        raise ExportError(f"{source}: cannot be exported; run `boxwright export {source}`")
    console.print(f"{source}: exported for {runtime}: {found.path}", markup=False)
    return found.path


def _announce(model: Path, name: str, settings: ServerSettings, listening: socket.socket, *, encrypted: bool) -> None:
    """Print the addresses."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    where = f"{'https' if encrypted else 'http'}://{host}:{listening.getsockname()[1]}"
    held = f"queue of at most {settings.queue} images, {settings.max_held_mib:,.0f} MiB including uploads"
    console.print(f"{model}: {where}/ ({held})", markup=False)
    console.print(f"TensorFlow Serving: {where}/v1/models/{name}:predict", markup=False)
    console.print(f"Open Inference: {where}/v2/models/{name}/infer", markup=False)
    console.print(f"an image: curl --data-binary @image.jpg {where}/detect", markup=False)


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


def _check_name(name: str) -> None:
    """Raise a ConfigError for a name that is not a single URL path segment."""
    if name in ("", ".", "..") or any(not one.isprintable() or one.isspace() or one in "/\\?#%" for one in name):
        raise ConfigError(f"--name {name!r}: expected a name valid in a URL, without / \\ ? # % and spaces")


def _check_certificate(certfile: Path | None, keyfile: Path | None) -> None:
    """Raise a ConfigError that names the file if it is unusable for TLS."""
    if certfile is None:
        if keyfile is not None:
            raise ConfigError(f"--keyfile {keyfile}: a key needs its certificate, --certfile")
        return
    for option, path in (("--certfile", certfile), ("--keyfile", keyfile)):
        if path is not None:
            _read(option, path)
    words = f"--certfile {certfile}" + (f" --keyfile {keyfile}" if keyfile else "")
    try:
        # Without a password argument it would be asked for at the terminal, which a service lacks.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile, password="")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or "no certificate and key without a password in PEM"
        raise ConfigError(f"{words}: expected a certificate and its key in PEM, without a password: {reason}") from None


def _read(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror}") from None


def _key(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        lines = _read("--api_key_file", path).decode().splitlines()
    except UnicodeDecodeError:
        lines = []
    # Without the line break that editors append.
    key = lines[0].strip() if lines else ""
    if not key or not key.isprintable():
        raise ConfigError(f"--api_key_file {path}: expected a text file whose first line is the key")
    return key
