"""Importing optional libraries, with an error that says how to install them."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from boxwright.base.errors import ExportError


def require_library(module: str, extra: str) -> Any:
    """Return an optional library's module; ExportError with the install command if it is missing."""
    if module == "openvino":
        # Importing its telemetry would fork this process from a thread, to send statistics over the network; that can
        # hang or crash if other threads hold locks. OpenVINO works without the telemetry package.
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        return import_module(module)
    except ImportError as error:
        raise ExportError(f"{module} is not installed ({error}); pip install 'boxwright[{extra}]'") from None


def installed_versions(*names: str) -> dict[str, str]:
    """Return the versions of the installed packages among `names`."""
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
