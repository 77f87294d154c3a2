"""Redirects of web servers, which are followed to addresses that a check lets pass."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit


class CheckedRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects; each reply is closed unread, as urllib would read its body, however long it is.

    A request's `Authorization`, if it was added by `add_unredirected_header`, goes on to the same server alone.
    """

    def __init__(self, check: Callable[[Any, str], None]) -> None:
        """Follow redirects unless a check raises.

        Args:
            check: Called with the `urllib.request.Request` that was redirected, and the address that it leads to.
        """
        self._check = check

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        """Return the answer of the address that a redirect leads to, None if it leads to none."""
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except ValueError:  # the address is none, and urllib leaves the reply open
            fp.close()
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Return the request of the address that a redirect leads to."""
        fp.close()
        self._check(req, newurl)
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        secret = req.unredirected_hdrs.get("Authorization")
        # Not by `host`, which is the proxy's where there is one.
        if following is not None and secret and urlsplit(newurl)[:2] == urlsplit(req.full_url)[:2]:
            following.add_unredirected_header("Authorization", secret)
        return following
