"""Declaring a setting once: name, default, help and bound. The command line makes its options of it."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from boxwright.base.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

S = TypeVar("S", bound="DataclassInstance")


def setting(
    default: Any,
    help: str,
    panel: str = "",
    least: float | None = None,
    most: float | None = None,
    flags: tuple[str, ...] = (),
) -> Any:
    """Return a dataclass field that carries what the command line needs to know of it.

    Args:
        default: Its value where nothing is said.
        panel: Under which heading help shows it.
        least: The least value, if there is one.
        flags: What the option is called, where that is not the field's name.
    """
    told = {"help": help, "panel": panel or None, "least": least, "most": most, "flags": flags}
    return field(default=default, metadata=told)


def with_options(settings: S, options: Mapping[str, Any], what: str, others: Sequence[str] = ()) -> S:
    """Return settings with other values of some fields.

    Args:
        settings: An instance of a dataclass of settings.
        what: The function that takes the options, for errors.
        others: What else that function takes, for the closest name.

    Raises:
        ConfigError: For an option that there is not, with the closest one.
    """
    names = [spec.name for spec in dataclasses.fields(settings)]
    known = [*names, *others]
    for name in options:
        if name not in names:
            close = difflib.get_close_matches(name, known, 1)
            meant = f"; did you mean {close[0]}?" if close else f"; it has {', '.join(known)}"
            raise ConfigError(f"{what} has no option {name!r}{meant}")
    kinds = get_type_hints(type(settings))
    for name, value in options.items():
        _check_kind(f"{what}: {name}", value, kinds[name])
    return dataclasses.replace(settings, **options)


def _check_kind(what: str, value: Any, hint: Any) -> None:
    """Raise a ConfigError for a value of another type; a whole number is a float, too."""
    kinds = [kind for kind in (get_args(hint) or (hint,)) if isinstance(kind, type)]
    if get_origin(hint) is tuple:
        kinds = [tuple]
    fits = any(isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool) for kind in kinds)
    if not fits and not (float in kinds and isinstance(value, int) and not isinstance(value, bool)):
        names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ConfigError(f"{what}: expected {names}, found {value!r}")
