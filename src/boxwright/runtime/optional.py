"""Libraries that are there only where an extra brought them, and their errors in a line."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from boxwright.base.errors import ExportError


def require_library(module: str, extra: str) -> Any:
    """Import a library that an extra brings.

    Raises:
        ExportError: Where it is not installed, with the line that installs it.
    """
    if module == "openvino":
        # Importing it would fork this process, from a thread, to send statistics over the network: what forks so can
        # hang or crash where other threads hold locks. Its own code for where that package is not installed goes on.
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        return import_module(module)
    except ImportError as error:
        raise ExportError(f"{module} is not installed ({error}); pip install 'boxwright[{extra}]'") from None


def installed_versions(*names: str) -> dict[str, str]:
    """Return the versions of those of some packages that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
