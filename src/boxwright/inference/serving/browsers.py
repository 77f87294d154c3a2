"""Which browser requests are answered: those from the server's own page, under a known host name.

A page anywhere can make a browser send a POST here, and a page whose name was rebound to this address (DNS rebinding)
can also read the answer. Programs other than browsers choose what they send, and need no such check.
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
    """The host names under which browsers may reach a server."""

    def __init__(self, listening: str, allowed: Iterable[str] = ()) -> None:
        """Collect the names.

        Args:
            listening: The address or name that the server listens on.
            allowed: Additional names, each with or without a port; one string may have several, separated by commas.
        """
        self._named = {_plain(name) for names in allowed for name in names.split(",") if name.strip()}
        if odd := next((name for name in self._named if not _HOST.fullmatch(name)), None):
            raise ConfigError(
                f"--allow_host {odd}: expected a name, or a name with a port, such as detect.example.com:8501"
            )
        here = socket.gethostname().lower()
        self._names = {*self._named, *_LOOPBACK, listening.lower(), here, here.partition(".")[0], f"{here}.local"}

    def refusal(self, headers: Mapping[bytes, bytes]) -> tuple[int, str] | None:
        """Return why a request is refused; None if it is not.

        Returns:
            The status and the reason: 400 for an invalid host, 403 for a browser's request from elsewhere.
        """
        host = _plain(headers.get(b"host", b"").decode("latin-1"))
        if host and not _HOST.fullmatch(host):
            return 400, "the Host header is invalid"
        origin = headers.get(b"origin")
        if origin is None and not _is_browser(headers):
            return None
        if not self._is_known(host):
            return 403, f"browsers can use {host[:200]!r} for this server only if --allow_host names it"
        if origin is not None:
            page_host = _plain(origin.decode("latin-1").partition("://")[2])
            if page_host != host and not _is_among(page_host, self._named):
                return (
                    403,
                    f"pages from {page_host[:200] or 'nowhere'!r} can use this server only if --allow_host names it",
                )
        return None

    def _is_known(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        try:
            ipaddress.ip_address(match[1].strip("[]"))
        except ValueError:
            return _is_among(host, self._names)
        return True  # DNS rebinding needs a name: a request to a numeric address cannot have been misdirected


def _plain(host: str) -> str:
    """Return a host as browsers write it: lowercase, without a trailing dot or a default port."""
    name, colon, port = host.strip().lower().rpartition(":")
    if not colon or not port.isdigit():
        return host.strip().lower().removesuffix(".")
    return name.removesuffix(".") if port in _DEFAULT_PORTS else f"{name.removesuffix('.')}:{port}"


def _is_among(host: str, names: set[str]) -> bool:
    match = _HOST.fullmatch(host)
    return match is not None and (host in names or match[1] in names)


def _is_browser(headers: Mapping[bytes, bytes]) -> bool:
    # Browsers omit Sec-Fetch-… for plain HTTP to a host name, the case that matters here; they do send User-Agent.
    return any(name in headers for name in _FETCHED) or headers.get(b"user-agent", b"").startswith(b"Mozilla/")
