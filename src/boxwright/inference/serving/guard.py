"""Middleware around every request: access checks, metrics, an answer to any failure, and a limit on memory.

Browsers' requests are answered if they come from the server's own page, under a known host name. A page anywhere can
make a browser send a POST here, and a page whose name was rebound to this address (DNS rebinding) can also read the
answer. Programs other than browsers choose what they send, and need no such check.

The memory of all requests together is limited: bodies, pictures, and answers until the client has read them.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import re
import socket
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType

from fastapi import Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from boxwright.base.errors import ConfigError
from boxwright.base.text import is_count
from boxwright.inference.serving.batcher import Row
from boxwright.inference.serving.requests import LONG_HEAD, MOST_HEAD_BYTES, BadRequest

_LOG = logging.getLogger("boxwright.inference.serving")
_OPEN_TO_ALL = ("/healthz", "/readyz", "/")
# Scripts and styles of the page, which asks for the key.
_PAGE_FILES = "/page/"
# nginx's status for a client that closed the connection; it is only counted, never sent.
_GONE = 499


class Counters:
    """The metrics that `/metrics` shows."""

    def __init__(self) -> None:
        """Create them, in a separate registry."""
        self.registry = CollectorRegistry()
        self.begun = Counter("boxwright_requests_begun", "Requests read.", registry=self.registry)
        self.requests = Counter("boxwright_requests", "Requests answered.", ("route", "status"), registry=self.registry)
        self.seconds = Histogram(
            "boxwright_request_seconds", "Seconds of a request.", ("route",), registry=self.registry
        )
        self.images = Counter("boxwright_images", "Pictures processed.", registry=self.registry)
        self.batch = Histogram(
            "boxwright_batch_size", "Pictures run together.", buckets=(1, 2, 4, 8, 16, 32, 64), registry=self.registry
        )
        self.run = Histogram("boxwright_batch_seconds", "Seconds of a batch in the runtime.", registry=self.registry)
        self.waiting = Gauge("boxwright_queue", "Queued pictures.", registry=self.registry)
        self.held = Gauge("boxwright_held_bytes", "Bytes of bodies and pictures in memory.", registry=self.registry)
        self.replaced = Counter(
            "boxwright_decoders_replaced", "Decoding processes that were replaced.", ("why",),
            registry=self.registry,
        )  # fmt: skip
        self.version = Gauge(
            "boxwright_model_version", "The model's version.", ("name", "sha256"), registry=self.registry
        )

    def observe(self, size: int, seconds: float) -> None:
        """Count a batch."""
        self.batch.observe(size)
        self.run.observe(seconds)
        self.images.inc(size)

    def count_replaced(self, why: str) -> None:
        """Count a replaced decoding process."""
        self.replaced.labels(why).inc()

    def summary(self) -> str:
        """Return a line that counts received and answered requests."""
        return f"{_total(self.requests):.0f} of {_total(self.begun):.0f} requests were answered"


def _total(counter: Counter) -> float:
    samples = (sample for metric in counter.collect() for sample in metric.samples)
    return sum(sample.value for sample in samples if sample.name.endswith("_total"))


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
    if not colon or not is_count(port):
        return host.strip().lower().removesuffix(".")
    return name.removesuffix(".") if port in _DEFAULT_PORTS else f"{name.removesuffix('.')}:{port}"


def _is_among(host: str, names: set[str]) -> bool:
    match = _HOST.fullmatch(host)
    return match is not None and (host in names or match[1] in names)


def _is_browser(headers: Mapping[bytes, bytes]) -> bool:
    # Browsers omit Sec-Fetch-… for plain HTTP to a host name, the case that matters here; they do send User-Agent.
    return any(name in headers for name in _FETCHED) or headers.get(b"user-agent", b"").startswith(b"Mozilla/")


class Guard:
    """The application behind access checks, metrics and error handling."""

    def __init__(self, app: ASGIApp, counters: Counters, browsers: Browsers, api_key: str) -> None:
        """Wrap an application.

        Args:
            api_key: What clients send as `Authorization: Bearer …`; empty for no key.
        """
        self._app, self._counters, self._browsers, self._key = app, counters, browsers, api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, route, status = time.monotonic(), _route(scope["path"]), 0
        self._counters.begun.inc()

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status == 503:
                    message["headers"] = [*message.get("headers", ()), (b"retry-after", b"1")]
            await send(message)

        try:
            refused = self._refused(scope)
            if refused is None:
                await self._app(scope, receive, counted)
            else:
                await refused(scope, receive, counted)
        except ClientDisconnect:
            status = _GONE
        except Exception as error:  # no traceback leaves the server
            text = " ".join(str(error).split())[:1000]
            _LOG.error("a request failed: %s", f"{type(error).__name__}: {text}")
            _LOG.debug("traceback:", exc_info=error)
            # The head of an answer is sent: uvicorn can only break the connection.
            if status:
                raise
            await error_response(500, "internal error; the server's log has the reason")(scope, receive, counted)
        finally:
            self._counters.requests.labels(route, str(status or _GONE)).inc()
            self._counters.seconds.labels(route).observe(time.monotonic() - began)

    def _refused(self, scope: Scope) -> Response | None:
        if _head_bytes(scope) > MOST_HEAD_BYTES:
            return error_response(431, LONG_HEAD, close=True)
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        if b"transfer-encoding" in headers and b"content-length" in headers:
            # Request smuggling: proxies and servers disagree on which header delimits the body.
            reason = "a request may not have both a Content-Length and a Transfer-Encoding"
            return error_response(400, reason, close=True)
        if (refusal := self._browsers.refusal(headers)) is not None:
            return error_response(*refusal)
        is_open = scope["path"] in _OPEN_TO_ALL or scope["path"].startswith(_PAGE_FILES)
        if self._key and not is_open:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            # In constant time: the duration must not tell how many characters were right.
            if not hmac.compare_digest(given.strip(), self._key) or scheme.lower() != b"bearer":
                return error_response(401, "an API key is required: Authorization: Bearer …")
        return None


def _head_bytes(scope: Scope) -> int:
    """Return the least size of a request's head; h11 refuses one that is longer only while its end has not arrived."""
    target = len(scope["raw_path"]) + len(scope["query_string"])
    return target + sum(len(name) + len(value) + len(":\r\n") for name, value in scope["headers"])


