"""`boxwright serve`."""

from __future__ import annotations

import shlex
import ssl
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from boxwright.base.errors import ConfigError, ExportError
from boxwright.cli.console import console
from boxwright.cli.options import source_path
from boxwright.cli.serving import Access, name_models, run_server
from boxwright.inference.serving.settings import ServerSettings
from boxwright.runtime.formats import is_export


def serve_command(
    settings: ServerSettings,
    models: Annotated[
        list[Path],
        typer.Argument(
            parser=source_path,
            metavar="MODEL",
            help="An exported detector: .onnx, OpenVINO's .xml, .tflite or .pt2 (`boxwright export`); or a run's folder or "
            "checkpoint, which is exported first, compared on its evaluation data. Several are served side by side, each in the "
            "precision of its file (`boxwright export --precision`).",
        ),
    ],
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            help="What clients call the model, once for each. Default: detector; of several, the name of the file or run.",
        ),
    ] = None,
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
    """Serve detectors: TensorFlow Serving's REST protocol, the Open Inference Protocol, POST /detect with an image, a page."""
    for model in models if watch else ():
        if not is_export(model):
            raise ExportError(f"--watch {model}: only an exported file is watched; run `boxwright export {model}`")
    if len(models) > 1 and settings.thresholds:
        raise ConfigError(f"--thresholds {settings.thresholds}: a report's thresholds are of one model; serve it alone")
    names = list(name or name_models(models))
    _check_names(names, len(models))
    access = Access(read_api_key(api_key_file), certfile, keyfile)
    _check_certificate(certfile, keyfile)

    def announce(where: str) -> None:
        held = f"queue of at most {settings.queue} images, {settings.max_held_mib:,.0f} MiB including uploads"
        for model in models:
            console.print(f"{model}: {where}/ ({held})")
        for model_name in names:
            console.print(f"TensorFlow Serving: {where}/v1/models/{model_name}:predict")
            console.print(f"Open Inference: {where}/v2/models/{model_name}/infer")
        for model_name in names:
            address = f"{where}/detect" if len(names) == 1 else shlex.quote(f"{where}/detect?model={quote(model_name)}")
            console.print(f"an image: curl --data-binary @image.jpg {address}")

    run_server(dict(zip(names, models, strict=True)), settings, access, watch=watch, announce=announce)


def _check_names(names: list[str], models: int) -> None:
    """Raise a ConfigError unless there is one name for each model, each a single URL path segment of its own."""
    if len(names) != models:
        raise ConfigError(f"--name: expected one for each of the {models} models, found {len(names)}")
    if len(set(names)) < len(names):
        raise ConfigError(f"--name: two models have one name: {', '.join(names)}")
    for name in names:
        if name in ("", ".", "..") or any(not c.isprintable() or c.isspace() or c in "/\\?#%" for c in name):
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


def read_api_key(path: Path | None) -> str:
    """Return the first line of a file; empty without a file."""
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
