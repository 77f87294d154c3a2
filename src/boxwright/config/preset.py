"""Presets: whole configurations that come with the package, for a file to name and to change.

They lie in `boxwright/presets`, one file each; the file's name is the preset's.
"""

from __future__ import annotations

from pathlib import Path

from boxwright.base.errors import ConfigError, shortened
from boxwright.base.files import is_file
from boxwright.base.nearest import did_you_mean
from boxwright.config.tree import Location

FOLDER = Path(__file__).parent.parent / "presets"
PREFIX = "preset:"
_SUFFIX = ".config"
_SHOWN = 100


def preset_names() -> list[str]:
    """Return the names of all presets, sorted."""
    return sorted(path.stem for path in FOLDER.glob(f"*{_SUFFIX}"))


def preset_path(name: str, named_at: Location | None = None) -> Path:
    """Return the file of a preset.

    Args:
        named_at: Where a configuration names it, for the error.

    Raises:
        ConfigError: Where there is no preset of that name; with the nearest name.
    """
    names = preset_names()
    if name not in names:
        hint = did_you_mean(name, names, "`boxwright models --all` lists them")
        where = f"{named_at}: preset: " if named_at else ""
        raise ConfigError(f"{where}no preset is named {shortened(name, _SHOWN)!r}{hint}")
    return FOLDER / f"{name}{_SUFFIX}"


def preset_text(name: str) -> str:
    """Return a preset as it is written, with its comments; it may name another that it changes.

    Raises:
        ConfigError: Where there is no preset of that name.
    """
    return preset_path(name).read_text(encoding="utf-8")


def referred(path: str | Path) -> str | None:
    """Return the name in `preset:NAME`, which stands where a configuration's path may; None for a path."""
    text = str(path)
    return text.removeprefix(PREFIX) if text.startswith(PREFIX) else None


def packaged(path: str | Path) -> Path:
    """Return a path, that of a file beside the presets where it is `preset:FILE`."""
    name = referred(path)
    return Path(path) if name is None else FOLDER / name


def defining_folder(location: Location | None) -> Path | None:
    """Return the folder of the file that sets a field; None for a preset's, or if no file does."""
    if location is None or from_preset(location) or not is_file(location.file):
        return None
    return Path(location.file).parent


def from_preset(location: Location | None) -> bool:
    """Tell whether a place is in a preset's file."""
    return location is not None and Path(location.file).parent == FOLDER
