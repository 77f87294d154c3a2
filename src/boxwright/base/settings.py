"""Declaring a setting once: name, default, help and bounds. The command line derives its options from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from boxwright.base.errors import ConfigError
from boxwright.base.nearest import did_you_mean
from boxwright.base.text import is_count

if TYPE_CHECKING:
    import torch
    from _typeshed import DataclassInstance

    # A device as callers give it; settings keep its name.
    AnyDevice = str | int | torch.device

S = TypeVar("S", bound="DataclassInstance")


def setting(
    default: Any,
    help: str,
    panel: str = "",
    least: float | None = None,
    most: float | None = None,
    flags: tuple[str, ...] = (),
) -> Any:
    """Return a dataclass field with what the command line needs to know about it.

    Args:
        flags: The option's names, if they are not the field's name.
    """
    metadata = {"help": help, "panel": panel or None, "least": least, "most": most, "flags": flags}
    return field(default=default, metadata=metadata)


def device_name(device: AnyDevice) -> str:
    """Return a device's name: "cuda:1" for 1, "1" and torch.device("cuda:1"); any other text as it is.

    Raises:
        ConfigError: For what names no device.
    """
    if isinstance(device, str):
        return f"cuda:{device}" if is_count(device) else device
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return f"cuda:{device}"
    if type(device).__module__ == "torch" and type(device).__name__ == "device":  # PyTorch may not be imported
        return str(device)
    raise ConfigError(f"device: expected cpu, cuda, auto, a GPU as 0 or cuda:0, or a torch.device, found {device!r}")


def name_device(settings: Any) -> None:
    """Replace the device of frozen settings, which are being made, by its name."""
    object.__setattr__(settings, "device", device_name(settings.device))


def with_options(settings: S, options: Mapping[str, Any], what: str, others: Sequence[str] = ()) -> S:
    """Return settings with some fields replaced.

    Args:
        what: The function that takes the options, for errors.

    Raises:
        ConfigError: For an unknown option, with the closest match, or a value of the wrong type.
    """
    names = [spec.name for spec in dataclasses.fields(settings)]
    known = [*names, *others]
    for name in options:
        if name not in names:
            hint = did_you_mean(name, known, f"it has {', '.join(known)}")
            raise ConfigError(f"{what} has no option {name!r}{hint}")
    kinds = get_type_hints(type(settings))
    if "device" in options:
        options = {**options, "device": device_name(options["device"])}
    for name, value in options.items():
        _check_kind(f"{what}: {name}", value, kinds[name])
    return dataclasses.replace(settings, **options)


def _check_kind(what: str, value: Any, hint: Any) -> None:
    """Raise ConfigError for a value of the wrong type; an int is accepted as a float."""
    kinds = [kind for kind in (get_args(hint) or (hint,)) if isinstance(kind, type)]
    if get_origin(hint) is tuple:
        kinds = [tuple]
    fits = any(isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool) for kind in kinds)
    if not fits and not (float in kinds and isinstance(value, int) and not isinstance(value, bool)):
        names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ConfigError(f"{what}: expected {names}, found {value!r}")