def _route(path: str) -> str:
    """Return a path's metrics label, one of a few: clients choose paths."""
    for start in ("/detect", "/metrics", "/healthz", "/readyz", "/v1/models", "/v2", "/models", "/samples/", "/page/"):
        if path.startswith(start):
            return start
    return "/" if path == "/" else "other"


def error_response(status: int, reason: str, *, close: bool = False) -> Response:
    """Return a JSON response with the reason as `error`; `close` ends the connection after it."""
    headers = {"Connection": "close"} if close else None
    return Response(json.dumps({"error": reason}), status, headers, media_type="application/json")


# Bytes of a response written at once; the rest waits until the client has read them.
_PIECE = 256 * 2**10
# Per number: in an array, and at most in JSON.
_ARRAY_BYTES, _JSON_BYTES = 4, 13


class MemoryBudget:
    """The memory of all requests in progress."""

    def __init__(self, most_mib: float) -> None:
        """Start with nothing held, of at most `most_mib`."""
        self.most, self.bytes = int(most_mib * 2**20), 0


class MemoryReservation:
    """The memory that one request holds until it is answered."""

    def __init__(self, held: MemoryBudget) -> None:
        """Start with nothing held."""
        self._held, self._bytes, self._over = held, 0, False

    def add(self, count: int) -> None:
        """Hold `count` more bytes.

        Raises:
            BadRequest: If that exceeds the limit by itself or with all other requests, or this request is over.
        """
        if count > self._held.most:
            raise BadRequest(
                413, f"the request takes more than the {self._held.most / 2**20:g} MiB allowed for all requests"
            )
        if self._over or self._held.bytes + count > self._held.most:
            raise BadRequest(503, "too many requests are in progress; try again")
        self._bytes += count
        self._held.bytes += count

    def __enter__(self) -> MemoryReservation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._held.bytes -= self._bytes
        self._over = True


def answer_bytes(rows: Sequence[Row], wanted: Collection[str]) -> int:
    """Return the most memory that an answer takes: all outputs as arrays, and the returned ones as text.

    Args:
        wanted: The requested outputs; empty for the default ones.
    """
    numbers = {name: value.size * len(rows) for name, value in rows[0].items()}
    written = [count for name, count in numbers.items() if (name in wanted if wanted else not name.startswith("raw_"))]
    return _ARRAY_BYTES * sum(numbers.values()) + _JSON_BYTES * sum(written)


class BudgetedResponse(Response):
    """A response whose memory counts as held until it is sent, so that clients who do not read it delay others."""

    def __init__(
        self, content: bytes, held: ExitStack, media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Take the content, and `held`, which is closed once it is sent."""
        super().__init__(content, headers=headers, media_type=media_type)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response in pieces."""
        del scope, receive
        with self._held:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            body = memoryview(bytes(self.body))
            for start in range(0, max(len(body), 1), _PIECE):
                more = start + _PIECE < len(body)
                piece = bytes(body[start : start + _PIECE])
                await send({"type": "http.response.body", "body": piece, "more_body": more})
