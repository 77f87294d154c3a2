"""Which requests of a browser are answered: those of the server's own page, by a name that is known.

A page of anywhere can let a browser send a POST here, and a page whose name has come to mean this address (DNS
rebinding) can read the answer too. Programs that are no browsers choose what they send, and need no such check.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping

from boxwright.base.errors import ConfigError

_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")
_FETCHED = (b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest")
_DEFAULT_PORTS = ("80", "443")
_LOOPBACK = ("localhost", "localhost.localdomain", "ip6-localhost")


class Browsers:
    """The names by which browsers may reach a server."""

    def __init__(self, listening: str, allowed: Iterable[str] = ()) -> None:
        """Collect the names.

        Args:
            listening: The address or name where the server listens.
            allowed: Others, each with a port or for any; several in one are separated by commas.

        Raises:
            ConfigError: For what is no name.
        """
        self._named = {_plain(name) for names in allowed for name in names.split(",") if name.strip()}
        if odd := next((name for name in self._named if not _HOST.fullmatch(name)), None):
            raise ConfigError(
                f"--allow_host {odd}: expected a name, or a name with a port, such as detect.example.com:8501"
            )
        here = socket.gethostname().lower()
        self._names = {*self._named, *_LOOPBACK, listening.lower(), here, here.partition(".")[0], f"{here}.local"}

    def refusal(self, headers: Mapping[bytes, bytes]) -> tuple[int, str] | None:
        """Return the status and the reason for which a request is refused; None where it is not.

        Args:
            headers: The request's, by names in small letters.

        Returns:
            400 for a host that is none, 403 for a browser's request from elsewhere.
        """
        host = _plain(headers.get(b"host", b"").decode("latin-1"))
        if host and not _HOST.fullmatch(host):
            return 400, "the Host header names no host"
        origin = headers.get(b"origin")
        if origin is None and not _is_browser(headers):
            return None
        if not self._is_known(host):
            return 403, f"browsers reach this server by {host[:200]!r} only where --allow_host names it"
        if origin is not None:
            there = _plain(origin.decode("latin-1").partition("://")[2])
            if there != host and not _is_among(there, self._named):
                return (
                    403,
                    f"pages of {there[:200] or 'nowhere'!r} may use this server only where --allow_host names it",
                )
        return None

    def _is_known(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        try:
            ipaddress.ip_address(found[1].strip("[]"))
        except ValueError:
            return _is_among(host, self._names)
        return True  # a page has a name of its own; what reaches an address by its number was not misled


def _plain(host: str) -> str:
    """Return a host as browsers name it: in small letters, without the last dot and a port that goes without saying."""
    name, colon, port = host.strip().lower().rpartition(":")
    if not colon or not port.isdigit():
        return host.strip().lower().removesuffix(".")
    return name.removesuffix(".") if port in _DEFAULT_PORTS else f"{name.removesuffix('.')}:{port}"


def _is_among(host: str, names: set[str]) -> bool:
    found = _HOST.fullmatch(host)
    return found is not None and (host in names or found[1] in names)


def _is_browser(headers: Mapping[bytes, bytes]) -> bool:
    # Sec-Fetch-… is not sent to plain HTTP by a name, which is the case that matters; the agent's name is.
    return any(name in headers for name in _FETCHED) or headers.get(b"user-agent", b"").startswith(b"Mozilla/")
