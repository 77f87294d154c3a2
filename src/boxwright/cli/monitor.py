"""`boxwright monitor`."""

from __future__ import annotations

import ipaddress
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from boxwright.base.errors import ConfigError
from boxwright.cli.console import console
from boxwright.cli.serve import read_api_key
from boxwright.cli.serving import Access, require_server, run_app


def monitor_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that is training, or has ended.")],
    port: Annotated[int, typer.Option("--port", help="The port; 0 for any free one.", min=0, max=65535)] = 0,
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on; one that others can reach needs --api_key_file.")
    ] = "127.0.0.1",
    api_key_file: Annotated[
        Path | None, typer.Option("--api_key_file", help="A file whose first line the page asks for.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow_host", help="A name that browsers reach the page by, HOST or HOST:PORT; addresses always work."
        ),
    ] = None,
    *,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show a run on a page while it trains: curves, speed, time left and the latest pictures; on a phone, too.

    The page reads the files that the run writes and changes none. Only this machine can reach it, unless --host names
    another address. Ctrl-C ends the page, not the run.
    """
    require_server()
    from boxwright.inference.serving.settings import ServerSettings
    from boxwright.report.monitor import make_monitor

    key = read_api_key(api_key_file)
    if not key and not _is_this_machine(host):
        raise ConfigError(f"--host {host}: others can reach this address; name a key with --api_key_file FILE")
    settings = ServerSettings(host=host, port=port, allow_host=tuple(allow_host or ()))
    app = make_monitor(run, settings, key)

    def announce(where: str) -> None:
        console.print(f"{run}: {where}/ (Ctrl-C ends it)")
        if open_browser and not webbrowser.open(f"{where}/"):
            console.print("no browser could be opened: open the address in one")

    with suppress(KeyboardInterrupt):
        run_app(app, settings, Access(key), announce)


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
